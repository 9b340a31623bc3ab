//! [`Event`]: one recording of an event. Set once, waited on by any number of lanes.

use std::sync::{Condvar, Mutex, PoisonError};

/// One `Record` of a program that was issued.
#[derive(Debug, Default)]
pub(crate) struct Event {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    /// Marks the event complete and wakes who waits.
    pub(crate) fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Whether it is complete.
    pub(crate) fn is_set(&self) -> bool {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once it is complete.
    pub(crate) fn wait(&self) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        while !*set {
            set = self.changed.wait(set).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
