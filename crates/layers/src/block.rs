//! [`Block`]: what a planner needs to know of a transformer block.

use crate::Emitter;
use megatrain_base::{DType, Shape, SlabLayout, Tensor};
use std::fmt::Debug;

/// How much of a block's forward pass is kept for its backward pass. The block's input is always kept, by the planner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Activations {
    /// Everything but what is cheap to recompute (norm outputs, the activation product).
    Keep,
    /// All of [`Activations::Keep`] but the widest: gate and up. Costs their matrix product in the backward pass.
    Partial,
    /// Nothing besides the block's input. Costs the forward pass but the down projection in the backward pass.
    Recompute,
}

impl Activations {
    /// All levels, from most memory to least.
    pub const ALL: [Activations; 3] = [Activations::Keep, Activations::Partial, Activations::Recompute];
}

/// The tokens a pass is about.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TokenCtx {
    /// T: tokens of the micro-batch, all documents together.
    pub tokens: usize,
    /// `[T]` i32: position within the document.
    pub positions: Tensor,
    /// `[documents + 1]` i32: document borders, from 0 to T; empty documents are allowed.
    pub cu_seqlens: Tensor,
    /// Dtype of weights and activations: f32 or bf16.
    pub dtype: DType,
}

/// A buffer that a forward pass fills for the backward pass.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SavedSpec {
    /// For people.
    pub name: &'static str,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// What a tensor of a new model starts as.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Init {
    /// Normal around 0 with this standard deviation.
    Normal(f32),
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
}

/// A block: a stateless description that emits ops. The residual stream is `[T, D]` in the compute dtype.
///
/// `weights` and `grads` follow [`Block::layout`] and are placed as it says, so that adjacent tensors can be read as
/// one. Weights have the compute dtype, gradients are f32.
pub trait Block: Send + Sync + Debug {
    /// Names, shapes and places of the weights of block number `index`.
    fn layout(&self, index: usize) -> SlabLayout;

    /// What each tensor of the layout starts as in a new model.
    fn inits(&self) -> Vec<Init>;

    /// What the forward pass saves at a level, besides the block's input. The list of a cheaper level is a prefix of the
    /// list of a dearer one.
    fn saved(&self, level: Activations, tokens: usize, dtype: DType) -> Vec<SavedSpec>;

    /// `y = block(x)`; fills `saved`, which holds one tensor for each entry of [`Block::saved`].
    /// `y` may be `x` itself where the input is not needed afterwards.
    #[allow(clippy::too_many_arguments)]
    fn forward(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        weights: &[Tensor],
        x: Tensor,
        y: Tensor,
        level: Activations,
        saved: &[Tensor],
    );

    /// The backward pass. `d` (`[T, D]`, compute dtype) holds dL/dy on entry and dL/dx on return. `grads[i]` (f32, the
    /// shape of `weights[i]`) is added to when `accumulate`, overwritten otherwise.
    ///
    /// What `level` did not save is recomputed from `x` by the ops of the forward pass, so results do not depend on the
    /// level, bit for bit. The contents of `saved` are destroyed; `x` is only read.
    #[allow(clippy::too_many_arguments)]
    fn backward(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        weights: &[Tensor],
        grads: &[Tensor],
        accumulate: bool,
        x: Tensor,
        d: Tensor,
        level: Activations,
        saved: &[Tensor],
    );
}
