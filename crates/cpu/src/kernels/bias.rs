//! Bias of a linear layer and its gradient.

use super::{by_float, par, scratch::Scratch, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::{BiasAdd, BiasGrad};

/// Runs the forward op.
pub(super) fn add(op: &BiasAdd, operands: &Operands) {
    by_float!(op.x, T => add_typed::<T>(op, operands));
}

fn add_typed<T: Element>(op: &BiasAdd, operands: &Operands) {
    let bias = operands.read::<T>(&op.bias);
    if bias.is_empty() {
        return;
    }
    let step = par::rows_per_chunk(bias.len()) * bias.len();
    par::chunks(operands.write::<T>(&op.x), step, |_, rows| add_rows(rows, bias));
}

simd! {
    fn add_rows[T: Element](rows: &mut [T], bias: &[T]) {
        for row in rows.chunks_exact_mut(bias.len()) {
            for (x, b) in row.iter_mut().zip(bias) {
                *x = T::from_f32(x.to_f32() + b.to_f32());
            }
        }
    }
}

/// Runs the gradient.
pub(super) fn grad(op: &BiasGrad, operands: &Operands) {
    by_float!(op.dy, T => grad_typed::<T>(op, operands));
}

fn grad_typed<T: Element>(op: &BiasGrad, operands: &Operands) {
    let dy = operands.read::<T>(&op.dy);
    let dbias = operands.write::<f32>(&op.dbias);
    let n = dbias.len();
    if n == 0 {
        return;
    }
    let rows = par::rows_per_partial_sum(dy.len() / n);
    let mut partial = Scratch::<f32>::zeroed(dy.len().div_ceil(rows * n) * n);
    par::chunks(&mut partial, n, |i, sums| {
        if !sums.is_empty() {
            sum_rows(&dy[i * rows * n..((i + 1) * rows * n).min(dy.len())], sums);
        }
    });
    fold_partial(&partial, dbias, op.accumulate);
}

simd! {
    fn sum_rows[T: Element](rows: &[T], sums: &mut [f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum += x.to_f32();
            }
        }
    }
}

simd! {
    /// Adds partial sums (`[chunks, n]`) in order, into or over `total`.
    pub(super) fn fold_partial(partial: &[f32], total: &mut [f32], accumulate: bool) {
        if !accumulate {
            total.fill(0.0);
        }
        for sums in partial.chunks_exact(total.len().max(1)) {
            for (total, sum) in total.iter_mut().zip(sums) {
                *total += sum;
            }
        }
    }
}
