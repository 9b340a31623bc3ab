//! [`Delay`]: lanes made slow on purpose, for tests.

use megatrain_scheduler::LaneId;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Makes lanes slow: every command waits this long before it works.
#[derive(Clone)]
pub struct Delay(Arc<dyn Fn(LaneId) -> Duration + Send + Sync>);

impl Delay {
    /// The time for each command of a lane.
    pub fn new(per_command: impl Fn(LaneId) -> Duration + Send + Sync + 'static) -> Self {
        Delay(Arc::new(per_command))
    }

    /// For one command of this lane.
    pub fn of(&self, lane: LaneId) -> Duration {
        (self.0)(lane)
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delay(..)")
    }
}
