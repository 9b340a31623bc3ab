//! Cross-entropy of next-token logits: per-row loss and, fused, the gradient of the logits.
//!
//! `loss[t] = ln(sum_v e^logits[t, v]) - logits[t, target[t]]`; rows whose target is [`IGNORE_TARGET`] have loss 0 and
//! gradient 0. `dlogits[t, v] = (softmax_v(logits[t]) - [v == target[t]]) * inv_targets`.

use crate::check::{Check, FLOATS};
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::{DType, Tensor};

/// The target of a token that is not trained on (Hugging Face's convention).
pub const IGNORE_TARGET: i32 = -100;

op! {
    /// Loss and gradient of a chunk of logits.
    CrossEntropy = "cross_entropy" {
        /// `[rows, vocab]` f32
        read logits,
        /// `[rows]` i32; already shifted: the token that follows
        read targets,
        /// `[1]` f32: 1 / number of targets of the whole optimizer step
        read inv_targets,
        /// `[rows, vocab]`
        write dlogits,
        /// `[rows]` f32, not scaled
        write losses,
    }
}

op! {
    /// Loss of a chunk of logits, without gradient.
    CrossEntropyLoss = "cross_entropy_loss" {
        /// `[rows, vocab]` f32
        read logits,
        /// `[rows]` i32
        read targets,
        /// `[rows]` f32, not scaled
        write losses,
    }
}

impl OpSpec for CrossEntropy {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let (rows, vocab) = check_inputs(&c, &self.logits, &self.targets, &self.losses)?;
        c.shape("inv_targets", &self.inv_targets, &[1])?;
        c.dtype("inv_targets", &self.inv_targets, &[DType::F32])?;
        c.shape("dlogits", &self.dlogits, &[rows, vocab])?;
        c.dtype("dlogits", &self.dlogits, FLOATS)
    }

    /// Six a logit: maximum, difference, exponential, sum, and quotient and scaling of the gradient.
    fn flops(&self) -> f64 {
        6.0 * self.logits.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (logits, targets) = (io.get(&self.logits), io.ints(&self.targets));
        let scale = io.get(&self.inv_targets)[0];
        let vocab = self.logits.shape.last();
        let (mut dlogits, mut losses) = (Vec::with_capacity(logits.len()), Vec::new());
        for (row, (logits, &target)) in logits.chunks(vocab).zip(&targets).enumerate() {
            let Some(target) = target_index(row, target, vocab) else {
                dlogits.extend(vec![R::of(0.0); vocab]);
                losses.push(R::of(0.0));
                continue;
            };
            let (max, sum) = softmax_parts(logits);
            dlogits.extend(logits.iter().enumerate().map(|(v, &x)| {
                let p = (x - max).exp() / sum;
                (if v == target { p - R::of(1.0) } else { p }) * scale
            }));
            losses.push(sum.ln() + (max - logits[target]));
        }
        io.set(&self.dlogits, dlogits);
        io.set(&self.losses, losses);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_chunks(|name, rows, vocab, logits_fill, targets_fill| {
            for dtype in [DType::F32, DType::Bf16] {
                let mut at = Places::default();
                let op = CrossEntropy {
                    logits: at.tensor(DType::F32, [rows, vocab]),
                    targets: at.tensor(DType::I32, [rows]),
                    inv_targets: at.tensor(DType::F32, [1usize]),
                    dlogits: at.tensor(dtype, [rows, vocab]),
                    losses: at.tensor(DType::F32, [rows]),
                };
                cases.push(
                    Case::new(format!("{name}, gradient in {dtype}"), op)
                        .fill(op.logits, logits_fill.clone())
                        .fill(op.targets, Fill::Ints(targets_fill.clone()))
                        .fill(op.inv_targets, Fill::Values(vec![1.0 / 37.0])),
                );
            }
        });
        cases
    }
}

impl OpSpec for CrossEntropyLoss {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        check_inputs(&c, &self.logits, &self.targets, &self.losses).map(|_| ())
    }

    /// Four a logit: maximum, difference, exponential, sum.
    fn flops(&self) -> f64 {
        4.0 * self.logits.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (logits, targets) = (io.get(&self.logits), io.ints(&self.targets));
        let vocab = self.logits.shape.last();
        let rows = logits.chunks(vocab).zip(&targets).enumerate();
        let losses = rows.map(|(row, (logits, &target))| match target_index(row, target, vocab) {
            None => R::of(0.0),
            Some(target) => {
                let (max, sum) = softmax_parts(logits);
                sum.ln() + (max - logits[target])
            }
        });
        io.set(&self.losses, losses.collect());
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_chunks(|name, rows, vocab, logits_fill, targets_fill| {
            let mut at = Places::default();
            let op = CrossEntropyLoss {
                logits: at.tensor(DType::F32, [rows, vocab]),
                targets: at.tensor(DType::I32, [rows]),
                losses: at.tensor(DType::F32, [rows]),
            };
            cases.push(Case::new(name, op).fill(op.logits, logits_fill).fill(op.targets, Fill::Ints(targets_fill)));
        });
        cases
    }
}

fn check_inputs(c: &Check, logits: &Tensor, targets: &Tensor, losses: &Tensor) -> Result<(usize, usize), OpError> {
    let (rows, vocab) = c.matrix("logits", logits)?;
    c.dtype("logits", logits, &[DType::F32])?;
    c.shape("targets", targets, &[rows])?;
    c.dtype("targets", targets, &[DType::I32])?;
    c.shape("losses", losses, &[rows])?;
    c.dtype("losses", losses, &[DType::F32])?;
    Ok((rows, vocab))
}

/// The target as an index, `None` when the row is ignored.
///
/// # Panics
/// On any other value outside `0..vocab`: whoever makes the targets has to refuse it.
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

/// `(max, sum of e^(x - max))`.
fn softmax_parts<R: Real>(x: &[R]) -> (R, R) {
    let max = x.iter().copied().fold(x[0], R::max);
    (max, x.iter().map(|&x| (x - max).exp()).sum())
}

/// The cases' names, rows, vocabularies, logits and targets.
fn for_chunks(mut make: impl FnMut(String, usize, usize, Fill, Vec<i32>)) {
    let spread = |rows: usize, vocab: usize| -> Vec<i32> {
        (0..rows).map(|r| if r == 0 { vocab - 1 } else { r * 7919 % vocab } as i32).collect()
    };
    for (rows, vocab) in [(1, 2), (31, 259), (33, 64), (2, 5003), (5, 1)] {
        make(format!("{rows}x{vocab}"), rows, vocab, Fill::Normal(2.0), spread(rows, vocab));
    }
    let mut holes = spread(33, 259);
    holes.iter_mut().step_by(3).for_each(|t| *t = IGNORE_TARGET);
    make("some rows without target".into(), 33, 259, Fill::Normal(2.0), holes);
    make("no row with a target".into(), 7, 259, Fill::Normal(2.0), vec![IGNORE_TARGET; 7]);
    make("ignored row of NaN".into(), 1, 3, Fill::Values(vec![f32::NAN; 3]), vec![IGNORE_TARGET]);
    make("large logits".into(), 9, 259, Fill::Normal(1e4), spread(9, 259));
    let barred = vec![f32::NEG_INFINITY, 1.0, 2.0, 1e4, -1e4, f32::NEG_INFINITY, 0.0, 0.0];
    make("logits of minus infinity".into(), 2, 4, Fill::Values(barred), vec![1, 3]);
}
