//! [`Workers`]: a thread for each host lane. It runs one command at a time, handed over by the issue thread.

use crate::executor::issue::Message;
use crate::executor::{Job, Shared, check};
use megatrain_base::{Command, Operands, Span};
use megatrain_exec::{ExecError, Reason, accesses, identity, place};
use megatrain_scheduler::{Cmd, LaneId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// What a worker says of a command that it ran.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) lane: LaneId,
    pub(crate) start_us: f64,
    pub(crate) end_us: f64,
    pub(crate) result: Result<(), Reason>,
}

type Work<T> = (Arc<Job<T>>, usize);

/// The host lanes' threads. Dropping it ends and joins them.
pub(crate) struct Workers<T: Command> {
    queues: Vec<Option<Sender<Work<T>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Command> Workers<T> {
    /// Starts a thread for each host lane of the contract.
    pub(crate) fn start(shared: &Arc<Shared>, messages: &Sender<Message<T>>) -> Result<Self, ExecError> {
        let mut workers = Workers { queues: Vec::new(), threads: Vec::new() };
        for (number, lane) in shared.contract.lanes.iter().enumerate() {
            if check::is_stream(lane.kind) {
                workers.queues.push(None);
                continue;
            }
            let (sender, queue) = channel();
            let (shared, messages) = (shared.clone(), messages.clone());
            let name = format!("lane{number}-{}", lane.kind);
            let lane = LaneId(number as u16);
            let spawned =
                thread::Builder::new().name(name.clone()).spawn(move || work_off(&queue, lane, &shared, &messages));
            let thread = spawned.map_err(|error| ExecError::Spawn { what: name, cause: error.to_string() })?;
            workers.queues.push(Some(sender));
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Hands a command to its lane's thread.
    pub(crate) fn send(&self, lane: LaneId, job: Arc<Job<T>>, index: usize) {
        let queue = self.queues[lane.0 as usize].as_ref().expect("a host lane has a thread");
        // A worker ends only when its sender is gone, and every panic inside a command is caught.
        queue.send((job, index)).expect("the lane's thread lives as long as the issue thread");
    }
}

impl<T: Command> Drop for Workers<T> {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // An error would be a panic that the thread has already printed.
            let _ = thread.join();
        }
    }
}

fn work_off<T: Command>(queue: &Receiver<Work<T>>, lane: LaneId, shared: &Shared, messages: &Sender<Message<T>>) {
    for (job, index) in queue {
        let start_us = shared.now_us();
        let result = catch_unwind(AssertUnwindSafe(|| execute(&job, index, shared)));
        // Whatever a panic leaves half written is never read again: the executor stops.
        let result = result.unwrap_or_else(|payload| Err(Reason::of_panic(&*payload)));
        let done = Done { lane, start_us, end_us: shared.now_us(), result };
        if messages.send(Message::Done(done)).is_err() {
            return;
        }
    }
}

fn execute<T: Command>(job: &Job<T>, index: usize, shared: &Shared) -> Result<(), Reason> {
    let entry = &job.program.commands[index];
    if let Some(delay) = &shared.options.delay {
        thread::sleep(delay.of(entry.lane));
    }
    match &entry.cmd {
        Cmd::Copy { src, dst } => copy(shared, src, dst),
        Cmd::Collective(collective) => {
            if let Ok(Some((src, dst))) = identity(collective) {
                copy(shared, &src, &dst);
            }
        }
        Cmd::Host(task) => {
            if shared.options.poison {
                for span in check::written(&entry.cmd) {
                    // SAFETY: as for the operands below; nothing reads what the command declares `Write` before it ran.
                    unsafe { std::ptr::write_bytes(shared.memory.resolve(&span), 0xff, span.len_bytes as usize) };
                }
            }
            let run = || {
                let spans = accesses(&entry.cmd);
                let resolved = spans.iter().map(|(span, access)| (*span, *access, shared.memory.resolve(span)));
                // SAFETY: the spans lie in host regions (`check::spaces`) inside their bounds (`megatrain_exec::check`),
                // which are initialised and live as long as `shared`; the program is verified, so every command that
                // conflicts is ordered by events, and the issue thread hands this command over only when all it waits for
                // is over.
                let operands = unsafe { Operands::new(resolved) };
                job.tasks.run(task, &operands)
            };
            shared.pool.install(run).map_err(|error| Reason::Task(error.to_string()))?;
        }
        Cmd::Launch(_) | Cmd::Record(_) | Cmd::Wait(_) => {
            unreachable!("{} is no work of a host lane", place(&shared.contract, entry))
        }
    }
    Ok(())
}

fn copy(shared: &Shared, src: &Span, dst: &Span) {
    let (from, to) = (shared.memory.resolve(src), shared.memory.resolve(dst));
    // SAFETY: as in `execute`: both in host regions, equally long, disjoint (checked), and ordered by events.
    unsafe { std::ptr::copy_nonoverlapping(from, to, src.len_bytes as usize) }
}
