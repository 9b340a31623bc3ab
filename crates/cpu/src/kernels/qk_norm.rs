//! RMS normalisation of query and key heads, forward and backward.

use super::bias::fold_partial;
use super::rms_norm::{backward_row, forward_row, reciprocal_norm};
use super::{by_float, par, scratch::Scratch};
use megatrain_base::{Element, Operands};
use megatrain_ops::{QkNorm, QkNormBackward};

/// Runs the forward op.
pub(super) fn forward(op: &QkNorm, operands: &Operands) {
    by_float!(op.qkv, T => forward_typed::<T>(op, operands));
}

fn forward_typed<T: Element>(op: &QkNorm, operands: &Operands) {
    let (qkv, out) = (operands.read::<T>(&op.qkv), operands.write::<T>(&op.out));
    let (q_weight, k_weight) = (operands.read::<T>(&op.q_weight), operands.read::<T>(&op.k_weight));
    let (heads, kv_heads, head_dim) = (op.heads as usize, op.kv_heads as usize, op.head_dim as usize);
    let width = op.qkv.shape.last();
    if width == 0 {
        return;
    }
    let rows = par::rows_per_chunk(2 * width);
    par::chunks(out, rows * width, |chunk, out| {
        for (out, qkv) in out.chunks_exact_mut(width).zip(qkv[chunk * rows * width..].chunks_exact(width)) {
            for head in 0..heads + kv_heads {
                let at = head * head_dim..(head + 1) * head_dim;
                forward_row(&qkv[at.clone()], if head < heads { q_weight } else { k_weight }, op.eps, &mut out[at]);
            }
            let values = (heads + kv_heads) * head_dim..width;
            out[values.clone()].copy_from_slice(&qkv[values]);
        }
    });
}

/// Runs the backward op.
pub(super) fn backward(op: &QkNormBackward, operands: &Operands) {
    by_float!(op.qkv, T => backward_typed::<T>(op, operands));
}

fn backward_typed<T: Element>(op: &QkNormBackward, operands: &Operands) {
    let (dout, qkv) = (operands.read::<T>(&op.dout), operands.read::<T>(&op.qkv));
    let (q_weight, k_weight) = (operands.read::<T>(&op.q_weight), operands.read::<T>(&op.k_weight));
    let dqkv = operands.write::<T>(&op.dqkv);
    let (dq_weight, dk_weight) = (operands.write::<f32>(&op.dq_weight), operands.write::<f32>(&op.dk_weight));
    let (heads, kv_heads, head_dim) = (op.heads as usize, op.kv_heads as usize, op.head_dim as usize);
    let (tokens, width) = (op.qkv.shape.rows(), op.qkv.shape.last());
    if width == 0 {
        return;
    }
    let rows = par::rows_per_partial_sum(tokens);
    // Partial sums of both weights' gradients, side by side.
    let mut partial = Scratch::<f32>::zeroed(tokens.div_ceil(rows) * 2 * head_dim);
    par::chunks2(dqkv, rows * width, &mut partial, 2 * head_dim, |chunk, dqkv, dweights| {
        if dweights.is_empty() {
            return;
        }
        let (dq_weight, dk_weight) = dweights.split_at_mut(head_dim);
        for (i, dqkv) in dqkv.chunks_exact_mut(width).enumerate() {
            let at = (chunk * rows + i) * width..(chunk * rows + i + 1) * width;
            let (dout, qkv) = (&dout[at.clone()], &qkv[at]);
            for head in 0..heads + kv_heads {
                let at = head * head_dim..(head + 1) * head_dim;
                let (weight, dweight) =
                    if head < heads { (q_weight, &mut *dq_weight) } else { (k_weight, &mut *dk_weight) };
                let rstd = row_norm(&qkv[at.clone()], op.eps);
                backward_row(&dout[at.clone()], &qkv[at.clone()], weight, rstd, false, &mut dqkv[at], dweight);
            }
            let values = (heads + kv_heads) * head_dim..width;
            dqkv[values.clone()].copy_from_slice(&dout[values]);
        }
    });
    let mut totals = Scratch::<f32>::take(2 * head_dim);
    fold_partial(&partial, &mut totals, false);
    for (total, dweight) in totals.chunks_exact(head_dim).zip([dq_weight, dk_weight]) {
        fold_partial(total, dweight, op.accumulate);
    }
}

super::simd::simd! {
    fn row_norm[T: Element](x: &[T], eps: f32) -> f32 {
        reciprocal_norm(x, eps)
    }
}
