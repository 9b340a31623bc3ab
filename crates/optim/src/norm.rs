//! The global gradient norm, the clip factor, and the verdict whether a step is applied.
//!
//! A norm is `sqrt(sum over all gradients of g^2)`. Squares of f32 are exact in f64 and are summed there in an order
//! that depends on the data's length alone: 32 interleaved sums in a chunk of [`CHUNK_ELEMS`], added pairwise, chunks
//! in order. A norm that is not finite stays so; it is never turned into a number that looks like one.

use crate::simd::{Kernel, SUM_LANES, Simd};
use crate::slab::tensor_ranges;
use crate::{CHUNK_ELEMS, Grad, Isa, OptimError};
use megatrain_base::{Element, SlabLayout, bf16};
use rayon::prelude::*;
use std::fmt;
use std::ops::Range;

/// Sum of squares of some gradients.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct SquareSum {
    /// The sum; NaN or infinity exactly where `nonfinite` is not 0 (squares of f32 cannot overflow an f64 sum).
    pub sum: f64,
    /// How many of the gradients are NaN or infinite.
    pub nonfinite: u64,
}

impl SquareSum {
    /// Of one gradient tensor, on the threads of the current rayon pool.
    pub fn of(g: Grad<'_>) -> SquareSum {
        SquareSum::of_with(Isa::best(), g)
    }

    /// [`SquareSum::of`] with the given instructions.
    pub fn of_with(isa: Isa, g: Grad<'_>) -> SquareSum {
        of_ranges(isa, g, std::iter::once(0..g.len()))
    }

    /// Of a gradient slab: every tensor of the layout once, padding not read.
    ///
    /// # Errors
    /// [`OptimError::Length`] if `g` is not a whole slab, [`OptimError::Layout`] for a broken layout.
    pub fn of_slab(layout: &SlabLayout, g: Grad<'_>) -> Result<SquareSum, OptimError> {
        let expected = layout.len_elems() as usize;
        if g.len() != expected {
            return Err(OptimError::Length { what: "the gradient", expected, got: g.len() });
        }
        Ok(of_ranges(Isa::best(), g, tensor_ranges(layout)?.into_iter()))
    }

    /// The sum of several, added in the order given: give them in a fixed order (by unit), not in order of arrival.
    pub fn total(parts: impl IntoIterator<Item = SquareSum>) -> SquareSum {
        parts
            .into_iter()
            .fold(SquareSum::default(), |a, b| SquareSum { sum: a.sum + b.sum, nonfinite: a.nonfinite + b.nonfinite })
    }

    /// The norm; NaN or infinity where a gradient was.
    pub fn norm(self) -> f64 {
        self.sum.sqrt()
    }
}

/// The norm of all gradients from the sums of its parts: [`SquareSum::total`], then the root.
pub fn global_norm(parts: impl IntoIterator<Item = SquareSum>) -> f64 {
    SquareSum::total(parts).norm()
}

fn of_ranges(isa: Isa, g: Grad<'_>, ranges: impl Iterator<Item = Range<usize>>) -> SquareSum {
    let chunks: Vec<Range<usize>> =
        ranges.flat_map(|r| r.clone().step_by(CHUNK_ELEMS).map(move |at| at..r.end.min(at + CHUNK_ELEMS))).collect();
    let sums: Vec<SquareSum> = chunks.into_par_iter().map(|chunk| of_chunk(isa, g.slice(chunk))).collect();
    SquareSum::total(sums)
}

fn of_chunk(isa: Isa, g: Grad<'_>) -> SquareSum {
    let sum = match g {
        Grad::F32(g) => isa.run(Squares(g)),
        Grad::Bf16(g) => isa.run(Squares(g)),
    };
    if sum.is_finite() {
        return SquareSum { sum, nonfinite: 0 };
    }
    // Rare, so counted in a second pass. The sum is made canonical: NaNs differ in their bits from processor to
    // processor.
    let (nan, infinite) = match g {
        Grad::F32(g) => count_nonfinite(g),
        Grad::Bf16(g) => count_nonfinite(g),
    };
    SquareSum { sum: if nan > 0 { f64::NAN } else { f64::INFINITY }, nonfinite: nan + infinite }
}

