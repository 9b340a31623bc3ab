//! [`CpuExecutor`]: memory, threads and the order of issue.

use crate::event::Event;
use crate::job::{Job, LaneWork};
use crate::shared::Shared;
use crate::shuffle::Shuffler;
use crate::threads::LaneThreads;
use crate::{ExecutorOptions, Mode};
use megatrain_base::{Command, Element, Span, Tensor};
use megatrain_exec::{
    Drive, ExecError, Executor, FirstFailure, Issuer, Log, Memory, RegionMemory, RunState, Step, Ticket, check,
};
use megatrain_ops::Op;
use megatrain_scheduler::{Contract, HostTasks, Program};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Runs programs of one contract on CPU threads.
///
/// Safe whatever the program: spans are checked before anything runs, and a command whose bytes another one holds is
/// refused as a race. A program that passed `megatrain_scheduler::verify` never meets that.
///
/// After a failure the executor stops for good, since memory may be half written. Dropping it finishes what was issued.
/// Host tasks must not call the executor that runs them.
pub struct CpuExecutor<T: Command> {
    engine: Engine<T>,
    issued: Mutex<Issued>,
    shared: Arc<Shared>,
}

enum Engine<T: Command> {
    Inline,
    Threads(LaneThreads<T>),
    Shuffle(Arc<Shuffler<T>>),
}

struct Issued {
    issuer: Issuer<Event>,
    unfinished: Vec<Arc<RunState>>,
}

impl Issued {
    fn is_idle(&mut self) -> bool {
        self.unfinished.retain(|run| !run.is_finished());
        self.unfinished.is_empty()
    }
}

