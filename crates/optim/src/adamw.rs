//! AdamW with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), as
//! `torch.optim.AdamW` defines it, over fp32 masters that are stored whole or split.
//!
//! With step t counted from 1, gradient g, weight w, moments m and v, and `d = 1 - lr * weight_decay` (1 for tensors
//! without decay), one update is, each line's operations rounded to f32 exactly as written:
//!
//! ```text
//! g = grad_scale * g                                   multiply
//! m = fma(1 - beta1, g - m, m)                         subtract, fma
//! v = fma((1 - beta2) * g, g, beta2 * v)               multiply, multiply, fma
//! q = fma(sqrt(v), 1 / sqrt(1 - beta2^t), eps)         square root, fma
//! w = fma(-lr / (1 - beta1^t), m / q, d * w)           divide, multiply, fma
//! ```
//!
//! All constants are computed once in f64 and rounded to f32 ([`StepScalars`]). Every operation is correctly rounded
//! and denormals are kept, so any processor that follows this list gets the same bits. Where a result cannot be stored
//! (weight or v not finite, or a split weight that [`is_streamable`](megatrain_base::master::is_streamable) refuses),
//! that element keeps its old w, m and v, the others are updated, and the call ends in
//! [`OptimError::NotStorable`] with the number of such elements and the first one.

use crate::kernel::{Refused, update_chunk};
use crate::{CHUNK_ELEMS, Grad, Isa, OptimError};
use rayon::prelude::*;

/// The settings of AdamW that do not change from step to step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamW {
    /// Decay of the first moment, in [0, 1).
    pub beta1: f64,
    /// Decay of the second moment, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment; above 0.
    pub eps: f64,
    /// Decoupled weight decay per unit of learning rate; 0 or more.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// PyTorch's defaults: 0.9, 0.999, 1e-8, 0.01.
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// The constants of one step, rounded to f32: all that a kernel needs to know of AdamW.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct StepScalars {
    /// Factor on every gradient: the clip factor, or 1.
    pub grad_scale: f32,
    /// `1 - beta1`.
    pub one_minus_beta1: f32,
    /// `beta2`.
    pub beta2: f32,
    /// `1 - beta2`.
    pub one_minus_beta2: f32,
    /// `1 / sqrt(1 - beta2^t)`.
    pub inv_sqrt_bias2: f32,
    /// `eps`.
    pub eps: f32,
    /// `-lr / (1 - beta1^t)`.
    pub neg_step_size: f32,
    /// `1 - lr * weight_decay`: the factor on weights that decay.
    pub decay: f32,
}

impl StepScalars {
    /// The constants of step `step`, **counted from 1** (steps that were skipped do not count), with learning rate `lr`
    /// and factor `grad_scale` on the gradients.
    ///
    /// # Errors
    /// [`OptimError::Setting`] for a setting outside its range, named.
    pub fn new(adamw: &AdamW, lr: f64, step: u64, grad_scale: f64) -> Result<StepScalars, OptimError> {
        let check = |name, value: f64, ok: bool, expected| match ok {
            true => Ok(()),
            false => Err(OptimError::Setting { name, value, expected }),
        };
        let &AdamW { beta1, beta2, eps, weight_decay } = adamw;
        check("beta1", beta1, (0.0..1.0).contains(&beta1), "at least 0 and below 1")?;
        check("beta2", beta2, (0.0..1.0).contains(&beta2), "at least 0 and below 1")?;
        // A normal f32 above 0: otherwise a parameter that never had a gradient would be 0 / 0.
        let eps_ok = eps > 0.0 && (eps as f32).is_normal();
        check("eps", eps, eps_ok, "above 0 and representable as a normal 32-bit float, for example 1e-8")?;
        let fits = |x: f64| x >= 0.0 && (x as f32).is_finite();
        check("weight_decay", weight_decay, fits(weight_decay), "finite and at least 0")?;
        check("learning rate", lr, fits(lr), "finite and at least 0")?;
        check("gradient scale", grad_scale, fits(grad_scale), "finite and at least 0")?;
        let decay = 1.0 - lr * weight_decay;
        check("1 - learning rate * weight_decay", decay, decay >= 0.0, "at least 0: weights would change their sign")?;
        check("step", step as f64, step >= 1, "at least 1: steps of AdamW are counted from 1")?;
        Ok(StepScalars {
            grad_scale: grad_scale as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            inv_sqrt_bias2: (1.0 / (1.0 - power(beta2, step)).sqrt()) as f32,
            eps: eps as f32,
            neg_step_size: (-lr / (1.0 - power(beta1, step))) as f32,
            decay: decay as f32,
        })
    }

