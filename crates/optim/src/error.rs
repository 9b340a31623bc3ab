//! What can go wrong in an update or a norm, said for people.

use thiserror::Error;

/// An error of the optimizer.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum OptimError {
    /// A setting has no meaning.
    #[error("{name} is {value}, but must be {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What would be accepted.
        expected: &'static str,
    },
    /// Two buffers of one update differ in length. Nothing was written.
    #[error("{what} has {got} elements where {expected} were expected; all buffers of one update must be equally long")]
    Length {
        /// The buffer.
        what: &'static str,
        /// Elements it should have.
        expected: usize,
        /// Elements it has.
        got: usize,
    },
    /// The tensors of a layout overlap, are out of address order, or reach beyond the slab. Nothing was written.
    #[error(
        "tensor `{tensor}` at element {offset} of the slab layout overlaps another tensor, is out of address order or \
         ends beyond the slab"
    )]
    Layout {
        /// The tensor.
        tensor: String,
        /// Its first element.
        offset: u64,
    },
    /// Some results were not storable; those elements were left as they were, all others were updated.
    #[error(
        "AdamW left {count} element(s) unchanged because the new weight or second moment is not finite{limit}; \
         the first is element {first}{tensor}: gradient {grad:e}, weight {weight:e}. Lower the learning rate, clip, or \
         look for the operation that made this gradient",
        limit = if *.split { " or the weight is too large for its bf16 half" } else { "" },
        tensor = .tensor.as_ref().map_or(String::new(), |t| format!(" of `{t}`"))
    )]
    NotStorable {
        /// How many elements.
        count: u64,
        /// Index of the first, within its tensor.
        first: usize,
        /// The tensor's name, where a layout gave one.
        tensor: Option<String>,
        /// Whether the master is split into halves.
        split: bool,
        /// Gradient of the first, before scaling.
        grad: f32,
        /// Weight of the first; unchanged.
        weight: f32,
    },
}
