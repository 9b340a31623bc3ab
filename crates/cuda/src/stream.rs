//! [`Stream`]: work in order on a GPU; [`Event`]: a point in it.

use crate::{CudaError, Device};
use cudarc::driver::result::{event, stream};
use cudarc::driver::sys;

/// A queue of work; synchronises with no other stream by itself.
#[derive(Debug)]
pub struct Stream<'d> {
    device: &'d Device,
    raw: sys::CUstream,
}

// SAFETY: streams may be used from any thread whose context is the stream's.
unsafe impl Send for Stream<'_> {}

impl<'d> Stream<'d> {
    /// A new stream of ordinary priority.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &'d Device) -> Result<Self, CudaError> {
        device.make_current()?;
        let raw = stream::create(stream::StreamKind::NonBlocking).map_err(CudaError::driver("creating a stream"))?;
        Ok(Stream { device, raw })
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Waits until everything issued on it is done.
    ///
    /// # Errors
    /// What the driver says, asynchronous faults of earlier launches included.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.device.make_current()?;
        // SAFETY: the stream lives until `drop`.
        unsafe { stream::synchronize(self.raw) }.map_err(CudaError::driver("waiting for a stream"))
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: created in `new`, destroyed once; work still on it finishes by itself.
            let _ = unsafe { stream::destroy(self.raw) };
        }
    }
}

/// A point in a stream, with its time.
#[derive(Debug)]
pub struct Event<'d> {
    device: &'d Device,
    raw: sys::CUevent,
}

impl<'d> Event<'d> {
    /// An event that is not recorded yet.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &'d Device) -> Result<Self, CudaError> {
        device.make_current()?;
        let raw =
            event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(CudaError::driver("creating an event"))?;
        Ok(Event { device, raw })
    }

    /// Recorded when everything issued on `stream` so far is done.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: event and stream live until their drop.
        unsafe { event::record(self.raw, stream.raw()) }.map_err(CudaError::driver("recording an event"))
    }

    /// Microseconds from `earlier` to this event; waits for it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn since_us(&self, earlier: &Event) -> Result<f64, CudaError> {
        // SAFETY: both events live until their drop.
        unsafe { event::synchronize(self.raw) }.map_err(CudaError::driver("waiting for an event"))?;
        // SAFETY: as above, and both have been recorded, or the driver says that they have not.
        let ms = unsafe { event::elapsed(earlier.raw, self.raw) }.map_err(CudaError::driver("timing events"))?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { event::destroy(self.raw) };
        }
    }
}
