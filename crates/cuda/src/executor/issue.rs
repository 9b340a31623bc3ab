//! [`IssueThread`]: the one thread that talks to the device.

use crate::CudaError;
use crate::executor::events::{Events, Progress, Recording};
use crate::executor::lane::{FENCE, Item, LaneState, Pending, Segment, WINDOW};
use crate::executor::worker::{Done, Workers};
use crate::executor::{Backend, Job, Shared, check, device};
use megatrain_base::Command;
use megatrain_exec::{Action, ExecError, Reason, Step, identity, place};
use megatrain_ops::Op;
use megatrain_scheduler::{Cmd, LaneId, Program, Slice};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the thread looks again at once after something happened, before it sleeps between looks.
const SPIN: Duration = Duration::from_micros(100);

/// How long it sleeps between looks while a device is at work.
const NAP: Duration = Duration::from_micros(20);

/// Device time is told from an event; one this old is replaced, since times between events lose precision with distance.
const REBASE_US: f64 = 2e6;

/// What the issue thread is told.
pub(crate) enum Message<T> {
    /// Run this, lane by lane.
    Job { job: Arc<Job<T>>, lanes: Vec<Vec<Step<Recording>>>, poison: bool },
    /// Get ready for the ops of a program, with nothing under way.
    Prepare { program: Arc<Program<Op, T>>, reply: Sender<Result<(), CudaError>> },
    /// A worker ran its command.
    Done(Done),
    /// End once everything is done.
    End,
}

/// The state of the issue thread.
pub(crate) struct IssueThread<B: Backend, T: Command> {
    backend: B,
    shared: Arc<Shared>,
    workers: Workers<T>,
    lanes: Vec<LaneState<B, T>>,
    events: Events<B>,
    /// Events that nothing uses: timed ones, and cheaper ones.
    marks: Vec<B::Event>,
    fences: Vec<B::Event>,
    /// A timed event that is over, and when it was, in microseconds since the executor's epoch.
    base: Option<(B::Event, f64)>,
    /// Whether everything that was under way when a failure stopped the executor has been cleared.
    stopped: bool,
}

/// Where an error belongs.
struct Fault<T> {
    job: Arc<Job<T>>,
    index: usize,
    reason: Reason,
}

