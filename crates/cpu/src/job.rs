//! [`Job`]: one issued program; runs single commands. [`LaneWork`]: a job's commands on one lane, and how far they are.

use crate::claims::Holder;
use crate::event::Event;
use crate::kernels;
use crate::shared::Shared;
use megatrain_base::{Access, Command, Operands, Span};
use megatrain_exec::{Action, ExecError, Log, Place, Reason, RunState, Step, accesses, identity, place};
use megatrain_ops::Op;
use megatrain_scheduler::{Cmd, Entry, HostTasks, LaneId, Program, timeline::Slice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One issued program.
pub(crate) struct Job<T> {
    pub(crate) program: Arc<Program<Op, T>>,
    pub(crate) tasks: Arc<dyn HostTasks<T>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Arc<RunState>,
}

impl<T: Command> Job<T> {
    /// Runs a step whose wait, if it is one, is over. After a failure, commands are left out and events still complete,
    /// so that no lane waits for ever.
    pub(crate) fn step(&self, step: &Step<Event>, log: &mut Log) {
        match &step.action {
            Action::Run if self.shared.failure.stopped() => self.state.mark_incomplete(),
            Action::Run => self.execute(&self.program.commands[step.index], log),
            Action::Record(event) => event.set(),
            Action::Wait(_) => {}
        }
    }

    fn execute(&self, entry: &Entry<Op, T>, log: &mut Log) {
        let start_us = self.shared.now_us();
        let place = || place(&self.shared.contract, entry);
        if let Err(reason) = self.try_execute(entry, &place) {
            self.state.mark_incomplete();
            let program = self.state.program.clone();
            self.shared.failure.store(ExecError::Failed { program, place: place(), reason });
        }
        let end_us = self.shared.now_us();
        log.add(entry.lane, start_us, end_us, || {
            let Entry { lane, label, ref cmd } = *entry;
            self.shared.trace.then(|| Slice { lane, label, name: cmd.name(), start_us, end_us, work: cmd.work() })
        });
    }

    fn try_execute(&self, entry: &Entry<Op, T>, place: &dyn Fn() -> Place) -> Result<(), Reason> {
        let spans = accesses(&entry.cmd);
        let holder = || Holder { program: self.state.program.clone(), place: place() };
        let _held = self.shared.claims.take(&spans, holder).map_err(|race| Reason::Race(Box::new(race)))?;
        if let Some(delay) = &self.shared.delay {
            std::thread::sleep(delay.of(entry.lane));
        }
        // Whatever a panic leaves half written is never read again: the executor stops.
        catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: `spans` were checked when the program was issued, and `_held` claims them for this command alone
            // until the closure has returned.
            unsafe { self.perform(&entry.cmd, &spans) }
        }))
        .unwrap_or_else(|payload| Err(Reason::of_panic(&*payload)))
    }

    /// Does the command's work.
    ///
    /// # Safety
    /// `spans` must be the command's spans, have passed `check`, and be claimed by the caller.
    unsafe fn perform(&self, cmd: &Cmd<Op, T>, spans: &[(Span, Access)]) -> Result<(), Reason> {
        match cmd {
            // SAFETY: `check` found both spans inside their regions, equally long and disjoint; the caller claimed them.
            Cmd::Copy { src, dst } => unsafe { self.copy(src, dst) },
            Cmd::Collective(collective) => {
                if let Ok(Some((src, dst))) = identity(collective) {
                    // SAFETY: as for copies; `identity` compared the lengths.
                    unsafe { self.copy(&src, &dst) }
                }
            }
            Cmd::Launch(op) => {
                // SAFETY: passed on.
                let operands = unsafe { self.operands(spans) };
                kernels::run(op, &operands);
            }
            Cmd::Host(task) => {
                // SAFETY: passed on.
                let operands = unsafe { self.operands(spans) };
                self.tasks.run(task, &operands).map_err(|error| Reason::Task(error.to_string()))?;
            }
            Cmd::Record(_) | Cmd::Wait(_) => {}
        }
        Ok(())
    }

    /// # Safety
    /// Both spans must lie inside their regions, be equally long and disjoint, and be claimed by the caller.
    unsafe fn copy(&self, src: &Span, dst: &Span) {
        let (from, to) = (self.shared.memory.resolve(src), self.shared.memory.resolve(dst));
        // SAFETY: by the caller's promise, and blocks of different regions do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, src.len_bytes as usize) }
    }

    /// # Safety
    /// The spans must lie inside their regions and be claimed by the caller for as long as the operands live.
    unsafe fn operands(&self, spans: &[(Span, Access)]) -> Operands<'_> {
        let resolve = |(span, access): &(Span, Access)| (*span, *access, self.shared.memory.resolve(span));
        if self.shared.poison {
            for (span, _, ptr) in spans.iter().map(resolve).filter(|(_, access, _)| *access == Access::Write) {
                // SAFETY: the span is in bounds and claimed for writing.
                unsafe { std::ptr::write_bytes(ptr, 0xff, span.len_bytes as usize) };
            }
        }
        // SAFETY: blocks are initialised and valid as long as `self.shared` lives; claims keep everybody else off what
        // this command writes and writers off what it reads.
        unsafe { Operands::new(spans.iter().map(resolve)) }
    }
}

/// The commands of one job on one lane.
pub(crate) struct LaneWork<T> {
    job: Arc<Job<T>>,
    steps: Vec<Step<Event>>,
    next: usize,
    log: Log,
    /// Whether it computes (kernels or host tasks), not only copies.
    pub(crate) computes: bool,
}

impl<T: Command> LaneWork<T> {
    /// Splits a job's steps by lane; lanes without steps are left out.
    pub(crate) fn split(job: &Arc<Job<T>>, steps: Vec<Step<Event>>) -> Vec<(LaneId, LaneWork<T>)> {
        let mut lanes: Vec<Vec<Step<Event>>> = job.shared.contract.lanes.iter().map(|_| Vec::new()).collect();
        for step in steps {
            lanes[step.lane.0 as usize].push(step);
        }
        let work = |(lane, steps): (usize, Vec<Step<Event>>)| {
            let computes =
                |step: &Step<Event>| matches!(job.program.commands[step.index].cmd, Cmd::Launch(_) | Cmd::Host(_));
            let computes = steps.iter().any(computes);
            (LaneId(lane as u16), LaneWork { job: job.clone(), steps, next: 0, log: Log::default(), computes })
        };
        lanes.into_iter().enumerate().filter(|(_, steps)| !steps.is_empty()).map(work).collect()
    }

    /// Whether every step is done.
    pub(crate) fn is_done(&self) -> bool {
        self.next == self.steps.len()
    }

    /// Steps that are not done.
    pub(crate) fn open_steps(&self) -> usize {
        self.steps.len() - self.next
    }

    /// Whether the next step can be taken now.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.steps[self.next].action {
            Action::Wait(event) => event.is_set(),
            Action::Run | Action::Record(_) => true,
        }
    }

    /// Returns once the next step can be taken.
    pub(crate) fn block(&self) {
        if let Action::Wait(event) = &self.steps[self.next].action {
            event.wait();
        }
    }

    /// Takes the next step, which must be ready.
    pub(crate) fn advance(&mut self) {
        self.job.step(&self.steps[self.next], &mut self.log);
        self.next += 1;
        if self.is_done() {
            self.job.state.part_done(std::mem::take(&mut self.log));
        }
    }

    /// Takes steps until one is not ready or all are done.
    pub(crate) fn advance_while_ready(&mut self) {
        while !self.is_done() && self.is_ready() {
            self.advance();
        }
    }
}
