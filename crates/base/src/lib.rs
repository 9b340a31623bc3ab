//! The vocabulary every MegaTrain crate speaks: ids, dtypes, shapes, spans, operands, slab layouts, units of measure.
//!
//! Nothing here allocates memory for tensors, orders work or computes: a [`Tensor`] says *where* bytes lie and how they
//! are typed, never holds them. Pointers appear in exactly one place, [`Operands`], which an executor fills.

pub mod command;
pub mod dtype;
pub mod ids;
pub mod master;
pub mod operands;
pub mod shape;
pub mod slab;
pub mod tensor;
pub mod units;

pub use command::{Access, Command, Work};
pub use dtype::{DType, Element};
pub use half::bf16;
pub use ids::{Rank, RegionId, UnitId};
pub use operands::Operands;
pub use shape::Shape;
pub use slab::{SlabLayout, SlabTensor};
pub use tensor::{Span, Tensor};
pub use units::{fmt_bytes, parse_bytes};
