//! [`Recording`]: one `Record` of a program. [`Events`]: the device events behind recordings, used again once nobody
//! refers to a recording any more.

use crate::CudaError;
use crate::executor::Backend;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

const PENDING: u32 = 0;
const DONE: u32 = u32::MAX;

/// One recording of an event: pending, issued on a stream, or done on the host. Only the issue thread changes it.
#[derive(Debug, Default)]
pub(crate) struct Recording(AtomicU32);

/// How far a recording is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Not issued.
    Pending,
    /// Recorded on a stream by this event.
    Issued(Index),
    /// Over, as the issue thread knows.
    Done,
}

/// Number of a device event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Index(usize);

impl Recording {
    pub(crate) fn progress(&self) -> Progress {
        match self.0.load(Ordering::Relaxed) {
            PENDING => Progress::Pending,
            DONE => Progress::Done,
            number => Progress::Issued(Index(number as usize - 1)),
        }
    }

    pub(crate) fn set_done(&self) {
        self.0.store(DONE, Ordering::Relaxed);
    }
}

struct Slot<E> {
    event: E,
    /// The recording it serves.
    owner: Weak<Recording>,
    stream: usize,
}

/// The events that recordings use.
pub(crate) struct Events<B: Backend> {
    slots: Vec<Slot<B::Event>>,
    free: Vec<usize>,
}

impl<B: Backend> Events<B> {
    pub(crate) fn new() -> Self {
        Events { slots: Vec::new(), free: Vec::new() }
    }

    /// Records on a stream.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn record(
        &mut self,
        backend: &mut B,
        stream: usize,
        recording: &Arc<Recording>,
    ) -> Result<(), CudaError> {
        let number = match self.take() {
            Some(number) => number,
            None => {
                let event = backend.event(false)?;
                self.slots.push(Slot { event, owner: Weak::new(), stream });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[number];
        backend.record(stream, &slot.event)?;
        (slot.owner, slot.stream) = (Arc::downgrade(recording), stream);
        recording.0.store(number as u32 + 1, Ordering::Relaxed);
        Ok(())
    }

    /// An event that no living recording uses. Work that still waits for its earlier recording keeps waiting for that one:
    /// a wait refers to the recording at the time of the call.
    fn take(&mut self) -> Option<usize> {
        if self.free.is_empty() {
            let unused = |(i, slot): (usize, &Slot<B::Event>)| (slot.owner.strong_count() == 0).then_some(i);
            self.free.extend(self.slots.iter().enumerate().filter_map(unused));
            // A sweep that brings little would be repeated at once: better more events.
            if self.free.len() * 4 < self.slots.len() {
                self.free.clear();
            }
        }
        self.free.pop()
    }

    pub(crate) fn event(&self, index: Index) -> &B::Event {
        &self.slots[index.0].event
    }

    pub(crate) fn stream(&self, index: Index) -> usize {
        self.slots[index.0].stream
    }
}
