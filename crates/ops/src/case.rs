//! [`Case`]: one conformance case of an op: arguments on symbolic regions, and what to fill the inputs with.

use crate::Op;
use megatrain_base::{DType, RegionId, Shape, Span, Tensor};

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

impl Case {
    /// A case whose inputs are all standard normal.
    pub fn new(name: impl Into<String>, op: impl Into<Op>) -> Case {
        Case { name: name.into(), op: op.into(), fills: Vec::new() }
    }

    /// The same case with another fill for one operand.
    pub fn fill(mut self, operand: Tensor, fill: Fill) -> Case {
        self.fills.push((operand.span, fill));
        self
    }
}

/// Hands out operands of a case, each in a region of its own.
#[derive(Clone, Debug, Default)]
pub struct Places {
    next: u32,
}

impl Places {
    /// A tensor in a region that no other tensor of these places has.
    pub fn tensor(&mut self, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        self.next += 1;
        Tensor::new(RegionId(self.next - 1), 0, dtype, shape)
    }
}
