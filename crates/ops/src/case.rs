//! [`Case`]: one conformance case of an op: arguments on symbolic regions, and what to fill the inputs with.

use crate::Op;
use megatrain_base::Span;

/// What an input operand is filled with before the op runs.
#[derive(Clone, PartialEq, Debug)]
pub enum Fill {
    /// Seeded normal values with this standard deviation.
    Normal(f32),
    /// These integers.
    Ints(Vec<i32>),
    /// These floats.
    Values(Vec<f32>),
    /// What another op wrote, run by its reference twin on the same inputs first (e.g. `lse` for attention's backward).
    From(Box<Op>),
}

/// One conformance case. Every operand lies in a region of its own, at offset 0.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// For messages: what is special about it.
    pub name: String,
    /// The op.
    pub op: Op,
    /// Fills by span; float inputs that are not named get `Normal(1.0)`.
    pub fills: Vec<(Span, Fill)>,
}