impl<B: Backend, T: Command> IssueThread<B, T> {
    /// Starts the thread and waits until the backend has started.
    ///
    /// # Errors
    /// [`ExecError::Spawn`], or [`ExecError::Device`] if the backend cannot start.
    pub(crate) fn start(
        mut backend: B,
        shared: Arc<Shared>,
        messages: Sender<Message<T>>,
        inbox: Receiver<Message<T>>,
    ) -> Result<JoinHandle<()>, ExecError> {
        let (reply, started) = std::sync::mpsc::channel();
        let workers = Workers::start(&shared, &messages)?;
        drop(messages);
        let run = move || {
            let ready = backend.start(&shared.contract.lanes).and_then(|()| {
                let event = backend.event(true)?;
                let stream = shared.contract.lanes.iter().position(|lane| check::is_stream(lane.kind));
                if let Some(stream) = stream {
                    backend.record(stream, &event)?;
                    backend.synchronize()?;
                }
                Ok(stream.map(|_| (event, shared.now_us())))
            });
            let base = match ready {
                Ok(base) => base,
                Err(error) => {
                    // The receiver waits below.
                    let _ = reply.send(Err(error));
                    return;
                }
            };
            let _ = reply.send(Ok(()));
            let stream =
                |(number, lane): (usize, &megatrain_scheduler::Lane)| check::is_stream(lane.kind).then_some(number);
            let lanes = shared.contract.lanes.iter().enumerate().map(|l| LaneState::new(stream(l))).collect();
            let thread = IssueThread {
                backend,
                shared,
                workers,
                lanes,
                events: Events::new(),
                marks: Vec::new(),
                fences: Vec::new(),
                base,
                stopped: false,
            };
            thread.serve(&inbox);
        };
        let name = "device-issue".to_owned();
        let spawned = thread::Builder::new().name(name.clone()).spawn(run);
        let thread = spawned.map_err(|error| ExecError::Spawn { what: name, cause: error.to_string() })?;
        match started.recv() {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(error)) => Err(ExecError::Device(error.to_string())),
            Err(_) => Err(ExecError::Device("the issue thread ended before it began".into())),
        }
    }

    fn serve(mut self, inbox: &Receiver<Message<T>>) {
        let mut ending = false;
        let mut last_progress = Instant::now();
        loop {
            let mut moved = false;
            while let Ok(message) = inbox.try_recv() {
                moved = true;
                ending |= self.take(message);
            }
            if !self.stopped {
                match self.advance() {
                    Ok(advanced) => moved |= advanced,
                    Err(fault) => self.fail(fault),
                }
            }
            if self.shared.failure.stopped() {
                self.clear(inbox, &mut ending);
            }
            if moved {
                last_progress = Instant::now();
                continue;
            }
            let idle = self.lanes.iter().all(LaneState::is_idle);
            if idle && ending {
                return;
            }
            let on_device = self.lanes.iter().any(|lane| !lane.pending.is_empty());
            let message = match on_device {
                true if last_progress.elapsed() < SPIN => {
                    std::hint::spin_loop();
                    continue;
                }
                true => inbox.recv_timeout(NAP),
                // Only a message can change anything.
                false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(message) => {
                    ending |= self.take(message);
                    last_progress = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => ending = true,
            }
        }
    }

    /// Takes a message; `true` if it was the last.
    fn take(&mut self, message: Message<T>) -> bool {
        match message {
            Message::Job { job, lanes, poison } => {
                if poison
                    && !self.stopped
                    && let Err(error) = self.poison()
                {
                    self.fail(Fault { job: job.clone(), index: 0, reason: device(error) });
                }
                for (state, steps) in self.lanes.iter_mut().zip(lanes) {
                    if !steps.is_empty() {
                        state.queue.extend(steps.into_iter().map(|step| Item::Step(job.clone(), step)));
                        state.queue.push_back(Item::End(job.clone()));
                    }
                }
            }
            Message::Prepare { program, reply } => {
                let answer = self.prepare(&program);
                // Who asked waits for the answer, unless its thread panicked.
                let _ = reply.send(answer);
            }
            Message::Done(done) => self.done(done),
            Message::End => return true,
        }
        false
    }

    /// Fills what is undefined when a program starts, with nothing under way.
    fn poison(&mut self) -> Result<(), CudaError> {
        let shared = self.shared.clone();
        for (i, spec) in shared.contract.regions.iter().enumerate().filter(|(_, spec)| !spec.defined_at_entry) {
            let span = megatrain_base::Span::new(megatrain_base::RegionId(i as u32), 0, spec.len_bytes);
            let address = shared.memory.resolve(&span);
            if let (true, Some(stream)) = (shared.on_device(&span), self.lanes.iter().find_map(|lane| lane.stream)) {
                // SAFETY: the range is the region's, and nothing is under way.
                unsafe { self.backend.poison(stream, address as u64, spec.len_bytes) }?;
            } else if spec.space == megatrain_scheduler::Space::Host {
                // SAFETY: the range is the region's, initialised, and nothing is under way.
                unsafe { std::ptr::write_bytes(address, 0xff, spec.len_bytes as usize) };
            }
        }
        self.backend.synchronize()
    }

    fn prepare(&mut self, program: &Program<Op, T>) -> Result<(), CudaError> {
        let op = |entry: &megatrain_scheduler::Entry<Op, T>| match &entry.cmd {
            Cmd::Launch(op) => Some((*op, self.addresses(op))),
            _ => None,
        };
        let ops: Vec<_> = program.commands.iter().filter_map(op).collect();
        let regions = &self.shared.contract.regions;
        let empty = |(i, spec): (usize, &megatrain_scheduler::RegionSpec)| {
            let span = megatrain_base::Span::new(megatrain_base::RegionId(i as u32), 0, spec.len_bytes);
            (self.shared.on_device(&span) && !spec.defined_at_entry)
                .then(|| (self.shared.memory.resolve(&span) as u64, spec.len_bytes))
        };
        let room = regions.iter().enumerate().filter_map(empty).max_by_key(|(_, len_bytes)| *len_bytes);
        // SAFETY: nothing is under way, and `run` waits for the answer before it issues anything; what is undefined when a
        // program starts holds nothing between programs.
        unsafe { self.backend.prepare(&ops, room.unwrap_or((0, 0))) }
    }

    fn addresses(&self, op: &Op) -> Vec<u64> {
        op.operands().iter().map(|(t, _)| self.shared.memory.resolve(&t.span) as u64).collect()
    }

    fn done(&mut self, done: Done) {
        let Done { lane, start_us, end_us, result } = done;
        let state = &mut self.lanes[lane.0 as usize];
        let Some((job, index)) = state.running.take() else { return };
        let entry = &job.program.commands[index];
        let trace = self.shared.options.trace;
        state.log.add(lane, start_us, end_us, || trace.then(|| slice(entry, start_us, end_us)));
        if let Err(reason) = result {
            self.fail(Fault { job, index, reason });
        }
    }

    /// Issues what can be issued and notes what is over; whether anything moved.
    fn advance(&mut self) -> Result<bool, Fault<T>> {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            moved |= self.poll(lane)?;
            while self.step(lane)? {
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Takes a lane's next item if it can be taken now.
    fn step(&mut self, lane: usize) -> Result<bool, Fault<T>> {
        let Some(item) = self.lanes[lane].queue.front() else { return Ok(false) };
        let (job, index) = match item {
            Item::End(job) => {
                let job = job.clone();
                let index = job.program.commands.len().saturating_sub(1);
                if self.lanes[lane].running.is_some() {
                    return Ok(false);
                }
                self.end(lane, &job).map_err(|reason| Fault { job, index, reason })?;
                self.lanes[lane].queue.pop_front();
                return Ok(true);
            }
            Item::Step(job, step) => (job.clone(), step.index),
        };
        let taken = match self.lanes[lane].stream {
            Some(stream) => self.step_stream(lane, stream, &job),
            None => self.step_host(lane, &job),
        };
        let taken = taken.map_err(|reason| Fault { job, index, reason })?;
        if taken {
            self.lanes[lane].queue.pop_front();
        }
        Ok(taken)
    }

    fn front(&self, lane: usize) -> &Step<Recording> {
        match self.lanes[lane].queue.front() {
            Some(Item::Step(_, step)) => step,
            _ => unreachable!("the caller looked"),
        }
    }

    fn step_host(&mut self, lane: usize, job: &Arc<Job<T>>) -> Result<bool, Reason> {
        if self.lanes[lane].running.is_some() {
            return Ok(false);
        }
        match &self.front(lane).action {
            Action::Wait(recording) => match recording.progress() {
                Progress::Done => Ok(true),
                Progress::Pending => Ok(false),
                Progress::Issued(index) => self.backend.is_done(self.events.event(index)).map_err(device),
            },
            Action::Record(recording) => {
                recording.set_done();
                Ok(true)
            }
            Action::Run => {
                let index = self.front(lane).index;
                self.workers.send(LaneId(lane as u16), job.clone(), index);
                self.lanes[lane].running = Some((job.clone(), index));
                Ok(true)
            }
        }
    }

    fn step_stream(&mut self, lane: usize, stream: usize, job: &Arc<Job<T>>) -> Result<bool, Reason> {
        match &self.front(lane).action {
            Action::Wait(recording) => {
                let recording = recording.clone();
                match recording.progress() {
                    Progress::Done => Ok(true),
                    Progress::Pending => Ok(false),
                    Progress::Issued(index) if self.events.stream(index) == stream => Ok(true),
                    Progress::Issued(index) => {
                        self.close(lane)?;
                        self.backend.wait(stream, self.events.event(index)).map_err(device)?;
                        Ok(true)
                    }
                }
            }
            Action::Record(recording) => {
                let recording = recording.clone();
                self.events.record(&mut self.backend, stream, &recording).map_err(device)?;
                Ok(true)
            }
            Action::Run => {
                if self.lanes[lane].in_flight >= WINDOW {
                    return Ok(false);
                }
                let index = self.front(lane).index;
                self.issue(lane, stream, job, index)?;
                Ok(true)
            }
        }
    }

    fn issue(&mut self, lane: usize, stream: usize, job: &Arc<Job<T>>, index: usize) -> Result<(), Reason> {
        self.open(lane, stream, job, index)?;
        let shared = self.shared.clone();
        let cmd = &job.program.commands[index].cmd;
        if let Some(time) = shared.options.delay.as_ref().map(|delay| delay.of(LaneId(lane as u16))) {
            self.backend.delay(stream, time).map_err(device)?;
        }
        if shared.options.poison {
            for span in check::written(cmd).filter(|span| shared.on_device(span)) {
                let address = shared.memory.resolve(&span) as u64;
                // SAFETY: as for the command, which does not read what it declares `Write`.
                unsafe { self.backend.poison(stream, address, span.len_bytes) }.map_err(device)?;
            }
        }
        let address = |span: &megatrain_base::Span| shared.memory.resolve(span) as u64;
        match cmd {
            Cmd::Copy { src, dst } => {
                // SAFETY: both spans lie inside their regions (`megatrain_exec::check`), one of them on the device
                // (`check::spaces`); the program is verified and keeps its contract, so whatever conflicts is ordered by
                // the events that this thread honours.
                unsafe { self.backend.copy(stream, address(dst), address(src), src.len_bytes) }.map_err(device)?;
            }
            Cmd::Collective(collective) => {
                if let Ok(Some((src, dst))) = identity(collective) {
                    // SAFETY: as above.
                    unsafe { self.backend.copy(stream, address(&dst), address(&src), src.len_bytes) }
                        .map_err(device)?;
                }
            }
            Cmd::Launch(op) => {
                let addresses = self.addresses(op);
                // SAFETY: as above, and `check` accepted the op; its operands are on the device.
                unsafe { self.backend.launch(stream, op, &addresses) }.map_err(device)?;
            }
            Cmd::Host(_) | Cmd::Record(_) | Cmd::Wait(_) => unreachable!("refused on streams, or handled before"),
        }
        if shared.options.debug_sync {
            self.backend.synchronize().map_err(device)?;
        }
        let state = &mut self.lanes[lane];
        state.in_flight += 1;
        state.unfenced += 1;
        if shared.options.trace {
            self.close(lane)?;
        }
        if self.lanes[lane].unfenced >= FENCE {
            self.fence(lane, stream)?;
        }
        Ok(())
    }

    /// Begins a segment unless one is open.
    fn open(&mut self, lane: usize, stream: usize, job: &Arc<Job<T>>, index: usize) -> Result<(), Reason> {
        if let Some(segment) = &mut self.lanes[lane].open {
            segment.index = index;
            return Ok(());
        }
        let start = self.mark(stream)?;
        self.lanes[lane].open = Some(Segment { job: job.clone(), index, start });
        Ok(())
    }

    /// Ends the open segment.
    fn close(&mut self, lane: usize) -> Result<(), Reason> {
        let state = &mut self.lanes[lane];
        let (Some(segment), Some(stream)) = (state.open.take(), state.stream) else { return Ok(()) };
        let end = self.mark(stream)?;
        self.lanes[lane].pending.push_back(Pending::Segment { segment, end });
        Ok(())
    }

    fn mark(&mut self, stream: usize) -> Result<B::Event, Reason> {
        let event = self.marks.pop().map_or_else(|| self.backend.event(true), Ok).map_err(device)?;
        self.backend.record(stream, &event).map_err(device)?;
        Ok(event)
    }

    fn fence_event(&mut self, stream: usize) -> Result<B::Event, Reason> {
        let event = self.fences.pop().map_or_else(|| self.backend.event(false), Ok).map_err(device)?;
        self.backend.record(stream, &event).map_err(device)?;
        Ok(event)
    }

    fn fence(&mut self, lane: usize, stream: usize) -> Result<(), Reason> {
        let event = self.fence_event(stream)?;
        let state = &mut self.lanes[lane];
        let commands = std::mem::take(&mut state.unfenced);
        state.pending.push_back(Pending::Fence { event, commands });
        Ok(())
    }

    /// The job has nothing more on this lane.
    fn end(&mut self, lane: usize, job: &Arc<Job<T>>) -> Result<(), Reason> {
        match self.lanes[lane].stream {
            None => job.state.part_done(std::mem::take(&mut self.lanes[lane].log)),
            Some(stream) => {
                self.close(lane)?;
                self.fence(lane, stream)?;
                let event = self.fence_event(stream)?;
                self.lanes[lane].pending.push_back(Pending::End { event, job: job.clone() });
            }
        }
        Ok(())
    }

    /// Takes what is over on a stream.
    fn poll(&mut self, lane: usize) -> Result<bool, Fault<T>> {
        let mut moved = false;
        while let Some(pending) = self.lanes[lane].pending.front() {
            let event = match pending {
                Pending::Fence { event, .. } | Pending::End { event, .. } => event,
                Pending::Segment { end, .. } => end,
            };
            match self.backend.is_done(event) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(self.asynchronous(lane, error)),
            }
            moved = true;
            match self.lanes[lane].pending.pop_front() {
                Some(Pending::Fence { event, commands }) => {
                    self.lanes[lane].in_flight -= commands;
                    self.fences.push(event);
                }
                Some(Pending::End { event, job }) => {
                    self.fences.push(event);
                    job.state.part_done(std::mem::take(&mut self.lanes[lane].log));
                }
                Some(Pending::Segment { segment, end }) => self.note(lane, segment, end)?,
                None => {}
            }
        }
        Ok(moved)
    }

    /// Notes the times of a segment that is over.
    fn note(&mut self, lane: usize, segment: Segment<B::Event, T>, end: B::Event) -> Result<(), Fault<T>> {
        let Segment { job, index, start } = segment;
        let Some((base, base_us)) = self.base.take() else { return Ok(()) };
        let times = self
            .backend
            .since_us(&base, &start)
            .and_then(|since| Ok((base_us + since, self.backend.since_us(&start, &end)?)));
        let (start_us, took_us) = match times {
            Ok(times) => times,
            Err(error) => return Err(Fault { job, index, reason: device(error) }),
        };
        let end_us = start_us + took_us;
        let entry = &job.program.commands[index];
        let trace = self.shared.options.trace;
        self.lanes[lane]
            .log
            .add(LaneId(lane as u16), start_us, end_us, || trace.then(|| slice(entry, start_us, end_us)));
        self.marks.push(start);
        if end_us - base_us > REBASE_US {
            self.marks.push(base);
            self.base = Some((end, end_us));
        } else {
            self.marks.push(end);
            self.base = Some((base, base_us));
        }
        Ok(())
    }

    /// An error that a query brought: some command on the device failed, not later than the oldest that is known to be under
    /// way here.
    fn asynchronous(&self, lane: usize, error: CudaError) -> Fault<T> {
        let oldest = self.lanes[lane].pending.iter().find_map(|pending| match pending {
            Pending::Segment { segment, .. } => Some((segment.job.clone(), segment.index)),
            Pending::End { job, .. } => Some((job.clone(), job.program.commands.len().saturating_sub(1))),
            Pending::Fence { .. } => None,
        });
        let text = format!(
            "the device reports a fault of a command issued up to here: {error}. With --debug-sync the device is waited for \
             after every command, and the one at fault is named"
        );
        match oldest {
            Some((job, index)) => Fault { job, index, reason: Reason::Device(text) },
            None => unreachable!("a fence lies before its job's end"),
        }
    }

    fn fail(&mut self, fault: Fault<T>) {
        let Fault { job, index, reason } = fault;
        job.state.mark_incomplete();
        let program = job.state.program.clone();
        let place = place(&self.shared.contract, &job.program.commands[index]);
        self.shared.failure.store(ExecError::Failed { program, place, reason });
    }

    /// After a failure: waits for what is under way, and gives up the rest. No host task starts any more.
    fn clear(&mut self, inbox: &Receiver<Message<T>>, ending: &mut bool) {
        self.stopped = true;
        while self.lanes.iter().any(|lane| lane.running.is_some()) {
            match inbox.recv() {
                Ok(message) => *ending |= self.take(message),
                Err(_) => break,
            }
        }
        // Its error is no news: a failure is what brought us here.
        let whole = self.backend.synchronize().is_ok();
        for lane in &mut self.lanes {
            lane.open = None;
            (lane.in_flight, lane.unfenced) = (0, 0);
            let mut log = std::mem::take(&mut lane.log);
            for pending in lane.pending.drain(..) {
                if let Pending::End { job, .. } = pending {
                    if !whole {
                        job.state.mark_incomplete();
                    }
                    job.state.part_done(std::mem::take(&mut log));
                }
            }
            for item in lane.queue.drain(..) {
                match item {
                    Item::Step(job, Step { action: Action::Run, .. }) => job.state.mark_incomplete(),
                    Item::Step(_, Step { action: Action::Record(recording), .. }) => recording.set_done(),
                    Item::Step(_, Step { action: Action::Wait(_), .. }) => {}
                    Item::End(job) => job.state.part_done(std::mem::take(&mut log)),
                }
            }
        }
    }
}

fn slice<T: Command>(entry: &megatrain_scheduler::Entry<Op, T>, start_us: f64, end_us: f64) -> Slice {
    Slice { lane: entry.lane, label: entry.label, name: entry.cmd.name(), start_us, end_us, work: entry.cmd.work() }
}
