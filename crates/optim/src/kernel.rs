//! The AdamW step of one chunk: a vector loop, and the scalar [`element`] that defines it.

use crate::adamw::StepScalars;
use crate::simd::{Kernel, Simd};
use crate::{Grad, Weights};
use megatrain_base::{bf16, master};

/// The bits of positive infinity: magnitudes from here on are not finite.
const INFINITE: u32 = 0x7f80_0000;

/// Elements that could not be stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    pub count: u64,
    /// The lowest one.
    pub first: Option<RefusedElement>,
}

/// One element that kept its old values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedElement {
    pub index: usize,
    pub weight: f32,
    pub grad: f32,
}

/// The definition: (w, m, v, g) of one parameter to its new (w, m, v). `decay` is the factor on the weight.
#[inline(always)]
pub(crate) fn element(s: &StepScalars, decay: f32, w: f32, m: f32, v: f32, g: f32) -> (f32, f32, f32) {
    let g = g * s.grad_scale;
    let m = s.one_minus_beta1.mul_add(g - m, m);
    let v = (s.one_minus_beta2 * g).mul_add(g, s.beta2 * v);
    let q = v.sqrt().mul_add(s.inv_sqrt_bias2, s.eps);
    let w = s.neg_step_size.mul_add(m / q, decay * w);
    (w, m, v)
}

/// Where the fp32 master lives.
trait Master {
    /// Magnitudes from here on cannot be stored.
    const LIMIT: u32;
    fn len(&self) -> usize;
    fn load<S: Simd>(&self, simd: S, i: usize) -> S::F;
    fn store<S: Simd>(&mut self, simd: S, i: usize, x: S::F);
    fn get(&self, i: usize) -> f32;
    fn set(&mut self, i: usize, x: f32);
}

struct Whole<'a>(&'a mut [f32]);

impl Master for Whole<'_> {
    const LIMIT: u32 = INFINITE;
    #[inline(always)]
    fn len(&self) -> usize {
        self.0.len()
    }
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, i: usize) -> S::F {
        simd.load(&self.0[i..])
    }
    #[inline(always)]
    fn store<S: Simd>(&mut self, simd: S, i: usize, x: S::F) {
        simd.store(x, &mut self.0[i..]);
    }
    #[inline(always)]
    fn get(&self, i: usize) -> f32 {
        self.0[i]
    }
    #[inline(always)]
    fn set(&mut self, i: usize, x: f32) {
        self.0[i] = x;
    }
}

struct Halves<'a> {
    hi: &'a mut [u16],
    lo: &'a mut [u16],
}

impl Master for Halves<'_> {
    /// `master::is_streamable` is `magnitude < LIMIT`; a test below holds the two together.
    const LIMIT: u32 = 0x7f7f_8000;
    #[inline(always)]
    fn len(&self) -> usize {
        self.hi.len()
    }
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, i: usize) -> S::F {
        simd.load_split(&self.hi[i..], &self.lo[i..])
    }
    #[inline(always)]
    fn store<S: Simd>(&mut self, simd: S, i: usize, x: S::F) {
        simd.store_split(x, &mut self.hi[i..], &mut self.lo[i..]);
    }
    #[inline(always)]
    fn get(&self, i: usize) -> f32 {
        f32::from_bits(master::join(self.hi[i], self.lo[i]))
    }
    #[inline(always)]
    fn set(&mut self, i: usize, x: f32) {
        (self.hi[i], self.lo[i]) = master::split(x.to_bits());
    }
}

/// Gradients of one dtype.
trait Grads: Copy {
    fn load<S: Simd>(self, simd: S, i: usize) -> S::F;
    fn get(self, i: usize) -> f32;
}

impl Grads for &[f32] {
    #[inline(always)]
    fn load<S: Simd>(self, simd: S, i: usize) -> S::F {
        simd.load(&self[i..])
    }
    #[inline(always)]
    fn get(self, i: usize) -> f32 {
        self[i]
    }
}

impl Grads for &[bf16] {
    #[inline(always)]
    fn load<S: Simd>(self, simd: S, i: usize) -> S::F {
        simd.load_bf16(&self[i..])
    }
    #[inline(always)]
    fn get(self, i: usize) -> f32 {
        f32::from_bits((self[i].to_bits() as u32) << 16)
    }
}

