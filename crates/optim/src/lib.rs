//! AdamW over host memory with true fp32 masters, the global gradient norm, and learning-rate schedules.
//!
//! Everything here is a pure function over slices, with the same bits on every instruction set ([`Isa`]) and for every
//! number of threads. It keeps no state, allocates no tensors, knows no model and no device, and never decides *when*
//! an update runs: that is the program's business.

pub mod adamw;
pub mod error;
pub mod isa;
pub mod norm;
pub mod schedule;
pub mod slab;

mod kernel;
mod simd;

pub use adamw::{AdamW, Params, StepScalars, Weights, update, update_f32, update_split};
pub use error::OptimError;
pub use isa::Isa;
pub use norm::{SkipReason, SquareSum, Verdict, clip_factor, global_norm};
pub use schedule::{DecayCurve, LrSchedule, ScheduleError, ScheduleKind, ScheduleOptions};
pub use slab::{update_slab, update_slab_with};

use megatrain_base::bf16;
use std::ops::Range;

/// Elements of one unit of parallel work. Chunks are cut by this number and never by the number of threads, so the
/// order of every sum is fixed.
pub const CHUNK_ELEMS: usize = 1 << 16;

/// Gradients as they arrive on the host.
#[derive(Clone, Copy, Debug)]
pub enum Grad<'a> {
    /// 32-bit gradients.
    F32(&'a [f32]),
    /// bf16 gradients, widened exactly.
    Bf16(&'a [bf16]),
}

impl<'a> Grad<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Grad::F32(g) => g.len(),
            Grad::Bf16(g) => g.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of them; as with slices, a range that does not fit panics.
    pub fn slice(&self, range: Range<usize>) -> Grad<'a> {
        match self {
            Grad::F32(g) => Grad::F32(&g[range]),
            Grad::Bf16(g) => Grad::Bf16(&g[range]),
        }
    }
}

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
