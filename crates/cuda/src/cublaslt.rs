//! The calls of cuBLASLt that matrix products need, found at run time. Constants and layouts as in NVIDIA's cublasLt.h.

use crate::CudaError;
use crate::library::Library;
use cudarc::driver::sys::CUstream;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

pub(crate) type Handle = *mut c_void;
pub(crate) type Descriptor = *mut c_void;

/// `cudaDataType_t`.
pub(crate) const CUDA_R_32F: i32 = 0;
/// `cudaDataType_t`.
pub(crate) const CUDA_R_16BF: i32 = 14;
/// `cublasComputeType_t`: f32 throughout, no TF32.
pub(crate) const COMPUTE_32F: i32 = 68;
/// `cublasLtMatmulDescAttributes_t`.
pub(crate) const DESC_TRANSA: i32 = 3;
/// `cublasLtMatmulDescAttributes_t`.
pub(crate) const DESC_TRANSB: i32 = 4;
/// `cublasLtMatmulPreferenceAttributes_t`.
pub(crate) const PREF_MAX_WORKSPACE_BYTES: i32 = 1;
/// `cublasLtMatmulPreferenceAttributes_t`.
pub(crate) const PREF_REDUCTION_SCHEME_MASK: i32 = 3;
/// `cublasLtMatmulPreferenceAttributes_t`, for A; B, C and D follow.
pub(crate) const PREF_MIN_ALIGNMENT_A: i32 = 5;
/// `cublasLtReductionScheme_t`: split-K sums in the workspace in f32, never in place, whose order is not fixed.
pub(crate) const REDUCTION_COMPUTE_TYPE: u32 = 2;

/// `cublasLtMatmulAlgo_t`: opaque.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Algorithm {
    data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heuristic {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace_bytes: usize,
    pub(crate) state: i32,
    waves: f32,
    reserved: [i32; 4],
}

impl Heuristic {
    pub(crate) const EMPTY: Heuristic = Heuristic {
        algorithm: Algorithm { data: [0; 8] },
        workspace_bytes: 0,
        state: -1,
        waves: 0.0,
        reserved: [0; 4],
    };
}

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*);)*) => {
        /// The functions, each returning a status, 0 for success.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> i32,)*
        }
        impl Functions {
            fn find(library: &Library) -> Result<Functions, String> {
                Ok(Functions { $($field: {
                    let address = library.symbol($symbol)?;
                    // SAFETY: the symbol is the function of this name, whose C signature is the one declared here.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> i32>(address) }
                },)* })
            }
        }
    };
}

functions! {
    create = c"cublasLtCreate": fn(*mut Handle);
    destroy = c"cublasLtDestroy": fn(Handle);
    desc_create = c"cublasLtMatmulDescCreate": fn(*mut Descriptor, i32, i32);
    desc_destroy = c"cublasLtMatmulDescDestroy": fn(Descriptor);
    desc_set = c"cublasLtMatmulDescSetAttribute": fn(Descriptor, i32, *const c_void, usize);
    layout_create = c"cublasLtMatrixLayoutCreate": fn(*mut Descriptor, i32, u64, u64, i64);
    layout_destroy = c"cublasLtMatrixLayoutDestroy": fn(Descriptor);
    preference_create = c"cublasLtMatmulPreferenceCreate": fn(*mut Descriptor);
    preference_destroy = c"cublasLtMatmulPreferenceDestroy": fn(Descriptor);
    preference_set = c"cublasLtMatmulPreferenceSetAttribute": fn(Descriptor, i32, *const c_void, usize);
    heuristic = c"cublasLtMatmulAlgoGetHeuristic": fn(
        Handle, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, i32, *mut Heuristic, *mut i32
    );
    matmul = c"cublasLtMatmul": fn(
        Handle, Descriptor, *const f32, *const c_void, Descriptor, *const c_void, Descriptor, *const f32, *const c_void,
        Descriptor, *mut c_void, Descriptor, *const Algorithm, *mut c_void, usize, CUstream
    );
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cuBLASLt")
    }
}

/// Opens cuBLASLt: the file that MEGATRAIN_CUBLASLT names, or version 13 from the system's loader, from CUDA_HOME, from
/// /usr/local/cuda, or from a folder `lib` beside the program.
///
/// # Errors
/// [`CudaError::NoCublasLt`].
pub(crate) fn load() -> Result<Functions, CudaError> {
    let mut reasons = Vec::new();
    for path in candidates() {
        match Library::open(&path).and_then(|library| Functions::find(&library)) {
            Ok(functions) => return Ok(functions),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(CudaError::NoCublasLt { reason: reasons.join("; ") })
}

fn candidates() -> Vec<PathBuf> {
    const FILE: &str = "libcublasLt.so.13";
    if let Some(file) = std::env::var_os("MEGATRAIN_CUBLASLT") {
        return vec![file.into()];
    }
    let mut paths = vec![PathBuf::from(FILE)];
    paths.extend(std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("lib64").join(FILE)));
    paths.push(Path::new("/usr/local/cuda/lib64").join(FILE));
    let program = std::env::current_exe().unwrap_or_default();
    paths.extend(program.parent().map(|folder| folder.join("lib").join(FILE)));
    paths
}

/// # Errors
/// [`CudaError::CublasLt`] for any status but success.
pub(crate) fn check(what: &str, status: i32) -> Result<(), CudaError> {
    if status == 0 { Ok(()) } else { Err(CudaError::CublasLt { what: what.into(), status }) }
}

/// A descriptor of cuBLASLt's, destroyed on drop.
pub(crate) struct Owned {
    pub(crate) raw: Descriptor,
    destroy: unsafe extern "C" fn(Descriptor) -> i32,
}

impl Owned {
    /// # Errors
    /// [`CudaError::CublasLt`].
    pub(crate) fn new(
        what: &CStr,
        destroy: unsafe extern "C" fn(Descriptor) -> i32,
        create: impl FnOnce(*mut Descriptor) -> i32,
    ) -> Result<Owned, CudaError> {
        let mut raw = std::ptr::null_mut();
        check(&what.to_string_lossy(), create(&mut raw))?;
        Ok(Owned { raw, destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `raw` was made by the creating function that goes with `destroy`, and is destroyed once.
        unsafe { (self.destroy)(self.raw) };
    }
}
