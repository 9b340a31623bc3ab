//! Sum of squares, and count of what is not finite: 32 interleaved sums in a chunk of fixed length, added pairwise, chunks
//! in order. The same order as `megatrain_optim::SquareSum`, so that both give the same bits.

use super::{by_float, par, scratch::Scratch, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::SquareSum;

/// Elements of a chunk.
const CHUNK_ELEMS: usize = 1 << 16;

/// Sums side by side.
const LANES: usize = 32;

/// Runs the op.
pub(super) fn run(op: &SquareSum, operands: &Operands) {
    by_float!(op.x, T => typed::<T>(op, operands));
}

fn typed<T: Element>(op: &SquareSum, operands: &Operands) {
    let (x, part) = (operands.read::<T>(&op.x), operands.write::<f64>(&op.part));
    // 16 bytes a chunk of at least 128 KB.
    let mut parts = Scratch::<f64>::take(2 * x.len().div_ceil(CHUNK_ELEMS));
    par::chunks(&mut parts, 2, |i, part| {
        let x = &x[i * CHUNK_ELEMS..x.len().min((i + 1) * CHUNK_ELEMS)];
        let sum = squares(x);
        // Squares of f32 cannot overflow, so a finite sum has finite terms; others are rare and counted apart. NaNs differ
        // in their bits from processor to processor.
        let nonfinite = if sum.is_finite() { 0 } else { x.iter().filter(|x| !x.to_f32().is_finite()).count() };
        part.copy_from_slice(&[if sum.is_nan() { f64::NAN } else { sum }, nonfinite as f64]);
    });
    part.fill(0.0);
    for chunk in parts.chunks_exact(2) {
        part[0] += chunk[0];
        part[1] += chunk[1];
    }
}

simd! {
    fn squares[T: Element](x: &[T]) -> f64 {
        let mut sums = [0.0f64; LANES];
        let mut groups = x.chunks_exact(LANES);
        for group in &mut groups {
            for (sum, x) in sums.iter_mut().zip(group) {
                let x = f64::from(x.to_f32());
                *sum += x * x;
            }
        }
        for (sum, x) in sums.iter_mut().zip(groups.remainder()) {
            let x = f64::from(x.to_f32());
            *sum += x * x;
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                sums[i] += sums[i + width];
            }
        }
        sums[0]
    }
}