    /// The factor on the weights of a tensor that decays or does not. A product with 1 is exact.
    fn decay_factor(&self, decay: bool) -> f32 {
        if decay { self.decay } else { 1.0 }
    }
}

/// `base^exponent` by squaring: the same bits on every machine, which `f64::powi` does not promise.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

/// Master weights, changed in place.
#[derive(Debug)]
pub enum Weights<'a> {
    /// fp32 masters, streamed as they are.
    F32(&'a mut [f32]),
    /// Split masters ([`megatrain_base::master`]).
    Split {
        /// The streamed bf16 weights, as bits.
        hi: &'a mut [u16],
        /// The low halves of the masters.
        lo: &'a mut [u16],
    },
}

impl<'a> Weights<'a> {
    fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Weights::F32(w) => {
                let (a, b) = w.split_at_mut(at);
                (Weights::F32(a), Weights::F32(b))
            }
            Weights::Split { hi, lo } => {
                let ((hi_a, hi_b), (lo_a, lo_b)) = (hi.split_at_mut(at), lo.split_at_mut(at));
                (Weights::Split { hi: hi_a, lo: lo_a }, Weights::Split { hi: hi_b, lo: lo_b })
            }
        }
    }
}

/// The buffers of one update, all equally long: element `i` of each belongs to the same parameter.
#[derive(Debug)]
pub struct Params<'a> {
    /// Master weights.
    pub weights: Weights<'a>,
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments.
    pub v: &'a mut [f32],
    /// Gradients, before scaling.
    pub g: Grad<'a>,
}

impl<'a> Params<'a> {
    /// Checks that every buffer has `expected` elements.
    pub(crate) fn check_len(&self, expected: usize) -> Result<(), OptimError> {
        let check = |what, got| match got == expected {
            true => Ok(()),
            false => Err(OptimError::Length { what, expected, got }),
        };
        match &self.weights {
            Weights::F32(w) => check("the weight buffer", w.len())?,
            Weights::Split { hi, lo } => {
                check("the buffer of high weight halves", hi.len())?;
                check("the buffer of low weight halves", lo.len())?;
            }
        }
        check("the buffer of first moments", self.m.len())?;
        check("the buffer of second moments", self.v.len())?;
        check("the gradient", self.g.len())
    }

    pub(crate) fn is_split(&self) -> bool {
        matches!(self.weights, Weights::Split { .. })
    }

    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        let (weights, weights_b) = self.weights.split_at(at);
        let ((m, m_b), (v, v_b)) = (self.m.split_at_mut(at), self.v.split_at_mut(at));
        let (g, g_b) = (self.g.slice(0..at), self.g.slice(at..self.g.len()));
        (Params { weights, m, v, g }, Params { weights: weights_b, m: m_b, v: v_b, g: g_b })
    }
}

/// One unit of parallel work: at most [`CHUNK_ELEMS`] elements of one tensor.
pub(crate) struct Piece<'a> {
    tensor: usize,
    /// Index of the first element in its tensor.
    at: usize,
    decay: bool,
    params: Params<'a>,
}

/// Cuts tensor number `tensor` into pieces.
pub(crate) fn cut<'a>(pieces: &mut Vec<Piece<'a>>, tensor: usize, decay: bool, mut params: Params<'a>) {
    let mut at = 0;
    while params.m.len() > CHUNK_ELEMS {
        let (head, tail) = params.split_at(CHUNK_ELEMS);
        pieces.push(Piece { tensor, at, decay, params: head });
        at += CHUNK_ELEMS;
        params = tail;
    }
    pieces.push(Piece { tensor, at, decay, params });
}

/// Updates all pieces in parallel; `name` names a tensor for the error.
pub(crate) fn run(
    isa: Isa,
    scalars: &StepScalars,
    split: bool,
    pieces: Vec<Piece<'_>>,
    name: impl Fn(usize) -> Option<String>,
) -> Result<(), OptimError> {
    let one = |piece: Piece<'_>| {
        let Params { weights, m, v, g } = piece.params;
        let refused = update_chunk(isa, scalars, scalars.decay_factor(piece.decay), weights, m, v, g);
        (piece.tensor, piece.at, refused)
    };
    let results: Vec<(usize, usize, Refused)> = match pieces.len() {
        1 => pieces.into_iter().map(one).collect(),
        _ => pieces.into_par_iter().map(one).collect(),
    };
    let count = results.iter().map(|(.., refused)| refused.count).sum();
    match results.iter().find_map(|&(tensor, at, refused)| Some((tensor, at, refused.first?))) {
        None => Ok(()),
        Some((tensor, at, first)) => Err(OptimError::NotStorable {
            count,
            first: at + first.index,
            tensor: name(tensor),
            split,
            grad: first.grad,
            weight: first.weight,
        }),
    }
}

