//! [`Settings`]: what the user asks of a plan.

use megatrain_base::DType;
use megatrain_layers::Activations;

/// Which activations the forward pass keeps for the backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActivationChoice {
    /// As much as fits the budget, block by block.
    Auto,
    /// The same level for every block.
    All(Activations),
}

/// What the planner decided for one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockChoice {
    /// What is kept.
    pub level: Activations,
    /// Whether what is kept waits in host memory.
    pub spill: bool,
}

/// How many blocks' weights the device holds at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotCount {
    /// This many, at least two (or the number of blocks, if that is less).
    Count(usize),
    /// All of them: nothing is fetched twice in a program.
    All,
}

/// When a unit's update runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdatePolicy {
    /// As soon as its gradient has landed, lowest unit first among those that have. No clipping.
    Eager,
    /// After the global norm is known, in forward order. Exact clipping, all or nothing on non-finite gradients.
    AfterNorm,
}

/// Rates that decide the order of eager updates. Only their ratio matters, and it never changes bits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UpdateRates {
    /// Device, floating-point operations a second.
    pub device_flops: f64,
    /// Optimizer, parameters a second.
    pub update_params: f64,
}

impl Default for UpdateRates {
    fn default() -> Self {
        UpdateRates { device_flops: 650e12, update_params: 3.5e9 }
    }
}

/// What the user asks of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Compute dtype: f32 or bf16.
    pub dtype: DType,
    /// Tokens in a micro-batch, padding included.
    pub micro_tokens: usize,
    /// Micro-batches in an optimizer step, at most.
    pub micro_batches: usize,
    /// Bytes of device memory the plan may use.
    pub device_memory_bytes: u64,
    /// Activation levels.
    pub activations: ActivationChoice,
    /// Whether kept activations wait in host memory.
    pub spill: bool,
    /// Block weight slots.
    pub slots: SlotCount,
    /// Micro-batches that go through a block together; `None`: as many as fit.
    pub group: Option<usize>,
    /// Update policy.
    pub update: UpdatePolicy,
    /// Gradient slabs of the eager policy in host memory, at least two.
    pub gradient_ring: usize,
    /// Rows of logits alive at once.
    pub logits_rows: usize,
    /// Rates for the order of eager updates.
    pub rates: UpdateRates,
    /// Whether gradients and optimizer state exist. Without, only evaluation and generation can be planned.
    pub train: bool,
}

impl Settings {
    /// Training with everything automatic.
    pub fn new(dtype: DType, micro_tokens: usize, micro_batches: usize) -> Self {
        Settings {
            dtype,
            micro_tokens,
            micro_batches,
            device_memory_bytes: u64::MAX,
            activations: ActivationChoice::Auto,
            spill: false,
            slots: SlotCount::Count(2),
            group: None,
            update: UpdatePolicy::AfterNorm,
            gradient_ring: 2,
            logits_rows: 1024,
            rates: UpdateRates::default(),
            train: true,
        }
    }
}
