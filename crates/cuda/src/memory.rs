//! [`DeviceBuffer`]: memory of a GPU, reserved once.

use crate::{CudaError, Device};
use cudarc::driver::result;
use megatrain_base::units::fmt_bytes;
use std::sync::Arc;

/// A range of device memory, freed on drop. Contents are arbitrary until written.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    address: u64,
    len_bytes: u64,
}

impl DeviceBuffer {
    /// Reserves memory, aligned to 256 bytes.
    ///
    /// # Errors
    /// What the driver says, with the size.
    pub fn new(device: &Arc<Device>, len_bytes: u64) -> Result<Self, CudaError> {
        device.make_current()?;
        let what = CudaError::driver(format!("reserving {} on {}", fmt_bytes(len_bytes), device.name()));
        // SAFETY: the memory is only handed out as an address; whoever reads it answers for its contents.
        let address = unsafe { result::malloc_sync(len_bytes.max(1) as usize) }.map_err(what)?;
        Ok(DeviceBuffer { device: device.clone(), address, len_bytes })
    }

    /// Its first byte in the device's address space.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Sets every byte, and waits for it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill(&self, byte: u8) -> Result<(), CudaError> {
        self.device.make_current()?;
        // SAFETY: the range is this buffer's own.
        unsafe { result::memset_d8_sync(self.address, byte, self.len_bytes as usize) }
            .map_err(CudaError::driver("filling device memory"))?;
        self.device.synchronize()
    }

    /// Copies bytes to the device, from `offset_bytes` on, and waits for it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset_bytes + bytes.len() as u64 <= self.len_bytes, "{} bytes at {offset_bytes}", bytes.len());
        self.device.make_current()?;
        // SAFETY: the target lies within this buffer; the call returns when `bytes` has been read.
        unsafe { result::memcpy_htod_sync(self.address + offset_bytes, bytes) }
            .map_err(CudaError::driver("copying to the device"))
    }

    /// Copies bytes from the device, from `offset_bytes` on, after everything issued before.
    ///
    /// # Errors
    /// What the driver says, asynchronous faults of earlier launches included.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(offset_bytes + bytes.len() as u64 <= self.len_bytes, "{} bytes at {offset_bytes}", bytes.len());
        self.device.synchronize()?;
        // SAFETY: the source lies within this buffer; any bytes are valid u8.
        unsafe { result::memcpy_dtoh_sync(bytes, self.address + offset_bytes) }
            .map_err(CudaError::driver("copying from the device"))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            // SAFETY: allocated in `new`, freed once, and nothing that was issued is still using it.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
