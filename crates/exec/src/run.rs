//! [`Ticket`]: the handle of an issued program. [`RunReport`]: what its run took.

use crate::{ExecError, FirstFailure};
use megatrain_scheduler::{Contract, LaneId, timeline::Slice, timeline::Timeline};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What a run took.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Start and end of every command in microseconds since the executor was made, by start; if `trace` is on.
    pub timeline: Option<Timeline>,
    /// From the start of the first command to the end of the last.
    pub seconds: f64,
    /// Seconds that each lane spent in commands, by [`LaneId`].
    pub lane_busy_seconds: Vec<f64>,
}

/// What commands took, collected without locks and merged when a lane is through.
#[derive(Debug, Default)]
pub struct Log {
    slices: Vec<Slice>,
    busy_us: Vec<f64>,
    bounds_us: Option<(f64, f64)>,
}

impl Log {
    /// Adds one command.
    pub fn add(&mut self, lane: LaneId, start_us: f64, end_us: f64, slice: impl FnOnce() -> Option<Slice>) {
        let lane = lane.0 as usize;
        self.busy_us.resize(self.busy_us.len().max(lane + 1), 0.0);
        self.busy_us[lane] += end_us - start_us;
        self.widen(start_us, end_us);
        self.slices.extend(slice());
    }

    fn widen(&mut self, start_us: f64, end_us: f64) {
        let (first, last) = self.bounds_us.unwrap_or((start_us, end_us));
        self.bounds_us = Some((first.min(start_us), last.max(end_us)));
    }

    fn merge(&mut self, other: Log) {
        self.slices.extend(other.slices);
        self.busy_us.resize(self.busy_us.len().max(other.busy_us.len()), 0.0);
        self.busy_us.iter_mut().zip(&other.busy_us).for_each(|(sum, busy)| *sum += busy);
        if let Some((first, last)) = other.bounds_us {
            self.widen(first, last);
        }
    }
}

#[derive(Debug)]
struct Progress {
    open_parts: usize,
    log: Log,
}

/// How far one issued program is.
#[derive(Debug)]
pub struct RunState {
    /// The program's name.
    pub program: Arc<str>,
    contract: Arc<Contract>,
    failure: Arc<FirstFailure>,
    trace: bool,
    progress: Mutex<Progress>,
    finished: Condvar,
    incomplete: AtomicBool,
}

impl RunState {
    /// A run that is finished once [`RunState::part_done`] was called `parts` times.
    pub fn new(
        program: Arc<str>,
        contract: Arc<Contract>,
        failure: Arc<FirstFailure>,
        trace: bool,
        parts: usize,
    ) -> Self {
        RunState {
            program,
            contract,
            failure,
            trace,
            progress: Mutex::new(Progress { open_parts: parts, log: Log::default() }),
            finished: Condvar::new(),
            incomplete: AtomicBool::new(false),
        }
    }

    /// Says that a command failed or was left out.
    pub fn mark_incomplete(&self) {
        self.incomplete.store(true, Ordering::Relaxed);
    }

    /// Says that one part (a lane's commands, or all of them) is through.
    pub fn part_done(&self, log: Log) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.log.merge(log);
        progress.open_parts -= 1;
        if progress.open_parts == 0 {
            self.finished.notify_all();
        }
    }

    /// Whether every command was run or left out.
    pub fn is_finished(&self) -> bool {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).open_parts == 0
    }

    /// Returns once every command was run or left out.
    pub fn wait(&self) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        while progress.open_parts > 0 {
            progress = self.finished.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn outcome(&self) -> Result<RunReport, ExecError> {
        if self.incomplete.load(Ordering::Relaxed)
            && let Some(first) = self.failure.get()
        {
            return Err(match &*first {
                ExecError::Failed { program, .. } if !Arc::ptr_eq(program, &self.program) => {
                    ExecError::Stopped { program: self.program.clone(), first }
                }
                _ => (*first).clone(),
            });
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let lanes = &self.contract.lanes;
        let log = &mut progress.log;
        log.busy_us.resize(lanes.len(), 0.0);
        log.slices.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(a.lane.cmp(&b.lane)));
        Ok(RunReport {
            timeline: self.trace.then(|| Timeline { lanes: lanes.clone(), slices: log.slices.clone() }),
            seconds: log.bounds_us.map_or(0.0, |(first, last)| (last - first) / 1e6),
            lane_busy_seconds: log.busy_us.iter().map(|us| us / 1e6).collect(),
        })
    }
}

/// Does the work of a run that no thread does by itself.
pub trait Drive: Send + Sync {
    /// Works until the run is finished.
    fn drive(&self, run: &RunState);
}

/// The handle of an issued program. Dropping it cancels nothing: the program runs on, and if it fails the next
/// [`crate::Executor::run`] says so.
#[must_use = "only `wait` tells whether the program succeeded"]
pub struct Ticket {
    state: Arc<RunState>,
    driver: Option<Arc<dyn Drive>>,
}

impl Ticket {
    /// The handle of this run; `driver` if no thread works on it by itself.
    pub fn new(state: Arc<RunState>, driver: Option<Arc<dyn Drive>>) -> Self {
        Ticket { state, driver }
    }

    /// Returns once every command of the program is done. Must not be called from inside a host task.
    ///
    /// # Errors
    /// The executor's first failure, if a command of this program failed or was left out because of it.
    pub fn wait(self) -> Result<RunReport, ExecError> {
        if let Some(driver) = &self.driver {
            driver.drive(&self.state);
        }
        self.state.wait();
        self.state.outcome()
    }

    /// Whether `wait` would return at once.
    pub fn is_finished(&self) -> bool {
        self.state.is_finished()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket(`{}`, finished: {})", self.state.program, self.is_finished())
    }
}