/// How many are NaN, and how many infinite.
fn count_nonfinite<T: Element>(g: &[T]) -> (u64, u64) {
    g.iter().map(|x| x.to_f32()).fold((0, 0), |(nan, inf), x| (nan + x.is_nan() as u64, inf + x.is_infinite() as u64))
}

struct Squares<'a, T>(&'a [T]);

/// Elements whose squares can be added.
trait Squarable: Element {
    fn add<S: Simd>(simd: S, sums: &mut S::Squares, from: &[Self]);
}

impl Squarable for f32 {
    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: &mut S::Squares, from: &[f32]) {
        simd.add_squares_f32(sums, from);
    }
}

impl Squarable for bf16 {
    #[inline(always)]
    fn add<S: Simd>(simd: S, sums: &mut S::Squares, from: &[bf16]) {
        simd.add_squares_bf16(sums, from);
    }
}

impl<T: Squarable> Kernel for Squares<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        let groups = self.0.chunks_exact(SUM_LANES);
        let tail = groups.remainder();
        let mut sums = simd.no_squares();
        for group in groups {
            T::add(simd, &mut sums, group);
        }
        let mut sums = simd.squares_to_array(sums);
        for (sum, x) in sums.iter_mut().zip(tail) {
            let x = x.to_f32() as f64;
            *sum += x * x;
        }
        let mut width = SUM_LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                sums[i] += sums[i + width];
            }
        }
        sums[0]
    }
}

/// The factor on all gradients that brings a norm down to `max_norm`: `min(1, max_norm / (norm + 1e-6))`, as PyTorch's
/// `clip_grad_norm_`. `None` where the norm is not finite: no factor repairs that.
pub fn clip_factor(norm: f64, max_norm: f64) -> Option<f64> {
    norm.is_finite().then(|| (max_norm / (norm + 1e-6)).min(1.0))
}

/// Why a step changes nothing: neither weights nor moments nor the count of AdamW steps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SkipReason {
    /// Gradients are NaN or infinite.
    NonFiniteGradient {
        /// How many.
        count: u64,
        /// The norm as it is, for the log: NaN or infinity.
        norm: f64,
    },
    /// No token of the step is a target, so there is nothing to learn from.
    NoTargets,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SkipReason::NonFiniteGradient { count, norm } => {
                write!(f, "{count} gradient element(s) are NaN or infinite, the norm is {norm}")
            }
            SkipReason::NoTargets => f.write_str("no token of the step is a target"),
        }
    }
}

/// What becomes of a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// It is applied.
    Apply {
        /// Factor on every gradient: [`StepScalars::new`](crate::StepScalars::new)'s `grad_scale`.
        scale: f64,
        /// The norm before clipping.
        norm: f64,
    },
    /// It is skipped, all of it.
    Skip(SkipReason),
}

impl Verdict {
    /// Judges a step by the total of its squares, the number of its targets, and the largest norm allowed (`None`: no
    /// clipping).
    ///
    /// # Errors
    /// [`OptimError::Setting`] if `max_norm` is not above 0.
    pub fn new(total: SquareSum, targets: u64, max_norm: Option<f64>) -> Result<Verdict, OptimError> {
        if let Some(value) = max_norm.filter(|max| max.is_nan() || *max <= 0.0) {
            let expected = "above 0; leave it out for no clipping";
            return Err(OptimError::Setting { name: "the norm to clip to", value, expected });
        }
        if targets == 0 {
            return Ok(Verdict::Skip(SkipReason::NoTargets));
        }
        let norm = total.norm();
        match clip_factor(norm, max_norm.unwrap_or(f64::INFINITY)) {
            Some(scale) if total.nonfinite == 0 => Ok(Verdict::Apply { scale, norm }),
            _ => Ok(Verdict::Skip(SkipReason::NonFiniteGradient { count: total.nonfinite, norm })),
        }
    }
}
