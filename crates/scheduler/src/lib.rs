//! Programs as data: commands on lanes with explicit events, and what can be done with them without running them.
//!
//! Nothing here knows a pointer, a stream, an op or a model: [`Program`] is generic over the op type `O` and the host
//! task type `T`, both [`megatrain_base::Command`]s.

pub mod host;
pub mod program;

pub use host::{HostTasks, TaskError};
pub use program::{
    Boundary, Cmd, Collective, Contract, Entry, EventId, Label, Lane, LaneId, LaneKind, Phase, Program, RegionSpec,
    Space,
};