struct Update<'a, W, G> {
    scalars: &'a StepScalars,
    decay: f32,
    w: W,
    m: &'a mut [f32],
    v: &'a mut [f32],
    g: G,
}

impl<W: Master, G: Grads> Update<'_, W, G> {
    /// Elements `range` one at a time; what cannot be stored stays as it was.
    #[inline(always)]
    fn scalar(&mut self, range: std::ops::Range<usize>, refused: &mut Refused) {
        for i in range {
            let (w, m, v) = element(self.scalars, self.decay, self.w.get(i), self.m[i], self.v[i], self.g.get(i));
            if w.to_bits() & 0x7fff_ffff < W::LIMIT && v.to_bits() & 0x7fff_ffff < INFINITE {
                self.w.set(i, w);
                (self.m[i], self.v[i]) = (m, v);
            } else {
                refused.count += 1;
                refused.first.get_or_insert(RefusedElement { index: i, weight: self.w.get(i), grad: self.g.get(i) });
            }
        }
    }
}

impl<W: Master, G: Grads> Kernel for Update<'_, W, G> {
    type Output = Refused;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) -> Refused {
        let s = self.scalars;
        let (scale, decay) = (simd.splat(s.grad_scale), simd.splat(self.decay));
        let (c1, c2, beta2) = (simd.splat(s.one_minus_beta1), simd.splat(s.one_minus_beta2), simd.splat(s.beta2));
        let (inv, eps, step) = (simd.splat(s.inv_sqrt_bias2), simd.splat(s.eps), simd.splat(s.neg_step_size));
        let len = self.w.len();
        let vectors_end = len - len % S::N;
        let mut refused = Refused::default();
        let mut i = 0;
        while i < vectors_end {
            // The same operations in the same order as `element`.
            let g = simd.mul(self.g.load(simd, i), scale);
            let m = simd.load(&self.m[i..]);
            let m = simd.fma(c1, simd.sub(g, m), m);
            let v = simd.fma(simd.mul(c2, g), g, simd.mul(beta2, simd.load(&self.v[i..])));
            let q = simd.fma(simd.sqrt(v), inv, eps);
            let w = simd.fma(step, simd.div(m, q), simd.mul(decay, self.w.load(simd, i)));
            if simd.any_magnitude_at_least(w, W::LIMIT) | simd.any_magnitude_at_least(v, INFINITE) {
                self.scalar(i..i + S::N, &mut refused);
            } else {
                self.w.store(simd, i, w);
                simd.store(m, &mut self.m[i..]);
                simd.store(v, &mut self.v[i..]);
            }
            i += S::N;
        }
        self.scalar(vectors_end..len, &mut refused);
        refused
    }
}

/// Updates one chunk, whose buffers are equally long, on the calling thread.
pub(crate) fn update_chunk(
    isa: crate::Isa,
    scalars: &StepScalars,
    decay: f32,
    weights: Weights<'_>,
    m: &mut [f32],
    v: &mut [f32],
    g: Grad<'_>,
) -> Refused {
    match (weights, g) {
        (Weights::F32(w), Grad::F32(g)) => isa.run(Update { scalars, decay, w: Whole(w), m, v, g }),
        (Weights::F32(w), Grad::Bf16(g)) => isa.run(Update { scalars, decay, w: Whole(w), m, v, g }),
        (Weights::Split { hi, lo }, Grad::F32(g)) => isa.run(Update { scalars, decay, w: Halves { hi, lo }, m, v, g }),
        (Weights::Split { hi, lo }, Grad::Bf16(g)) => isa.run(Update { scalars, decay, w: Halves { hi, lo }, m, v, g }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_split_masters_is_that_of_base() {
        for bits in [0, Halves::LIMIT - 1, Halves::LIMIT, Halves::LIMIT + 1, INFINITE, u32::MAX >> 1] {
            for signed in [bits, bits | 1 << 31] {
                assert_eq!(master::is_streamable(signed), bits < Halves::LIMIT, "{signed:#x}");
            }
        }
    }
}
