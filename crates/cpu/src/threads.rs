//! [`LaneThreads`]: one thread per lane, each with a queue of lane work.
//!
//! A lane waits for events on its own thread and computes inside the pool: it enters the pool once for all commands that
//! are ready, so a chain of small kernels pays for one hand-over, and it never blocks a thread of the pool.

use crate::job::LaneWork;
use crate::shared::Shared;
use megatrain_base::Command;
use megatrain_exec::ExecError;
use megatrain_scheduler::LaneId;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// The lanes' threads. Dropping it finishes what was sent and joins them.
pub(crate) struct LaneThreads<T: Command> {
    queues: Vec<Sender<LaneWork<T>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Command> LaneThreads<T> {
    /// Starts a thread for each lane of the contract.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self, ExecError> {
        let mut lanes = LaneThreads { queues: Vec::new(), threads: Vec::new() };
        for (number, lane) in shared.contract.lanes.iter().enumerate() {
            let (sender, queue) = channel();
            let shared = shared.clone();
            let name = format!("lane{number}-{}", lane.kind);
            let spawned = thread::Builder::new().name(name.clone()).spawn(move || work_off(&queue, &shared));
            let thread = spawned.map_err(|error| ExecError::Spawn { what: name, cause: error.to_string() })?;
            lanes.queues.push(sender);
            lanes.threads.push(thread);
        }
        Ok(lanes)
    }

    /// Appends to a lane's queue.
    pub(crate) fn send(&self, lane: LaneId, work: LaneWork<T>) {
        // A lane's thread ends only when its sender is gone, and every panic inside a command is caught.
        self.queues[lane.0 as usize].send(work).expect("the lane's thread lives as long as the executor");
    }
}

fn work_off<T: Command>(queue: &Receiver<LaneWork<T>>, shared: &Shared) {
    for mut work in queue {
        while !work.is_done() {
            work.block();
            if work.computes {
                shared.pool.install(|| work.advance_while_ready());
            } else {
                work.advance_while_ready();
            }
        }
    }
}

impl<T: Command> Drop for LaneThreads<T> {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // The last handle of an executor may be dropped by a host task's owner on a lane's own thread, which cannot
            // wait for itself; it ends on its own, and what it uses is kept alive by the thread's own handle.
            if thread.thread().id() != thread::current().id() {
                // An error would be a panic that the thread has already printed; a drop has nobody to tell.
                let _ = thread.join();
            }
        }
    }
}
