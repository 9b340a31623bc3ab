//! [`OpError`]: arguments that do not fit together.

/// An op whose arguments do not fit together.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("op {op}: {what}")]
pub struct OpError {
    /// The op's name.
    pub op: &'static str,
    /// Which operand or scalar, what was expected and what was given.
    pub what: String,
}
