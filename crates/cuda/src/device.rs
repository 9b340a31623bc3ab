//! [`Device`]: one GPU and its context.

use crate::launch::Limits;
use crate::{CudaError, probe};
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// One GPU, with its primary context retained.
#[derive(Debug)]
pub struct Device {
    handle: sys::CUdevice,
    context: sys::CUcontext,
    ordinal: u32,
    name: String,
    capability: (u32, u32),
    multiprocessors: u32,
    limits: Limits,
}

// SAFETY: contexts may be used from any thread that makes them current.
unsafe impl Send for Device {}
// SAFETY: as above; all fields are plain data that never changes.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a GPU and makes its context current on this thread.
    ///
    /// # Errors
    /// Those of [`probe`], [`CudaError::NoSuchDevice`], or what the driver says.
    pub fn open(ordinal: u32) -> Result<Arc<Device>, CudaError> {
        let count = probe()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let what = |what: &str| CudaError::driver(format!("GPU {ordinal}: {what}"));
        let handle = result::device::get(ordinal as i32).map_err(what("opening it"))?;
        let attribute = |attribute: Attribute| {
            // SAFETY: `handle` is a device of this driver.
            let value = unsafe { result::device::get_attribute(handle, attribute) };
            value.map(|v| v as u32).map_err(what("asking for its properties"))
        };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let name = result::device::get_name(handle).map_err(what("asking for its name"))?;
        // SAFETY: `handle` is a device of this driver; `drop` releases what is retained here.
        let context = unsafe { result::primary_ctx::retain(handle) }.map_err(what("creating a context"))?;
        let limits = Limits { shared_bytes };
        let device = Arc::new(Device { handle, context, ordinal, name, capability, multiprocessors, limits });
        device.make_current()?;
        Ok(device)
    }

    /// Makes the context current on the calling thread: needed once a thread that talks to the GPU.
    ///
    /// # Errors
    /// What the driver says.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.context) }
            .map_err(CudaError::driver(format!("GPU {}: switching to it", self.ordinal)))
    }

    /// Waits until the GPU has done everything.
    ///
    /// # Errors
    /// What the driver says, asynchronous faults of earlier launches included.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.make_current()?;
        result::ctx::synchronize().map_err(CudaError::driver(format!("GPU {}: waiting for it", self.ordinal)))
    }

    /// Free and installed memory in bytes.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory_bytes(&self) -> Result<(u64, u64), CudaError> {
        self.make_current()?;
        let (free, total) = result::mem_get_info().map_err(CudaError::driver("asking for free memory"))?;
        Ok((free as u64, total as u64))
    }

    /// Number of the GPU, counted from 0.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// E.g. `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compute capability, major and minor.
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// What launches have to respect.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`. An error here can be told nobody and harms nobody.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}
