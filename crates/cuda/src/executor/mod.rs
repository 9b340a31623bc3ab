//! [`StreamExecutor`]: runs programs on a device that works through streams.
//!
//! | file | does |
//! |---|---|
//! | `backend` | what is asked of a device: streams, events, copies, launches |
//! | `gpu` | that on an NVIDIA GPU |
//! | `check` | what of a program can run here |
//! | `issue` | the issue thread: a cursor a lane, who waits for whom |
//! | `lane` | a lane's queue, and what of it is under way |
//! | `events` | recordings, and the device events behind them |
//! | `worker` | a thread for each host lane, which runs host tasks |
//!
//! One thread issues everything. It keeps a cursor per lane: a command of a device lane is issued once the records it
//! waits for are issued (streams wait for one another by themselves) and once what it waits for on host lanes is *done*;
//! a host task is handed to its lane's thread once the device events it waits for are over, which the issue thread polls.
//! The earliest command that is not issued can always go on, so nothing deadlocks; nothing depends on blocking host
//! functions or on memory that streams poll.

mod backend;
mod check;
mod events;
mod gpu;
mod issue;
mod lane;
mod worker;

pub use backend::Backend;
pub use gpu::{Gpu, Preparation};

use crate::CudaError;
use issue::{IssueThread, Message};
use megatrain_base::{Command, Span};
use megatrain_exec::{Delay, ExecError, Executor, FirstFailure, Issuer, Memory, RegionMemory, RunState, Step, Ticket};
use megatrain_ops::Op;
use megatrain_scheduler::{Contract, HostTasks, Program, Space, verify};
use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

/// How programs are run, never what they compute: bits are the same under every option.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// Fills undefined regions with NaN when a program is issued to an idle executor, and what a command declares `Write`
    /// before the command runs. For tests; costs memory traffic.
    pub poison: bool,
    /// Whether reports carry a timeline: two events for every command instead of two for every stretch between waits.
    pub trace: bool,
    /// Threads that host tasks compute with; 0 for as many as the machine has.
    pub threads: usize,
    /// Slows lanes down, for tests.
    pub delay: Option<Delay>,
    /// Waits for the device after every command, so that a fault is told with the command that caused it. Slow.
    pub debug_sync: bool,
}

/// What the issue thread and the workers use.
#[derive(Debug)]
pub(crate) struct Shared {
    contract: Arc<Contract>,
    memory: Memory,
    failure: Arc<FirstFailure>,
    /// Where host tasks run, so that every `rayon` call inside them uses these threads.
    pool: rayon::ThreadPool,
    epoch: Instant,
    options: StreamOptions,
}

impl Shared {
    /// Microseconds since the executor was made.
    fn now_us(&self) -> f64 {
        self.epoch.elapsed().as_secs_f64() * 1e6
    }

    fn on_device(&self, span: &Span) -> bool {
        matches!(self.contract.regions[span.region.0 as usize].space, Space::Device(_))
    }
}

/// One issued program.
pub(crate) struct Job<T> {
    program: Arc<Program<Op, T>>,
    tasks: Arc<dyn HostTasks<T>>,
    state: Arc<RunState>,
}

/// Runs programs of one contract on a device.
///
/// Programs are verified before they run (once each), so no two commands race; what they do with memory is then as sound
/// as the ops and host tasks are. After a failure the executor stops for good, since memory may be half written. Dropping
/// it finishes what was issued. Host tasks must not call the executor that runs them.
pub struct StreamExecutor<T: Command> {
    issued: Mutex<Issued<T>>,
    messages: Sender<Message<T>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

struct Issued<T> {
    issuer: Issuer<events::Recording>,
    unfinished: Vec<Arc<RunState>>,
    /// Programs that were checked. Weak: their owners decide how long they live, and an address is not given to another
    /// program while it stands here.
    known: Vec<Weak<Program<Op, T>>>,
}

impl<T: Command> StreamExecutor<T> {
    /// An executor over these blocks, in the order of the contract's regions; those of device regions are memory of the
    /// backend's device.
    ///
    /// # Errors
    /// [`ExecError::Memory`] if a block is missing, too short, misaligned or overlaps another; [`ExecError::Spawn`] if the
    /// threads cannot be started; [`ExecError::Device`] if the device's streams cannot be made.
    pub fn new(
        backend: impl Backend,
        contract: Arc<Contract>,
        regions: Vec<RegionMemory>,
        options: StreamOptions,
    ) -> Result<Self, ExecError> {
        let memory = Memory::new(&contract, regions)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("host{i}"))
            .build()
            .map_err(|error| ExecError::Spawn {
                what: format!("{} host threads", options.threads),
                cause: error.to_string(),
            })?;
        let failure = Arc::new(FirstFailure::default());
        let issued = Issued { issuer: Issuer::new(&contract), unfinished: Vec::new(), known: Vec::new() };
        let shared = Arc::new(Shared { contract, memory, failure, pool, epoch: Instant::now(), options });
        let (messages, inbox) = channel();
        let thread = IssueThread::start(backend, shared.clone(), messages.clone(), inbox)?;
        Ok(StreamExecutor { issued: Mutex::new(issued), messages, thread: Some(thread), shared })
    }

