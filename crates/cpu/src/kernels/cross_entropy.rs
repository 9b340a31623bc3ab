//! Cross-entropy and its gradient, row by row: a row of logits is read from memory once and stays in the cache for the
//! passes that follow.

use super::{by_float, math, par, scratch::Scratch, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::{CrossEntropy, CrossEntropyLoss, IGNORE_TARGET};

/// Plain elements that one logit costs.
const COST: usize = 8;

/// Runs the op.
pub(super) fn run(op: &CrossEntropy, operands: &Operands) {
    by_float!(op.dlogits, T => typed::<T>(op, operands));
}

fn typed<T: Element>(op: &CrossEntropy, operands: &Operands) {
    let (logits, targets) = (operands.read::<f32>(&op.logits), operands.read::<i32>(&op.targets));
    let inv_targets = operands.read::<f32>(&op.inv_targets)[0];
    let (dlogits, losses) = (operands.write::<T>(&op.dlogits), operands.write::<f32>(&op.losses));
    let vocab = op.logits.shape.last();
    if vocab == 0 {
        return losses.fill(0.0);
    }
    let rows = par::rows_per_chunk(vocab * COST);
    par::chunks2(dlogits, rows * vocab, losses, rows, |chunk, dlogits, losses| {
        // e^(logit - max) of one row, which the second-level cache holds.
        let mut weights = Scratch::<f32>::take(vocab);
        for (i, (dlogits, loss)) in dlogits.chunks_exact_mut(vocab).zip(losses).enumerate() {
            let row = chunk * rows + i;
            let logits = &logits[row * vocab..][..vocab];
            *loss = match target_index(row, targets[row], vocab) {
                None => {
                    dlogits.fill(T::from_f32(0.0));
                    0.0
                }
                Some(target) => {
                    let (max, sum) = softmax(logits, &mut weights);
                    let scale = inv_targets / sum;
                    gradient(&weights, scale, dlogits);
                    // The target's element again, with the one subtracted before any rounding to T.
                    dlogits[target] = T::from_f32((weights[target] / sum - 1.0) * inv_targets);
                    sum.ln() + (max - logits[target])
                }
            };
        }
    });
}

/// Runs the op without gradient.
pub(super) fn loss(op: &CrossEntropyLoss, operands: &Operands) {
    let (logits, targets) = (operands.read::<f32>(&op.logits), operands.read::<i32>(&op.targets));
    let losses = operands.write::<f32>(&op.losses);
    let vocab = op.logits.shape.last();
    let rows = par::rows_per_chunk(vocab * COST);
    par::chunks(losses, rows, |chunk, losses| {
        for (i, loss) in losses.iter_mut().enumerate() {
            let row = chunk * rows + i;
            let logits = &logits[row * vocab..][..vocab];
            *loss = target_index(row, targets[row], vocab).map_or(0.0, |target| {
                let (max, sum) = softmax_parts(logits);
                sum.ln() + (max - logits[target])
            });
        }
    });
}

fn target_index(row: usize, target: i32, vocab: usize) -> Option<usize> {
    if target == IGNORE_TARGET {
        return None;
    }
    assert!(
        target >= 0 && (target as usize) < vocab,
        "cross entropy: target {target} of row {row} is neither {IGNORE_TARGET} (ignored) nor in 0..{vocab}"
    );
    Some(target as usize)
}

simd! {
    /// The largest logit and `sum(e^(logit - max))`.
    fn softmax_parts(logits: &[f32]) -> (f32, f32) {
        let max = math::reduce(logits, f32::NEG_INFINITY, math::max, |x| x);
        (max, math::reduce(logits, 0.0, |a, b| a + b, |x| math::exp(x - max)))
    }
}

simd! {
    /// As [`softmax_parts`]; keeps the summands.
    fn softmax(logits: &[f32], weights: &mut [f32]) -> (f32, f32) {
        let max = math::reduce(logits, f32::NEG_INFINITY, math::max, |x| x);
        for (weight, x) in weights.iter_mut().zip(logits) {
            *weight = math::exp(x - max);
        }
        (max, math::reduce(weights, 0.0, |a, b| a + b, |x| x))
    }
}

simd! {
    fn gradient[T: Element](weights: &[f32], scale: f32, dlogits: &mut [T]) {
        for (d, w) in dlogits.iter_mut().zip(weights) {
            *d = T::from_f32(w * scale);
        }
    }
}
