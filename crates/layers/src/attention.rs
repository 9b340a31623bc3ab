//! [`SelfAttention`]: the first half of a block, `x_mid = x + Wo attention(rope(qk_norm(Wqkv norm(x))))`.

use crate::linear::{input_grad, linear, weight_grad};
use crate::{Emitter, Init, ModelConfig, SavedSpec, TokenCtx, fuse};
use megatrain_base::{DType, SlabLayout, Tensor};
use megatrain_ops::{
    Add, Attention, AttentionBackward, BiasAdd, BiasGrad, QkNorm, QkNormBackward, RmsNorm, RmsNormBackward, Rope,
    RopeParams,
};

/// Pre-norm grouped-query attention with rotary positions and a residual connection, optionally with biases and with
/// normalised query and key heads.
#[derive(Clone, PartialEq, Debug)]
pub struct SelfAttention {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rope: RopeParams,
    eps: f32,
    qkv_bias: bool,
    o_bias: bool,
    qk_norm: bool,
    init_std: f32,
}

/// Weights or gradients by role.
struct Parts {
    /// `[D]`
    norm: Tensor,
    /// `[(H + 2K) A, D]`: q, k, v stacked
    qkv: Tensor,
    /// `[(H + 2K) A]`
    qkv_bias: Option<Tensor>,
    /// `[D, H A]`
    o: Tensor,
    /// `[D]`
    o_bias: Option<Tensor>,
    /// `[A]` each
    qk_norm: Option<(Tensor, Tensor)>,
}

/// What the backward pass needs of the forward pass, in the order of [`SelfAttention::saved`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionActivations {
    /// `[T, (H + 2K) A]`: queries, keys, values as attention reads them, rotated.
    pub qkv: Tensor,
    /// `[T, (H + 2K) A]`: before the head norms; only where there are any.
    pub qkv_raw: Option<Tensor>,
    /// `[T, H A]`: attention's output.
    pub out: Tensor,
    /// `[H, T]` f32: attention's log sums.
    pub lse: Tensor,
    /// `[T, D]`: the residual stream after attention.
    pub x_mid: Tensor,
}

impl SelfAttention {
    /// The attention of a model.
    pub fn new(config: &ModelConfig) -> Self {
        SelfAttention {
            hidden: config.hidden,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            rope: config.rope,
            eps: config.rms_eps,
            qkv_bias: config.qkv_bias,
            o_bias: config.o_bias,
            qk_norm: config.qk_norm,
            init_std: config.init_std,
        }
    }

    /// `(H + 2K) A`
    fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// `H A`
    fn out_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Appends the weights to a layout, named under `prefix` (e.g. `model.layers.3.`): norm; q, k, v; their biases; o; its
    /// bias; the head norms.
    pub fn push_layout(&self, layout: &mut SlabLayout, prefix: &str) {
        let (d, q, kv) = (self.hidden, self.out_width(), self.kv_heads * self.head_dim);
        layout.push(format!("{prefix}input_layernorm.weight"), [d], false);
        layout.push(format!("{prefix}self_attn.q_proj.weight"), [q, d], true);
        layout.push_adjacent(format!("{prefix}self_attn.k_proj.weight"), [kv, d], true);
        layout.push_adjacent(format!("{prefix}self_attn.v_proj.weight"), [kv, d], true);
        if self.qkv_bias {
            layout.push(format!("{prefix}self_attn.q_proj.bias"), [q], false);
            layout.push_adjacent(format!("{prefix}self_attn.k_proj.bias"), [kv], false);
            layout.push_adjacent(format!("{prefix}self_attn.v_proj.bias"), [kv], false);
        }
        layout.push(format!("{prefix}self_attn.o_proj.weight"), [d, q], true);
        if self.o_bias {
            layout.push(format!("{prefix}self_attn.o_proj.bias"), [d], false);
        }
        if self.qk_norm {
            layout.push(format!("{prefix}self_attn.q_norm.weight"), [self.head_dim], false);
            layout.push(format!("{prefix}self_attn.k_norm.weight"), [self.head_dim], false);
        }
    }

    /// What each tensor of [`SelfAttention::push_layout`] starts as.
    pub fn inits(&self) -> Vec<Init> {
        let normal = Init::Normal(self.init_std);
        let mut inits = vec![Init::Ones, normal, normal, normal];
        inits.extend(if self.qkv_bias { &[Init::Zeros; 3][..] } else { &[] });
        inits.push(normal);
        inits.extend(if self.o_bias { &[Init::Zeros][..] } else { &[] });
        inits.extend(if self.qk_norm { &[Init::Ones; 2][..] } else { &[] });
        inits
    }

    /// Number of weight tensors.
    pub fn tensors(&self) -> usize {
        self.inits().len()
    }

    fn parts(&self, tensors: &[Tensor]) -> Parts {
        let mut at = 0;
        let mut take = |n: usize| {
            at += n;
            &tensors[at - n..at]
        };
        Parts {
            norm: take(1)[0],
            qkv: fuse(take(3)),
            qkv_bias: self.qkv_bias.then(|| fuse(take(3))),
            o: take(1)[0],
            o_bias: self.o_bias.then(|| take(1)[0]),
            qk_norm: self.qk_norm.then(|| take(2)).map(|t| (t[0], t[1])),
        }
    }

    /// What the backward pass needs, besides `x`.
    pub fn saved(&self, tokens: usize, dtype: DType) -> Vec<SavedSpec> {
        let qkv = [tokens, self.qkv_width()].into();
        let mut saved = vec![SavedSpec { name: "qkv", dtype, shape: qkv }];
        if self.qk_norm {
            saved.push(SavedSpec { name: "qkv_raw", dtype, shape: qkv });
        }
        saved.extend([
            SavedSpec { name: "attention_out", dtype, shape: [tokens, self.out_width()].into() },
            SavedSpec { name: "lse", dtype: DType::F32, shape: [self.heads, tokens].into() },
            SavedSpec { name: "x_mid", dtype, shape: [tokens, self.hidden].into() },
        ]);
        saved
    }

