//! [`DenseBlock`]: self-attention, then a gated MLP. The block of the Llama, Mistral and Qwen families.

use crate::{Activations, Block, Emitter, GatedMlp, Init, ModelConfig, SavedSpec, SelfAttention, TokenCtx};
use megatrain_base::{DType, SlabLayout, Tensor};

/// Self-attention, then a gated MLP, each behind a norm and beside a residual connection.
#[derive(Clone, PartialEq, Debug)]
pub struct DenseBlock {
    attention: SelfAttention,
    mlp: GatedMlp,
}

impl DenseBlock {
    /// The block of a model.
    pub fn new(config: &ModelConfig) -> Self {
        DenseBlock { attention: SelfAttention::new(config), mlp: GatedMlp::new(config) }
    }

    /// All activations in the order of `saved(Keep)`: those that the level saved, temporaries for the others.
    fn buffers(&self, e: &mut Emitter, ctx: &TokenCtx, level: Activations, saved: &[Tensor]) -> Vec<Tensor> {
        assert_eq!(saved.len(), self.saved(level, ctx.tokens, ctx.dtype).len(), "saved buffers at level {level:?}");
        let all = self.saved(Activations::Keep, ctx.tokens, ctx.dtype);
        all.iter()
            .enumerate()
            .map(|(i, spec)| saved.get(i).copied().unwrap_or_else(|| e.temp(spec.dtype, spec.shape)))
            .collect()
    }
}

impl Block for DenseBlock {
    fn layout(&self, index: usize) -> SlabLayout {
        let (mut layout, prefix) = (SlabLayout::new(), format!("model.layers.{index}."));
        self.attention.push_layout(&mut layout, &prefix);
        self.mlp.push_layout(&mut layout, &prefix);
        layout
    }

    fn inits(&self) -> Vec<Init> {
        [self.attention.inits(), self.mlp.inits()].concat()
    }

    fn saved(&self, level: Activations, tokens: usize, dtype: DType) -> Vec<SavedSpec> {
        let mut saved = Vec::new();
        if level != Activations::Recompute {
            saved.extend(self.attention.saved(tokens, dtype));
        }
        if level == Activations::Keep {
            saved.push(self.mlp.saved(tokens, dtype));
        }
        saved
    }

    fn forward(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        weights: &[Tensor],
        x: Tensor,
        y: Tensor,
        level: Activations,
        saved: &[Tensor],
    ) {
        let (attention_w, mlp_w) = weights.split_at(self.attention.tensors());
        let buffers = self.buffers(e, ctx, level, saved);
        let (gate_up, rest) = buffers.split_last().expect("gate_up is always there");
        let acts = self.attention.activations(rest);
        self.attention.forward(e, ctx, attention_w, x, &acts);
        self.mlp.forward(e, ctx, mlp_w, acts.x_mid, *gate_up, y);
    }

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
    ) {
        let (attention_w, mlp_w) = weights.split_at(self.attention.tensors());
        let (attention_g, mlp_g) = grads.split_at(self.attention.tensors());
        let buffers = self.buffers(e, ctx, level, saved);
        let (gate_up, rest) = buffers.split_last().expect("gate_up is always there");
        let acts = self.attention.activations(rest);
        if level == Activations::Recompute {
            self.attention.forward(e, ctx, attention_w, x, &acts);
        }
        let kept = level == Activations::Keep;
        self.mlp.backward(e, ctx, mlp_w, mlp_g, accumulate, acts.x_mid, *gate_up, kept, d);
        self.attention.backward(e, ctx, attention_w, attention_g, accumulate, x, &acts, d);
    }
}
