//! [`FirstFailure`]: what stopped an executor.

use crate::ExecError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The failure that stopped the executor; later ones are consequences.
#[derive(Debug, Default)]
pub struct FirstFailure {
    stopped: AtomicBool,
    first: Mutex<Option<Arc<ExecError>>>,
}

impl FirstFailure {
    /// Stores a failure unless there is one.
    pub fn store(&self, error: ExecError) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| Arc::new(error));
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether there is one. A lane that waited for an event of the failed command sees `true`.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The failure.
    pub fn get(&self) -> Option<Arc<ExecError>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