impl<T: Command> CpuExecutor<T> {
    /// An executor over these blocks, in the order of the contract's regions.
    ///
    /// # Errors
    /// [`ExecError::Memory`] if a block is missing, too short, misaligned or overlaps another; [`ExecError::Spawn`] if the
    /// threads cannot be started.
    pub fn new(
        contract: Arc<Contract>,
        regions: Vec<RegionMemory>,
        options: ExecutorOptions,
    ) -> Result<Self, ExecError> {
        let memory = Memory::new(&contract, regions)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("compute{i}"))
            .build()
            .map_err(|error| ExecError::Spawn {
                what: format!("{} compute threads", options.threads),
                cause: error.to_string(),
            })?;
        let issued = Issued { issuer: Issuer::new(&contract), unfinished: Vec::new() };
        let ExecutorOptions { mode, poison, trace, delay, .. } = options;
        let (claims, failure, epoch) = (Default::default(), Arc::new(FirstFailure::default()), Instant::now());
        let shared = Arc::new(Shared { contract, memory, claims, failure, pool, epoch, poison, trace, delay });
        let engine = match mode {
            Mode::Inline => Engine::Inline,
            Mode::Threads => Engine::Threads(LaneThreads::start(&shared)?),
            Mode::Shuffle(seed) => Engine::Shuffle(Arc::new(Shuffler::new(&shared, seed))),
        };
        Ok(CpuExecutor { engine, issued: Mutex::new(issued), shared })
    }

    /// Issues a program. Programs take effect in the order of issue. How long this call takes depends on the [`Mode`].
    ///
    /// # Errors
    /// If the program does not fit the contract or cannot run on one rank (nothing of it has run then, and the executor
    /// goes on), or if an earlier program failed. A failure of this program is told by [`Ticket::wait`].
    pub fn run(&self, program: Arc<Program<Op, T>>, tasks: Arc<dyn HostTasks<T>>) -> Result<Ticket, ExecError> {
        let name: Arc<str> = program.name.as_str().into();
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = self.shared.failure.get() {
            return Err(ExecError::Stopped { program: name, first });
        }
        check(&self.shared.contract, &self.shared.memory, &program, &name)?;
        if issued.is_idle() && self.shared.poison {
            // SAFETY: every issued program is finished, and the lock keeps others from being issued.
            unsafe { self.shared.memory.poison(&self.shared.contract) };
        }
        let steps = issued.issuer.resolve(&program);
        let state = self.start(program, tasks, name, steps);
        issued.unfinished.push(state.clone());
        let driver = match &self.engine {
            Engine::Shuffle(shuffler) => Some(shuffler.clone() as Arc<dyn Drive>),
            Engine::Inline | Engine::Threads(_) => None,
        };
        Ok(Ticket::new(state, driver))
    }

    fn start(
        &self,
        program: Arc<Program<Op, T>>,
        tasks: Arc<dyn HostTasks<T>>,
        name: Arc<str>,
        steps: Vec<Step<Event>>,
    ) -> Arc<RunState> {
        let parts = match &self.engine {
            Engine::Inline => 1,
            Engine::Threads(_) | Engine::Shuffle(_) => {
                let mut busy = vec![false; self.shared.contract.lanes.len()];
                steps.iter().for_each(|step| busy[step.lane.0 as usize] = true);
                busy.into_iter().filter(|&busy| busy).count()
            }
        };
        let state = Arc::new(RunState::new(
            name,
            self.shared.contract.clone(),
            self.shared.failure.clone(),
            self.shared.trace,
            parts,
        ));
        let job = Arc::new(Job { program, tasks, shared: self.shared.clone(), state: state.clone() });
        match &self.engine {
            Engine::Inline => self.shared.pool.install(|| {
                let mut log = Log::default();
                steps.iter().for_each(|step| job.step(step, &mut log));
                job.state.part_done(log);
            }),
            Engine::Threads(lanes) => {
                for (lane, work) in LaneWork::split(&job, steps) {
                    lanes.send(lane, work);
                }
            }
            Engine::Shuffle(shuffler) => shuffler.enqueue(LaneWork::split(&job, steps)),
        }
        state
    }

    /// Returns once every issued program is finished, failed ones included.
    pub fn wait_idle(&self) {
        drop(self.lock_idle());
    }

    /// Locks the order of issue with nothing in flight.
    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Issued> {
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Engine::Shuffle(shuffler) = &self.engine {
            shuffler.drain();
        }
        issued.unfinished.drain(..).for_each(|run| run.wait());
        issued
    }

    /// The elements of a tensor in host memory, read once every issued program is finished.
    ///
    /// # Errors
    /// [`ExecError::Memory`] if the tensor leaves its region or has another dtype than `E`.
    pub fn read<E: Element>(&self, tensor: &Tensor) -> Result<Vec<E>, ExecError> {
        let executor: &dyn Executor<T> = self;
        executor.read(tensor)
    }

    /// Overwrites a tensor in host memory once every issued program is finished.
    ///
    /// # Errors
    /// As [`CpuExecutor::read`], and if `values` has another length.
    pub fn write<E: Element>(&self, tensor: &Tensor, values: &[E]) -> Result<(), ExecError> {
        let executor: &dyn Executor<T> = self;
        executor.write(tensor, values)
    }
}

impl<T: Command> Executor<T> for CpuExecutor<T> {
    fn run(&self, program: Arc<Program<Op, T>>, tasks: Arc<dyn HostTasks<T>>) -> Result<Ticket, ExecError> {
        CpuExecutor::run(self, program, tasks)
    }

    fn wait_idle(&self) {
        CpuExecutor::wait_idle(self);
    }

    fn read_bytes(&self, span: &Span, out: &mut [u8]) -> Result<(), ExecError> {
        let _idle = self.lock_idle();
        // SAFETY: every region is memory of the host here, and nothing runs while the lock is held.
        unsafe { self.shared.memory.read(&self.shared.contract, span, out) }
    }

    fn write_bytes(&self, span: &Span, bytes: &[u8]) -> Result<(), ExecError> {
        let _idle = self.lock_idle();
        // SAFETY: every region is memory of the host here, and nothing runs while the lock is held.
        unsafe { self.shared.memory.write(&self.shared.contract, span, bytes) }
    }
}

impl<T: Command> Drop for CpuExecutor<T> {
    fn drop(&mut self) {
        if let Engine::Shuffle(shuffler) = &self.engine {
            shuffler.drain();
        }
    }
}

impl<T: Command> fmt::Debug for CpuExecutor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.engine {
            Engine::Inline => "inline",
            Engine::Threads(_) => "threads",
            Engine::Shuffle(_) => "shuffle",
        };
        write!(f, "CpuExecutor({mode}, {:?})", self.shared.memory)
    }
}
