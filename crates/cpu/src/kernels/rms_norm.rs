//! RMS normalisation, forward and backward.

use super::bias::fold_partial;
use super::{by_float, math, par, scratch::Scratch, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::{RmsNorm, RmsNormBackward};

/// Runs the forward op.
pub(super) fn forward(op: &RmsNorm, operands: &Operands) {
    by_float!(op.x, T => forward_typed::<T>(op, operands));
}

fn forward_typed<T: Element>(op: &RmsNorm, operands: &Operands) {
    let (x, weight) = (operands.read::<T>(&op.x), operands.read::<T>(&op.weight));
    let (y, rstd) = (operands.write::<T>(&op.y), operands.write::<f32>(&op.rstd));
    let dim = weight.len();
    if dim == 0 {
        return;
    }
    let rows = par::rows_per_chunk(2 * dim);
    par::chunks2(y, rows * dim, rstd, rows, |chunk, y, rstd| {
        for ((y, x), rstd) in y.chunks_exact_mut(dim).zip(x[chunk * rows * dim..].chunks_exact(dim)).zip(rstd) {
            *rstd = forward_row(x, weight, op.eps, y);
        }
    });
}

simd! {
    /// Normalises a row and returns the reciprocal of its norm.
    pub(super) fn forward_row[T: Element](x: &[T], weight: &[T], eps: f32, y: &mut [T]) -> f32 {
        let rstd = reciprocal_norm(x, eps);
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = T::from_f32(x.to_f32() * rstd * weight.to_f32());
        }
        rstd
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(super) fn reciprocal_norm<T: Element>(x: &[T], eps: f32) -> f32 {
    let squares = math::reduce(x, 0.0, |a, b| a + b, |x| x.to_f32() * x.to_f32());
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

/// Runs the backward op.
pub(super) fn backward(op: &RmsNormBackward, operands: &Operands) {
    by_float!(op.x, T => backward_typed::<T>(op, operands));
}

fn backward_typed<T: Element>(op: &RmsNormBackward, operands: &Operands) {
    let (dy, x) = (operands.read::<T>(&op.dy), operands.read::<T>(&op.x));
    let (weight, rstd) = (operands.read::<T>(&op.weight), operands.read::<f32>(&op.rstd));
    let (dx, dweight) = (operands.write::<T>(&op.dx), operands.write::<f32>(&op.dweight));
    let dim = weight.len();
    if dim == 0 {
        return;
    }
    let rows = par::rows_per_partial_sum(rstd.len());
    let mut partial = Scratch::<f32>::zeroed(rstd.len().div_ceil(rows) * dim);
    par::chunks2(dx, rows * dim, &mut partial, dim, |chunk, dx, dweight| {
        let first = chunk * rows;
        for (i, dx) in dx.chunks_exact_mut(dim).enumerate() {
            let at = (first + i) * dim..(first + i + 1) * dim;
            backward_row(&dy[at.clone()], &x[at], weight, rstd[first + i], op.add_to_dx, dx, dweight);
        }
    });
    fold_partial(&partial, dweight, op.accumulate);
}

simd! {
    /// One row's `dx`, and its share of `dweight` added.
    pub(super) fn backward_row[T: Element](
        dy: &[T],
        x: &[T],
        weight: &[T],
        rstd: f32,
        add_to_dx: bool,
        dx: &mut [T],
        dweight: &mut [f32],
    ) {
        let n = dx.len();
        let (dy, x, weight, dweight) = (&dy[..n], &x[..n], &weight[..n], &mut dweight[..n]);
        let mut lanes = [0.0f32; math::LANES];
        let whole = n / math::LANES * math::LANES;
        for start in (0..whole).step_by(math::LANES) {
            let at = start..start + math::LANES;
            let (dy, x, weight) = (&dy[at.clone()], &x[at.clone()], &weight[at]);
            for l in 0..math::LANES {
                lanes[l] += dy[l].to_f32() * weight[l].to_f32() * (x[l].to_f32() * rstd);
            }
        }
        for i in whole..n {
            lanes[i - whole] += dy[i].to_f32() * weight[i].to_f32() * (x[i].to_f32() * rstd);
        }
        let mean = math::fold(lanes, |a, b| a + b) / n as f32;
        for i in 0..n {
            let (dy, normal) = (dy[i].to_f32(), x[i].to_f32() * rstd);
            dweight[i] += dy * normal;
            let d = rstd * (dy * weight[i].to_f32() - normal * mean);
            dx[i] = T::from_f32(if add_to_dx { dx[i].to_f32() + d } else { d });
        }
    }
}
