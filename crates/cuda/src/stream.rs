//! [`Stream`]: work in order on a GPU; [`Event`]: a point in it.

use crate::{CudaError, Device};
use cudarc::driver::result::{event, stream};
use cudarc::driver::sys;
use std::sync::Arc;

/// Whose blocks go first where both have some to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Priority {
    /// The least there is.
    #[default]
    Ordinary,
    /// The greatest there is.
    High,
}

/// A queue of work; synchronises with no other stream by itself.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    raw: sys::CUstream,
}

// SAFETY: streams may be used from any thread whose context is the stream's.
unsafe impl Send for Stream {}

impl Stream {
    /// A new stream of ordinary priority.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Stream::with_priority(device, Priority::Ordinary)
    }

    /// A new stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn with_priority(device: &Arc<Device>, priority: Priority) -> Result<Self, CudaError> {
        device.make_current()?;
        let what = || CudaError::driver("creating a stream");
        let (mut least, mut greatest, mut raw) = (0, 0, std::ptr::null_mut());
        // SAFETY: a context is current; both numbers are written.
        unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }.result().map_err(what())?;
        let priority = if priority == Priority::High { greatest } else { least };
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; the handle is written.
        unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, priority) }.result().map_err(what())?;
        Ok(Stream { device: device.clone(), raw })
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Holds what is issued on this stream from now on until `event`, as last recorded, is over.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: stream and event live until their drop; the wait refers to the recording made before this call.
        unsafe { stream::wait_event(self.raw, event.raw, flags) }.map_err(CudaError::driver("waiting for an event"))
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

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: created in `new`, destroyed once; work still on it finishes by itself.
            let _ = unsafe { stream::destroy(self.raw) };
        }
    }
}

/// A point in a stream, with its time.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    raw: sys::CUevent,
}

// SAFETY: events may be used from any thread whose context is the event's.
unsafe impl Send for Event {}

impl Event {
    /// An event that is not recorded yet.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Event::with_flags(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An event without a time, which costs streams less; not recorded yet.
    ///
    /// # Errors
    /// What the driver says.
    pub fn untimed(device: &Arc<Device>) -> Result<Self, CudaError> {
        Event::with_flags(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with_flags(device: &Arc<Device>, flags: sys::CUevent_flags) -> Result<Self, CudaError> {
        device.make_current()?;
        let raw = event::create(flags).map_err(CudaError::driver("creating an event"))?;
        Ok(Event { device: device.clone(), raw })
    }

    /// Whether the last recording is over; `true` for an event that was never recorded.
    ///
    /// # Errors
    /// What the driver says, asynchronous faults of earlier launches included.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: the event lives until `drop`.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(CudaError::driver("asking for an event")),
        }
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

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { event::destroy(self.raw) };
        }
    }
}
