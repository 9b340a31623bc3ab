//! Conversion between f32 and bf16.

use super::{by_float, par, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::Cast;

/// Runs the op.
pub(super) fn run(op: &Cast, operands: &Operands) {
    by_float!(op.x, X => by_float!(op.y, Y => typed::<X, Y>(op, operands)));
}

fn typed<X: Element, Y: Element>(op: &Cast, operands: &Operands) {
    let x = operands.read::<X>(&op.x);
    let step = par::rows_per_chunk(1);
    par::chunks(operands.write::<Y>(&op.y), step, |i, y| cast(&x[i * step..i * step + y.len()], y));
}

simd! {
    fn cast[X: Element, Y: Element](x: &[X], y: &mut [Y]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = Y::from_f32(x.to_f32());
        }
    }
}
