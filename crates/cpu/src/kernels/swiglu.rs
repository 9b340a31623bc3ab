//! SwiGLU forward and backward.

use super::{by_float, math, par, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::{SwiGlu, SwiGluBackward};

/// Plain elements that one element costs (an exponential and a division).
const COST: usize = 4;

/// Runs the forward op.
pub(super) fn forward(op: &SwiGlu, operands: &Operands) {
    by_float!(op.out, T => forward_typed::<T>(op, operands));
}

fn forward_typed<T: Element>(op: &SwiGlu, operands: &Operands) {
    let gate_up = operands.read::<T>(&op.gate_up);
    let n = op.out.shape.last();
    if n == 0 {
        return;
    }
    let rows = par::rows_per_chunk(n * COST);
    par::chunks(operands.write::<T>(&op.out), rows * n, |chunk, out| {
        for (out, gate_up) in out.chunks_exact_mut(n).zip(gate_up[chunk * rows * 2 * n..].chunks_exact(2 * n)) {
            forward_row(&gate_up[..n], &gate_up[n..], out);
        }
    });
}

simd! {
    fn forward_row[T: Element](gate: &[T], up: &[T], out: &mut [T]) {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            let z = gate.to_f32();
            *out = T::from_f32(z * math::sigmoid(z) * up.to_f32());
        }
    }
}

/// Runs the backward op.
pub(super) fn backward(op: &SwiGluBackward, operands: &Operands) {
    by_float!(op.dout, T => backward_typed::<T>(op, operands));
}

fn backward_typed<T: Element>(op: &SwiGluBackward, operands: &Operands) {
    let dout = operands.read::<T>(&op.dout);
    let n = op.dout.shape.last();
    if n == 0 {
        return;
    }
    let rows = par::rows_per_chunk(n * COST);
    par::chunks(operands.write::<T>(&op.gate_up), rows * 2 * n, |chunk, gate_up| {
        for (gate_up, dout) in gate_up.chunks_exact_mut(2 * n).zip(dout[chunk * rows * n..].chunks_exact(n)) {
            let (gate, up) = gate_up.split_at_mut(n);
            backward_row(dout, gate, up);
        }
    });
}

simd! {
    fn backward_row[T: Element](dout: &[T], gate: &mut [T], up: &mut [T]) {
        for ((dout, gate), up) in dout.iter().zip(gate).zip(up) {
            let (d, z, u) = (dout.to_f32(), gate.to_f32(), up.to_f32());
            let s = math::sigmoid(z);
            *up = T::from_f32(d * (z * s));
            *gate = T::from_f32(d * u * s * (1.0 + z * (1.0 - s)));
        }
    }
}
