//! What executors have in common: the trait through which a trainer drives one, a region's memory, the meaning of events
//! from program to program, failures, tickets and reports. How a command is run is each executor's own business.

mod delay;
mod error;
mod executor;
mod failure;
mod issue;
mod memory;
mod run;

pub use delay::Delay;
pub use error::{ExecError, Place, Race, Reason};
pub use executor::Executor;
pub use failure::FirstFailure;
pub use issue::{Action, Issuer, Step, accesses, check, identity, place};
pub use memory::{Memory, RegionMemory};
pub use run::{Drive, Log, RunReport, RunState, Ticket};