/// Updates one tensor with the given instructions, on the threads of the current rayon pool.
///
/// # Errors
/// [`OptimError::Length`] before anything is written; [`OptimError::NotStorable`] after everything storable is.
pub fn update(isa: Isa, scalars: &StepScalars, decay: bool, params: Params<'_>) -> Result<(), OptimError> {
    params.check_len(params.m.len())?;
    let split = params.is_split();
    let mut pieces = Vec::with_capacity(params.m.len().div_ceil(CHUNK_ELEMS));
    cut(&mut pieces, 0, decay, params);
    run(isa, scalars, split, pieces, |_| None)
}

/// Updates one tensor with fp32 masters. 16 bytes read and 12 written a parameter with f32 gradients.
///
/// # Errors
/// As [`update`].
pub fn update_f32(
    scalars: &StepScalars,
    decay: bool,
    w: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    g: Grad<'_>,
) -> Result<(), OptimError> {
    update(Isa::best(), scalars, decay, Params { weights: Weights::F32(w), m, v, g })
}

/// Updates one tensor with split masters. 14 bytes read and 12 written a parameter with bf16 gradients.
///
/// # Errors
/// As [`update`].
pub fn update_split(
    scalars: &StepScalars,
    decay: bool,
    hi: &mut [u16],
    lo: &mut [u16],
    m: &mut [f32],
    v: &mut [f32],
    g: Grad<'_>,
) -> Result<(), OptimError> {
    update(Isa::best(), scalars, decay, Params { weights: Weights::Split { hi, lo }, m, v, g })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        let good = AdamW::default();
        let cases: [(&str, AdamW, f64, u64, f64); 12] = [
            ("beta1", AdamW { beta1: 1.0, ..good }, 1e-3, 1, 1.0),
            ("beta1", AdamW { beta1: f64::NAN, ..good }, 1e-3, 1, 1.0),
            ("beta2", AdamW { beta2: -0.1, ..good }, 1e-3, 1, 1.0),
            ("eps", AdamW { eps: 0.0, ..good }, 1e-3, 1, 1.0),
            ("eps", AdamW { eps: 1e-60, ..good }, 1e-3, 1, 1.0),
            ("weight_decay", AdamW { weight_decay: -0.1, ..good }, 1e-3, 1, 1.0),
            ("weight_decay", AdamW { weight_decay: f64::INFINITY, ..good }, 1e-3, 1, 1.0),
            ("learning rate", good, -1e-3, 1, 1.0),
            ("learning rate", good, f64::NAN, 1, 1.0),
            ("1 - learning rate * weight_decay", AdamW { weight_decay: 10.0, ..good }, 0.2, 1, 1.0),
            ("gradient scale", good, 1e-3, 1, f64::INFINITY),
            ("step", good, 1e-3, 0, 1.0),
        ];
        for (wrong, adamw, lr, step, scale) in cases {
            match StepScalars::new(&adamw, lr, step, scale) {
                Err(OptimError::Setting { name, .. }) => assert_eq!(name, wrong),
                other => panic!("{wrong}: {other:?}"),
            }
        }
    }

    #[test]
    fn powers_and_bias_corrections() {
        assert_eq!((power(0.5, 10), power(0.9, 0), power(0.0, 3)), (1.0 / 1024.0, 1.0, 0.0));
        let s =
            StepScalars::new(&AdamW { beta1: 0.5, beta2: 0.75, eps: 1e-8, weight_decay: 0.5 }, 0.25, 1, 1.0).unwrap();
        assert_eq!((s.neg_step_size, s.inv_sqrt_bias2, s.decay), (-0.5, 2.0, 0.875));
        // Far out the corrections are 1, and no overflow or underflow on the way spoils that.
        let s = StepScalars::new(&AdamW::default(), 1e-3, u64::MAX, 1.0).unwrap();
        assert_eq!((s.neg_step_size, s.inv_sqrt_bias2), (-1e-3, 1.0));
    }
}
