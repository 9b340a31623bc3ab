//! What can go wrong between here and the GPU, in sentences for a person.

use cudarc::driver::result::DriverError;
use megatrain_kernels::ManifestError;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The driver's library cannot be opened.
    #[error("there is no NVIDIA driver on this machine: {reason}")]
    NoDriver {
        /// What the system's loader says.
        reason: String,
    },
    /// The driver is older than the kernels need.
    #[error(
        "the NVIDIA driver is too old: it supports CUDA {}.{}, MegaTrain needs {}.{} (driver 580 or later)",
        .found.0, .found.1, .needed.0, .needed.1
    )]
    DriverTooOld {
        /// Major and minor version of CUDA that it supports.
        found: (u32, u32),
        /// What is needed.
        needed: (u32, u32),
    },
    /// The driver works but has no GPU to offer.
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    /// There is no GPU of this number.
    #[error("there is no GPU {ordinal}: the driver finds {count}, counted from 0")]
    NoSuchDevice {
        /// What was asked for.
        ordinal: u32,
        /// GPUs there are.
        count: u32,
    },
    /// No compiled kernels, or not those of this program.
    #[error(transparent)]
    Kernels(#[from] ManifestError),
    /// Kernels that this GPU cannot run.
    #[error(
        "the kernels in {} are built for {}; {gpu} has compute capability {}.{} and runs none of them",
        folder.display(), .built.join(", "), .capability.0, .capability.1
    )]
    KernelsForOtherGpu {
        /// Where they are.
        folder: PathBuf,
        /// The targets there are.
        built: Vec<String>,
        /// The GPU's name.
        gpu: String,
        /// Its compute capability.
        capability: (u32, u32),
    },
    /// A compiled kernel cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// cuBLASLt cannot be opened.
    #[error(
        "cuBLASLt of CUDA 13, which matrix products need, cannot be opened ({reason}); `cargo xtask train` installs it \
         where there is none; where there is no cargo, `pip install nvidia-cublas==13.*` in an active Python environment \
         or install the CUDA toolkit; MEGATRAIN_CUBLASLT may name the file"
    )]
    NoCublasLt {
        /// What was tried and what the system's loader says.
        reason: String,
    },
    /// A call of the driver failed.
    #[error("{what}: {text} ({name})")]
    Driver {
        /// What was being done.
        what: String,
        /// CUDA's name of the error.
        name: String,
        /// CUDA's text.
        text: String,
    },
    /// A call of cuBLASLt failed.
    #[error("{what}: cuBLASLt status {status}")]
    CublasLt {
        /// What was being done.
        what: String,
        /// Its status code.
        status: i32,
    },
    /// No kernel takes these arguments.
    #[error("{op}: {why}")]
    Unsupported {
        /// The op.
        op: &'static str,
        /// What is not supported.
        why: String,
    },
}

impl CudaError {
    /// The driver's error, after `what` was tried.
    pub(crate) fn driver(what: impl Into<String>) -> impl FnOnce(DriverError) -> CudaError {
        let what = what.into();
        move |error| {
            let text = |s: Result<&std::ffi::CStr, DriverError>| {
                s.map_or_else(|_| format!("code {}", error.0 as u32), |s| s.to_string_lossy().into_owned())
            };
            CudaError::Driver { what, name: text(error.error_name()), text: text(error.error_string()) }
        }
    }
}
