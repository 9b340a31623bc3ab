//! The planner: from a model, a memory budget and the shape of a step to a [`Contract`](megatrain_scheduler::Contract)
//! (what memory there is) and [`Program`](megatrain_scheduler::Program)s (what happens in it, in which order).
//!
//! It decides order and addresses and nothing else: it never sees a pointer, a stream or a file, and it runs nothing.
//!
//! | file | decides |
//! |---|---|
//! | `settings` | what the user asks for |
//! | `budget` | activation levels, spilling, groups: what fits |
//! | `memory` | the regions, their addresses and the boundary events |
//! | `emission` | one template's ops with its temporaries placed, reused for every layer |
//! | `slots` | which block's weights lie in which device slot |
//! | `update` | in which order units are updated |
//! | `train`, `infer` | the programs |

mod budget;
mod emission;
mod error;
mod heap;
mod infer;
mod memory;
mod model;
mod plan;
mod settings;
mod slots;
mod task;
mod train;
mod update;
mod writer;

pub use error::PlanError;
pub use memory::{PlannedRegion, Purpose, UnitRegions};
pub use model::Model;
pub use plan::Plan;
pub use settings::{ActivationChoice, BlockChoice, Settings, SlotCount, UpdatePolicy, UpdateRates};
pub use task::HostTask;

/// The programs a plan writes.
pub type Program = megatrain_scheduler::Program<megatrain_ops::Op, HostTask>;
