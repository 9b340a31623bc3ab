//! [`HostPinner`]: makes host memory known to the driver, in place, so that copies run at the link's speed beside everything
//! else.

use crate::{CudaError, Device};
use cudarc::driver::result::DriverError;
use cudarc::driver::sys;
use megatrain_arena::Pinner;
use std::io;
use std::sync::Arc;

/// Registers host memory with the driver (`cuMemHostRegister`, for all contexts).
#[derive(Debug)]
pub struct HostPinner(Arc<Device>);

impl HostPinner {
    /// A pinner for this GPU.
    pub fn new(device: &Arc<Device>) -> HostPinner {
        HostPinner(device.clone())
    }
}

impl Pinner for HostPinner {
    fn name(&self) -> &str {
        "cuMemHostRegister"
    }

    fn counts_against_memlock(&self) -> bool {
        // The driver locks pages by its own means, not by mlock.
        false
    }

    unsafe fn pin(&self, ptr: *mut u8, len_bytes: usize) -> Result<(), io::Error> {
        let other = |error: CudaError| io::Error::other(error.to_string());
        self.0.make_current().map_err(other)?;
        // SAFETY: the caller keeps the range mapped until `unpin`.
        let status = unsafe { sys::cuMemHostRegister_v2(ptr.cast(), len_bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) };
        status.result().map_err(CudaError::driver("locking host memory for the GPU")).map_err(other)
    }

    unsafe fn unpin(&self, ptr: *mut u8, _len_bytes: usize) {
        if self.0.make_current().is_ok() {
            // SAFETY: registered by `pin`, and no device uses it any more, as the caller says. An error has nobody to hear it.
            let _: Result<(), DriverError> = unsafe { sys::cuMemHostUnregister(ptr.cast()) }.result();
        }
    }
}
