//! Programs as data: commands on lanes with explicit events, and what can be done with them without running them.
//!
//! [`Builder`] takes commands in program order and derives the events from what they access; [`verify()`] proves a
//! program free of races, whoever made it. Nothing here knows a pointer, a stream, an op or a model: [`Program`] is
//! generic over the op type `O` and the host task type `T`, both [`megatrain_base::Command`]s.

pub mod builder;
mod check;
mod clock;
mod cost;
pub mod error;
pub mod host;
mod interval;
mod print;
pub mod profile;
pub mod program;
mod rendezvous;
pub mod simulate;
pub mod timeline;
pub mod traffic;
pub mod verify;

pub use builder::Builder;
pub use cost::Resource;
pub use error::{BuildError, CommandFault, ContractError, VerifyError};
pub use host::{HostTasks, TaskError};
pub use profile::{ComputeRate, MachineProfile, OpRate, ProfileError, TaskRate};
pub use program::{
    Boundary, Cmd, Collective, Contract, Entry, EventId, Label, Lane, LaneId, LaneKind, Phase, Program, RegionSpec,
    Space,
};
pub use simulate::{Simulation, Steady, simulate, simulate_sequence, steady, steady_step_us};
pub use timeline::{LaneBusy, Slice, Timeline};
pub use traffic::{LinkTraffic, Traffic, traffic, traffic_where};
pub use verify::{Proof, verify};
