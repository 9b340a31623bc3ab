//! Whether there is a usable driver, asked before anything that would panic without one.

use crate::CudaError;
use crate::library::Library;
use cudarc::driver::{result, sys};
use std::path::Path;

/// The CUDA version that a driver must support: that of the compiler of the kernels.
pub const MIN_DRIVER: (u32, u32) = (13, 0);

/// Looks for a driver and initialises it; returns the number of GPUs, at least 1. May be called any number of times.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::DriverTooOld`], [`CudaError::NoDevice`], or what the driver says.
pub fn probe() -> Result<u32, CudaError> {
    let library = ["libcuda.so.1", "libcuda.so"].map(|name| Library::open(Path::new(name)));
    if let [Err(reason), Err(_)] = library {
        return Err(CudaError::NoDriver { reason });
    }
    let version = driver_version()?;
    let found = (version / 1000, version % 1000 / 10);
    if found < MIN_DRIVER {
        return Err(CudaError::DriverTooOld { found, needed: MIN_DRIVER });
    }
    match result::init() {
        Err(result::DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Err(CudaError::NoDevice),
        other => other.map_err(CudaError::driver("initialising the driver"))?,
    }
    let count = result::device::get_count().map_err(CudaError::driver("counting GPUs"))?;
    if count == 0 { Err(CudaError::NoDevice) } else { Ok(count as u32) }
}

/// The CUDA version that the driver supports, e.g. 13000. Its library must be there.
///
/// # Errors
/// What the driver says.
pub(crate) fn driver_version() -> Result<u32, CudaError> {
    let mut version = 0;
    // SAFETY: the caller has seen that the driver's library can be opened; the function exists in every version of it.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(CudaError::driver("asking for the driver's version"))?;
    Ok(version as u32)
}
