//! [`Head`]: final norm, vocabulary projection and loss, in chunks of rows so that `[T, V]` never exists.

use crate::linear::{input_grad, linear, weight_grad};
use crate::{Emitter, ModelConfig, TokenCtx};
use megatrain_base::{DType, Tensor};
use megatrain_ops::{CrossEntropy, CrossEntropyLoss, GatherRows, RmsNorm, RmsNormBackward};

/// Final norm, vocabulary projection and cross-entropy. A tied model passes its embedding table as `head_w`.
///
/// Peak temporaries of a chunk of C rows: `[C, V]` f32 logits, and in training `[C, V]` of their gradient in the compute
/// dtype.
#[derive(Clone, PartialEq, Debug)]
pub struct Head {
    hidden: usize,
    vocab: usize,
    eps: f32,
}

/// `(first row, rows)` of each chunk.
fn chunks(tokens: usize, chunk_rows: usize) -> impl Iterator<Item = (usize, usize)> {
    assert!(chunk_rows > 0, "the head works on chunks of at least one row");
    (0..tokens).step_by(chunk_rows).map(move |start| (start, chunk_rows.min(tokens - start)))
}

impl Head {
    /// The head of a model.
    pub fn new(config: &ModelConfig) -> Self {
        Head { hidden: config.hidden, vocab: config.vocab, eps: config.rms_eps }
    }

    /// Norm and logits of some rows: `(normed [rows, D], rstd [rows])`; `logits` `[rows, V]` f32 is filled.
    fn project(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        norm_w: Tensor,
        head_w: Tensor,
        x: Tensor,
        logits: Tensor,
    ) -> (Tensor, Tensor) {
        let rows = x.shape.dim(0);
        let n = e.temp(ctx.dtype, [rows, self.hidden]);
        let rstd = e.temp(DType::F32, [rows]);
        e.push(RmsNorm { x, weight: norm_w, y: n, rstd, eps: self.eps });
        e.push(linear(n, head_w, logits));
        (n, rstd)
    }

    /// Evaluation: `losses[t]` for every token, without gradients.
    ///
    /// `norm_w` `[D]`, `head_w` `[V, D]`, `x` `[T, D]`: compute dtype; `targets` `[T]` i32, already shifted; `losses` `[T]` f32.
    #[allow(clippy::too_many_arguments)]
    pub fn loss(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        norm_w: Tensor,
        head_w: Tensor,
        x: Tensor,
        targets: Tensor,
        losses: Tensor,
        chunk_rows: usize,
    ) {
        for (start, rows) in chunks(ctx.tokens, chunk_rows) {
            let logits = e.temp(DType::F32, [rows, self.vocab]);
            self.project(e, ctx, norm_w, head_w, x.rows(start, rows), logits);
            let (targets, losses) = (targets.rows(start, rows), losses.rows(start, rows));
            e.push(CrossEntropyLoss { logits, targets, losses });
        }
    }

    /// Training: losses, `d` = dL/dx (`[T, D]`, written), and the gradients of both weights, summed over the chunks in
    /// order, on top of what `norm_g` (`[D]`) and `head_g` (`[V, D]`, both f32) hold when `accumulate`.
    ///
    /// L is the sum of the losses times `inv_targets` (`[1]` f32: 1 / targets of the whole optimizer step).
    #[allow(clippy::too_many_arguments)]
    pub fn loss_backward(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        norm_w: Tensor,
        head_w: Tensor,
        norm_g: Tensor,
        head_g: Tensor,
        accumulate: bool,
        x: Tensor,
        targets: Tensor,
        inv_targets: Tensor,
        losses: Tensor,
        d: Tensor,
        chunk_rows: usize,
    ) {
        for (start, rows) in chunks(ctx.tokens, chunk_rows) {
            let accumulate = accumulate || start > 0;
            let x = x.rows(start, rows);
            let logits = e.temp(DType::F32, [rows, self.vocab]);
            let (n, rstd) = self.project(e, ctx, norm_w, head_w, x, logits);
            let dlogits = e.temp(ctx.dtype, [rows, self.vocab]);
            let (targets, losses) = (targets.rows(start, rows), losses.rows(start, rows));
            e.push(CrossEntropy { logits, targets, inv_targets, dlogits, losses });
            e.push(weight_grad(dlogits, n, head_g, accumulate));
            let dn = e.temp(ctx.dtype, [rows, self.hidden]);
            e.push(input_grad(dlogits, head_w, dn));
            let dx = d.rows(start, rows);
            e.push(RmsNormBackward {
                dy: dn,
                x,
                weight: norm_w,
                rstd,
                dx,
                dweight: norm_g,
                add_to_dx: false,
                accumulate,
            });
        }
    }

    /// Generation: `logits` (`[n, V]` f32) of the rows of `x` (`[T, D]`) that `rows_index` (`[n]` i32) names.
    #[allow(clippy::too_many_arguments)]
    pub fn logits(
        &self,
        e: &mut Emitter,
        ctx: &TokenCtx,
        norm_w: Tensor,
        head_w: Tensor,
        x: Tensor,
        rows_index: Tensor,
        logits: Tensor,
    ) {
        let picked = e.temp(ctx.dtype, [rows_index.elems(), self.hidden]);
        e.push(GatherRows { x, index: rows_index, y: picked });
        self.project(e, ctx, norm_w, head_w, picked, logits);
    }
}
