//! [`GatedMlp`]: the second half of a block, `y = x + Wdown (silu(Wgate n) * (Wup n))`, `n = norm(x)`.

use crate::linear::{input_grad, linear, weight_grad};
use crate::{Emitter, Init, ModelConfig, SavedSpec, TokenCtx, fuse};
use megatrain_base::{DType, SlabLayout, Tensor};
use megatrain_ops::{Add, BiasAdd, BiasGrad, RmsNorm, RmsNormBackward, SwiGlu, SwiGluBackward};

/// Pre-norm SwiGLU feed-forward layer with a residual connection, optionally with biases.
#[derive(Clone, PartialEq, Debug)]
pub struct GatedMlp {
    hidden: usize,
    intermediate: usize,
    eps: f32,
    bias: bool,
    init_std: f32,
}

/// Weights or gradients by role.
struct Parts {
    /// `[D]`
    norm: Tensor,
    /// `[2 I, D]`: gate, up stacked
    gate_up: Tensor,
    /// `[2 I]`
    gate_up_bias: Option<Tensor>,
    /// `[D, I]`
    down: Tensor,
    /// `[D]`
    down_bias: Option<Tensor>,
}

impl GatedMlp {
    /// The feed-forward layer of a model.
    pub fn new(config: &ModelConfig) -> Self {
        GatedMlp {
            hidden: config.hidden,
            intermediate: config.intermediate,
            eps: config.rms_eps,
            bias: config.mlp_bias,
            init_std: config.init_std,
        }
    }

    /// Appends the weights to a layout, named under `prefix` (e.g. `model.layers.3.`): norm; gate, up; their biases; down;
    /// its bias.
    pub fn push_layout(&self, layout: &mut SlabLayout, prefix: &str) {
        let (d, i) = (self.hidden, self.intermediate);
        layout.push(format!("{prefix}post_attention_layernorm.weight"), [d], false);
        layout.push(format!("{prefix}mlp.gate_proj.weight"), [i, d], true);
        layout.push_adjacent(format!("{prefix}mlp.up_proj.weight"), [i, d], true);
        if self.bias {
            layout.push(format!("{prefix}mlp.gate_proj.bias"), [i], false);
            layout.push_adjacent(format!("{prefix}mlp.up_proj.bias"), [i], false);
        }
        layout.push(format!("{prefix}mlp.down_proj.weight"), [d, i], true);
        if self.bias {
            layout.push(format!("{prefix}mlp.down_proj.bias"), [d], false);
        }
    }

    /// What each tensor of [`GatedMlp::push_layout`] starts as.
    pub fn inits(&self) -> Vec<Init> {
        let normal = Init::Normal(self.init_std);
        if self.bias {
            vec![Init::Ones, normal, normal, Init::Zeros, Init::Zeros, normal, Init::Zeros]
        } else {
            vec![Init::Ones, normal, normal, normal]
        }
    }

    fn parts(&self, t: &[Tensor]) -> Parts {
        let (norm, gate_up) = (t[0], fuse(&t[1..3]));
        if self.bias {
            Parts { norm, gate_up, gate_up_bias: Some(fuse(&t[3..5])), down: t[5], down_bias: Some(t[6]) }
        } else {
            Parts { norm, gate_up, gate_up_bias: None, down: t[3], down_bias: None }
        }
    }

    /// What the backward pass needs, besides the input: gate and up before the activation.
    pub fn saved(&self, tokens: usize, dtype: DType) -> SavedSpec {
        SavedSpec { name: "gate_up", dtype, shape: [tokens, 2 * self.intermediate].into() }
    }

    fn norm(&self, e: &mut Emitter, ctx: &TokenCtx, x: Tensor, weight: Tensor) -> (Tensor, Tensor) {
        let y = e.temp(ctx.dtype, [ctx.tokens, self.hidden]);
        let rstd = e.temp(DType::F32, [ctx.tokens]);
        e.push(RmsNorm { x, weight, y, rstd, eps: self.eps });
        (y, rstd)
    }

    fn project(&self, e: &mut Emitter, w: &Parts, n: Tensor, gate_up: Tensor) {
        e.push(linear(n, w.gate_up, gate_up));
        if let Some(bias) = w.gate_up_bias {
            e.push(BiasAdd { x: gate_up, bias });
        }
    }

    fn activate(&self, e: &mut Emitter, ctx: &TokenCtx, gate_up: Tensor) -> Tensor {
        let h = e.temp(ctx.dtype, [ctx.tokens, self.intermediate]);
        e.push(SwiGlu { gate_up, out: h });
        h
    }

    /// Emits the forward pass: fills `gate_up` (`[T, 2 I]`) and `y` (`[T, D]`, not `x`).
    pub fn forward(&self, e: &mut Emitter, ctx: &TokenCtx, weights: &[Tensor], x: Tensor, gate_up: Tensor, y: Tensor) {
        let w = self.parts(weights);
        let (n, _) = self.norm(e, ctx, x, w.norm);
        self.project(e, &w, n, gate_up);
        let h = self.activate(e, ctx, gate_up);
        let branch = e.temp(ctx.dtype, [ctx.tokens, self.hidden]);
        e.push(linear(h, w.down, branch));
        if let Some(bias) = w.down_bias {
            e.push(BiasAdd { x: branch, bias });
        }
        e.push(Add { a: x, b: branch, out: y });
    }

    /// Emits the backward pass: `d` holds dL/dy on entry and dL/dx on return. `gate_up` is recomputed first unless `saved`;
    /// it is destroyed.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        weights: &[Tensor],
        grads: &[Tensor],
        accumulate: bool,
        x: Tensor,
        gate_up: Tensor,
        saved: bool,
        d: Tensor,
    ) {
        let (w, g) = (self.parts(weights), self.parts(grads));
        // The norm's output is wanted for the recomputation now, or else only when the wide temporaries are gone.
        let early = (!saved).then(|| {
            let norm = self.norm(e, ctx, x, w.norm);
            self.project(e, &w, norm.0, gate_up);
            norm
        });
        if let Some(dbias) = g.down_bias {
            e.push(BiasGrad { dy: d, dbias, accumulate });
        }
        let h = self.activate(e, ctx, gate_up);
        e.push(weight_grad(d, h, g.down, accumulate));
        let dh = e.temp(ctx.dtype, [ctx.tokens, self.intermediate]);
        e.push(input_grad(d, w.down, dh));
        e.push(SwiGluBackward { dout: dh, gate_up });
        let dgate_up = gate_up;
        if let Some(dbias) = g.gate_up_bias {
            e.push(BiasGrad { dy: dgate_up, dbias, accumulate });
        }
        let (n, rstd) = early.unwrap_or_else(|| self.norm(e, ctx, x, w.norm));
        e.push(weight_grad(dgate_up, n, g.gate_up, accumulate));
        let dn = e.temp(ctx.dtype, [ctx.tokens, self.hidden]);
        e.push(input_grad(dgate_up, w.gate_up, dn));
        e.push(RmsNormBackward {
            dy: dn,
            x,
            weight: w.norm,
            rstd,
            dx: d,
            dweight: g.norm,
            add_to_dx: true,
            accumulate,
        });
    }
}