    /// Locks the order of issue with nothing in flight.
    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Issued<T>> {
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        issued.unfinished.drain(..).for_each(|run| run.wait());
        issued
    }

    /// Checks a program that was not seen before, and lets the backend get ready for its ops, which needs a device at rest.
    fn learn(&self, issued: &mut Issued<T>, program: &Arc<Program<Op, T>>, name: &Arc<str>) -> Result<(), ExecError> {
        let refused = |what: String| ExecError::Refused { program: name.clone(), what };
        megatrain_exec::check(&self.shared.contract, &self.shared.memory, program, name)?;
        check::spaces(&self.shared.contract, program, name)?;
        verify(program).map_err(|error| refused(error.to_string()))?;
        issued.unfinished.drain(..).for_each(|run| run.wait());
        let (reply, answer) = channel();
        self.send(Message::Prepare { program: program.clone(), reply });
        // No answer: the issue thread is gone, which `run` reports by what stopped it.
        if let Ok(Err(error)) = answer.recv() {
            return Err(refused(error.to_string()));
        }
        issued.known.retain(|known| known.strong_count() > 0);
        issued.known.push(Arc::downgrade(program));
        Ok(())
    }

    fn send(&self, message: Message<T>) {
        // The thread ends only when this executor is dropped.
        let _ = self.messages.send(message);
    }

    /// # Errors
    /// [`ExecError::Memory`] if the host cannot address the span.
    fn host_only(&self, span: &Span) -> Result<(), ExecError> {
        let spec = self.shared.contract.regions.get(span.region.0 as usize);
        match spec.filter(|spec| spec.space != Space::Host) {
            None => Ok(()),
            Some(spec) => {
                let (name, space) = (&spec.name, spec.space);
                Err(ExecError::Memory(format!("region `{name}` lies in {space}, out of the host's reach")))
            }
        }
    }
}

impl<T: Command> Executor<T> for StreamExecutor<T> {
    fn run(&self, program: Arc<Program<Op, T>>, tasks: Arc<dyn HostTasks<T>>) -> Result<Ticket, ExecError> {
        let name: Arc<str> = program.name.as_str().into();
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = self.shared.failure.get() {
            return Err(ExecError::Stopped { program: name, first });
        }
        if !issued.known.iter().any(|known| known.as_ptr() == Arc::as_ptr(&program)) {
            self.learn(&mut issued, &program, &name)?;
        }
        issued.unfinished.retain(|run| !run.is_finished());
        let poison = self.shared.options.poison && issued.unfinished.is_empty();
        let steps = issued.issuer.resolve(&program);
        let mut lanes: Vec<Vec<Step<events::Recording>>> =
            self.shared.contract.lanes.iter().map(|_| Vec::new()).collect();
        for step in steps {
            lanes[step.lane.0 as usize].push(step);
        }
        let parts = lanes.iter().filter(|steps| !steps.is_empty()).count();
        let state = Arc::new(RunState::new(
            name,
            self.shared.contract.clone(),
            self.shared.failure.clone(),
            self.shared.options.trace,
            parts,
        ));
        let job = Arc::new(Job { program, tasks, state: state.clone() });
        issued.unfinished.push(state.clone());
        self.send(Message::Job { job, lanes, poison });
        Ok(Ticket::new(state, None))
    }

    fn wait_idle(&self) {
        drop(self.lock_idle());
    }

    fn read_bytes(&self, span: &Span, out: &mut [u8]) -> Result<(), ExecError> {
        self.host_only(span)?;
        let _idle = self.lock_idle();
        // SAFETY: the region is the host's, and nothing runs while the lock is held.
        unsafe { self.shared.memory.read(&self.shared.contract, span, out) }
    }

    fn write_bytes(&self, span: &Span, bytes: &[u8]) -> Result<(), ExecError> {
        self.host_only(span)?;
        let _idle = self.lock_idle();
        // SAFETY: the region is the host's, and nothing runs while the lock is held.
        unsafe { self.shared.memory.write(&self.shared.contract, span, bytes) }
    }
}

impl<T: Command> Drop for StreamExecutor<T> {
    fn drop(&mut self) {
        drop(self.lock_idle());
        self.send(Message::End);
        if let Some(thread) = self.thread.take() {
            // An error would be a panic that the thread has already printed; a drop has nobody to tell.
            let _ = thread.join();
        }
    }
}

impl<T: Command> fmt::Debug for StreamExecutor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamExecutor({:?})", self.shared.memory)
    }
}

/// The device's words as a reason.
fn device(error: CudaError) -> megatrain_exec::Reason {
    megatrain_exec::Reason::Device(error.to_string())
}
