//! Elementwise sum.

use super::{by_float, par, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::Add;

/// Runs the op.
pub(super) fn run(op: &Add, operands: &Operands) {
    by_float!(op.out, T => typed::<T>(op, operands));
}

fn typed<T: Element>(op: &Add, operands: &Operands) {
    let (a, b) = (operands.read::<T>(&op.a), operands.read::<T>(&op.b));
    let step = par::rows_per_chunk(1);
    par::chunks(operands.write::<T>(&op.out), step, |i, out| {
        let at = i * step..i * step + out.len();
        add(&a[at.clone()], &b[at], out);
    });
}

simd! {
    fn add[T: Element](a: &[T], b: &[T], out: &mut [T]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = T::from_f32(a.to_f32() + b.to_f32());
        }
    }
}