    /// Names the tensors of a [`SelfAttention::saved`] list.
    pub fn activations(&self, saved: &[Tensor]) -> AttentionActivations {
        let n = self.qk_norm as usize;
        AttentionActivations {
            qkv: saved[0],
            qkv_raw: self.qk_norm.then(|| saved[1]),
            out: saved[1 + n],
            lse: saved[2 + n],
            x_mid: saved[3 + n],
        }
    }

    fn norm(&self, e: &mut Emitter, ctx: &TokenCtx, x: Tensor, weight: Tensor) -> (Tensor, Tensor) {
        let y = e.temp(ctx.dtype, [ctx.tokens, self.hidden]);
        let rstd = e.temp(DType::F32, [ctx.tokens]);
        e.push(RmsNorm { x, weight, y, rstd, eps: self.eps });
        (y, rstd)
    }

    fn rope(&self, ctx: &TokenCtx, qkv: Tensor, inverse: bool) -> Rope {
        let (heads, kv_heads, head_dim) = (self.heads as u32, self.kv_heads as u32, self.head_dim as u32);
        Rope { qkv, positions: ctx.positions, heads, kv_heads, head_dim, rope: self.rope, inverse }
    }

    /// `1 / sqrt(A)`: keeps the variance of a score independent of the head's size (Vaswani et al. 2017, section 3.2.1).
    fn scale(&self) -> f32 {
        (1.0 / (self.head_dim as f64).sqrt()) as f32
    }

    /// Emits the forward pass; fills all of `acts`, of which `x_mid` is the result.
    pub fn forward(&self, e: &mut Emitter, ctx: &TokenCtx, weights: &[Tensor], x: Tensor, acts: &AttentionActivations) {
        let w = self.parts(weights);
        let (heads, kv_heads, head_dim) = (self.heads as u32, self.kv_heads as u32, self.head_dim as u32);
        let (n, _) = self.norm(e, ctx, x, w.norm);
        let projected = acts.qkv_raw.unwrap_or(acts.qkv);
        e.push(linear(n, w.qkv, projected));
        if let Some(bias) = w.qkv_bias {
            e.push(BiasAdd { x: projected, bias });
        }
        if let Some((q_weight, k_weight)) = w.qk_norm {
            let eps = self.eps;
            e.push(QkNorm { qkv: projected, q_weight, k_weight, out: acts.qkv, heads, kv_heads, head_dim, eps });
        }
        e.push(self.rope(ctx, acts.qkv, false));
        let (qkv, cu_seqlens, out, lse, scale) = (acts.qkv, ctx.cu_seqlens, acts.out, acts.lse, self.scale());
        e.push(Attention { qkv, cu_seqlens, out, lse, heads, kv_heads, head_dim, scale });
        let branch = e.temp(ctx.dtype, [ctx.tokens, self.hidden]);
        e.push(linear(out, w.o, branch));
        if let Some(bias) = w.o_bias {
            e.push(BiasAdd { x: branch, bias });
        }
        e.push(Add { a: x, b: branch, out: acts.x_mid });
    }

    /// Emits the backward pass: `d` holds dL/dx_mid on entry and dL/dx on return. Destroys `acts.qkv`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        weights: &[Tensor],
        grads: &[Tensor],
        accumulate: bool,
        x: Tensor,
        acts: &AttentionActivations,
        d: Tensor,
    ) {
        let (w, g) = (self.parts(weights), self.parts(grads));
        let (heads, kv_heads, head_dim) = (self.heads as u32, self.kv_heads as u32, self.head_dim as u32);
        if let Some(dbias) = g.o_bias {
            e.push(BiasGrad { dy: d, dbias, accumulate });
        }
        e.push(weight_grad(d, acts.out, g.o, accumulate));
        let dout = e.temp(ctx.dtype, [ctx.tokens, self.out_width()]);
        e.push(input_grad(d, w.o, dout));
        let rotated = e.temp(ctx.dtype, [ctx.tokens, self.qkv_width()]);
        e.push(AttentionBackward {
            dout,
            out: acts.out,
            qkv: acts.qkv,
            lse: acts.lse,
            cu_seqlens: ctx.cu_seqlens,
            dqkv: rotated,
            heads,
            kv_heads,
            head_dim,
            scale: self.scale(),
        });
        e.push(self.rope(ctx, rotated, true));
        let dqkv = match (w.qk_norm, g.qk_norm, acts.qkv_raw) {
            (Some((q_weight, k_weight)), Some((dq_weight, dk_weight)), Some(qkv)) => {
                let eps = self.eps;
                // Attention's input is of no more use: its buffer takes the gradient.
                let (dout, dqkv) = (rotated, acts.qkv);
                e.push(QkNormBackward {
                    dout,
                    qkv,
                    q_weight,
                    k_weight,
                    dqkv,
                    dq_weight,
                    dk_weight,
                    heads,
                    kv_heads,
                    head_dim,
                    eps,
                    accumulate,
                });
                dqkv
            }
            _ => rotated,
        };
        if let Some(dbias) = g.qkv_bias {
            e.push(BiasGrad { dy: dqkv, dbias, accumulate });
        }
        let (n, rstd) = self.norm(e, ctx, x, w.norm);
        e.push(weight_grad(dqkv, n, g.qkv, accumulate));
        let dn = e.temp(ctx.dtype, [ctx.tokens, self.hidden]);
        e.push(input_grad(dqkv, w.qkv, dn));
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
