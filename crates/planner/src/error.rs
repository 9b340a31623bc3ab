//! [`PlanError`]: what cannot be planned, and which setting to change.

use megatrain_base::fmt_bytes;
use megatrain_scheduler::BuildError;

/// A plan that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Even the most frugal plan is larger than the budget.
    #[error(
        "the device-memory budget of {} is too small: the most frugal plan for {micro_tokens} tokens a micro-batch needs {} \
         (weights {}, gradients {}, activations and workspace {}); raise --device-memory, or lower --micro-batch-size or --seq-len",
        fmt_bytes(*budget_bytes), fmt_bytes(*need_bytes), fmt_bytes(*weights_bytes), fmt_bytes(*gradients_bytes),
        fmt_bytes(need_bytes - weights_bytes - gradients_bytes)
    )]
    BudgetTooSmall {
        /// The budget.
        budget_bytes: u64,
        /// What the most frugal plan needs.
        need_bytes: u64,
        /// Of it, weight slots.
        weights_bytes: u64,
        /// Of it, gradient accumulators.
        gradients_bytes: u64,
        /// Tokens in a micro-batch.
        micro_tokens: usize,
    },
    /// A setting that makes no sense.
    #[error("{0}")]
    Setting(String),
    /// The builder refused the program: a bug in the planner.
    #[error("internal error: the planner wrote a program that the builder refuses: {0}")]
    Build(#[from] BuildError),
}
