//! [`Shared`]: what all commands of an executor use: memory, claims, threads, clock and the first failure.

use crate::claims::Claims;
use megatrain_exec::{Delay, FirstFailure, Memory};
use megatrain_scheduler::Contract;
use std::sync::Arc;
use std::time::Instant;

/// The part of an executor that lanes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) contract: Arc<Contract>,
    pub(crate) memory: Memory,
    pub(crate) claims: Claims,
    pub(crate) failure: Arc<FirstFailure>,
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
