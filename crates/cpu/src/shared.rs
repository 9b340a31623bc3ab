//! [`Shared`]: what all commands of an executor use: memory, claims, threads, clock and the first failure.

use crate::claims::Claims;
use crate::memory::Memory;
use crate::{Delay, ExecError};
use megatrain_scheduler::Contract;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The part of an executor that lanes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) contract: Arc<Contract>,
    pub(crate) memory: Memory,
    pub(crate) claims: Claims,
    pub(crate) failure: FirstFailure,
    /// Where kernels and host tasks run, so that every `rayon` call inside them uses these threads.
    pub(crate) pool: rayon::ThreadPool,
    pub(crate) epoch: Instant,
    pub(crate) poison: bool,
    pub(crate) trace: bool,
    pub(crate) delay: Option<Delay>,
}

impl Shared {
    /// Microseconds since the executor was made.
    pub(crate) fn now_us(&self) -> f64 {
        self.epoch.elapsed().as_secs_f64() * 1e6
    }
}

/// The failure that stopped the executor; later ones are consequences.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure {
    stopped: AtomicBool,
    first: Mutex<Option<Arc<ExecError>>>,
}

impl FirstFailure {
    /// Stores a failure unless there is one.
    pub(crate) fn store(&self, error: ExecError) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| Arc::new(error));
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether there is one. A lane that waited for an event of the failed command sees `true`.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self) -> Option<Arc<ExecError>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
