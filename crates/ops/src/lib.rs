//! The ops: for each, in a file of its own, its arguments, shape checks, flops, plain reference twin and test cases.
//!
//! An op is data: typed addresses ([`megatrain_base::Tensor`]) and a few scalars. Nothing here runs fast, launches or
//! allocates device memory. The twins are the oracle that every executor's kernels are tested against, so they are
//! written for the eye, generic over the arithmetic ([`Real`]: f32, f64, or [`Tracked`] with its error bound), and free of
//! dependencies. [`harness`] does the testing.
//!
//! To add an op: one file here, its `mod` and `use` below, its name in [`list`]. See the README.

#[macro_use]
mod macros;
mod case;
mod check;
mod error;
mod memory;
mod reference;
mod tracked;

pub mod add;
pub mod attention;
pub mod bias;
pub mod cast;
pub mod cross_entropy;
pub mod gather_rows;
pub mod harness;
pub mod list;
pub mod matmul;
pub mod qk_norm;
pub mod rms_norm;
pub mod rope;
pub mod square_sum;
pub mod swiglu;

pub use case::{Case, Fill, Places};
pub use error::OpError;
pub use list::Op;
pub use macros::{OpArgs, OpSpec, OperandList};
pub use reference::{Real, RefIo, run_on};
pub use tracked::{Tracked, TrackedWide};

pub use add::Add;
pub use attention::{Attention, AttentionBackward};
pub use bias::{BiasAdd, BiasGrad};
pub use cast::Cast;
pub use cross_entropy::{CrossEntropy, CrossEntropyLoss, IGNORE_TARGET};
pub use gather_rows::GatherRows;
pub use matmul::Matmul;
pub use qk_norm::{QkNorm, QkNormBackward};
pub use rms_norm::{RmsNorm, RmsNormBackward};
pub use rope::{Rope, RopeParams, RopeScaling};
pub use square_sum::SquareSum;
pub use swiglu::{SwiGlu, SwiGluBackward};
