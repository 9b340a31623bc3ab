//! [`LaneState`]: a lane's queue, and what of it is under way on a device.

use crate::executor::events::Recording;
use crate::executor::{Backend, Job};
use megatrain_exec::{Log, Step};
use std::collections::VecDeque;
use std::sync::Arc;

/// Commands of a stream that may be under way: drivers hold an issuing thread up when their own queue of about a
/// thousand is full, and it issues for the other lanes, too.
pub(crate) const WINDOW: usize = 512;

/// How many commands go by from one event that counts them to the next.
pub(crate) const FENCE: usize = 32;

/// What a lane does next.
pub(crate) enum Item<T> {
    /// One command.
    Step(Arc<Job<T>>, Step<Recording>),
    /// Nothing of this job follows.
    End(Arc<Job<T>>),
}

/// Commands of a stream between two waits, or one command if a timeline is wanted.
pub(crate) struct Segment<E, T> {
    pub(crate) job: Arc<Job<T>>,
    /// The last command in it.
    pub(crate) index: usize,
    pub(crate) start: E,
}

/// What is under way on a stream, in its order.
pub(crate) enum Pending<E, T> {
    /// So many commands more are over after this event.
    Fence { event: E, commands: usize },
    /// A stretch of work.
    Segment { segment: Segment<E, T>, end: E },
    /// A job's last command on this lane.
    End { event: E, job: Arc<Job<T>> },
}

/// A lane.
pub(crate) struct LaneState<B: Backend, T> {
    pub(crate) queue: VecDeque<Item<T>>,
    /// The stream's number, or `None` on the host.
    pub(crate) stream: Option<usize>,
    /// On a stream: the open segment.
    pub(crate) open: Option<Segment<B::Event, T>>,
    /// On a stream: what is under way.
    pub(crate) pending: VecDeque<Pending<B::Event, T>>,
    /// On a stream: commands under way, and those of them that no fence counts yet.
    pub(crate) in_flight: usize,
    pub(crate) unfenced: usize,
    /// On the host: the command that the lane's thread runs.
    pub(crate) running: Option<(Arc<Job<T>>, usize)>,
    /// What the current job took here.
    pub(crate) log: Log,
}

impl<B: Backend, T> LaneState<B, T> {
    pub(crate) fn new(stream: Option<usize>) -> Self {
        LaneState {
            queue: VecDeque::new(),
            stream,
            open: None,
            pending: VecDeque::new(),
            in_flight: 0,
            unfenced: 0,
            running: None,
            log: Log::default(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.pending.is_empty() && self.running.is_none()
    }
}
