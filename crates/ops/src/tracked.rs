//! [`Tracked`]: arithmetic that carries, beside each value, a bound of what f32 arithmetic may make of it in any order
//! of summation. Running a twin with it gives the conformance bound of every element; no op writes a formula for that.
//!
//! The analysis is running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections
//! 3.3 and 4.2), to first order in the unit roundoff `u = 2^-24`:
//!
//! - A sum of `n` terms `x` errs by at most `(n - 1) u sum |x|` in whatever order it is taken. So a value remembers how
//!   many additions made it and the sum of its terms' magnitudes, and errors of the terms themselves add up.
//! - A product adds `u |ab|` to `|a| err(b) + |b| err(a)`; quotients and roots likewise, with two roundings, so that
//!   multiplying by a reciprocal is allowed.
//! - `exp`, `ln` and `tanh` err by at most [`FUNCTION_ROUNDINGS`] roundings, which good vectorised versions keep.
//! - Results below the smallest normal number may be off by that number.

use crate::Real;
use megatrain_base::DType;
use std::cmp::Ordering;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// Roundings that a transcendental function may cost.
pub const FUNCTION_ROUNDINGS: f64 = 4.0;

const U: f64 = f32::EPSILON as f64 / 2.0;
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// A value in f64 and how far an f32 computation may be from it.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    value: f64,
    /// Error of the terms that were added up.
    inherited: f64,
    /// Sum of the terms' magnitudes.
    magnitude: f64,
    /// Additions so far.
    additions: f64,
}

impl Tracked {
    fn made(value: f64, error: f64) -> Self {
        // No error is claimed where it is not a number: for infinities and what follows from them.
        let inherited = if error.is_nan() { 0.0 } else { error };
        Tracked { value, inherited, magnitude: value.abs(), additions: 0.0 }
    }

    /// How far an f32 result may be from the value.
    pub fn error(&self) -> f64 {
        if self.additions == 0.0 { self.inherited } else { self.inherited + self.additions * U * self.magnitude }
    }
}

impl Add for Tracked {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        if other.magnitude == 0.0 && other.error() == 0.0 {
            return self;
        }
        if self.magnitude == 0.0 && self.error() == 0.0 {
            return other;
        }
        Tracked {
            value: self.value + other.value,
            inherited: self.inherited + other.inherited,
            magnitude: self.magnitude + other.magnitude,
            additions: self.additions + other.additions + 1.0,
        }
    }
}

impl Neg for Tracked {
    type Output = Self;
    fn neg(self) -> Self {
        Tracked { value: -self.value, ..self }
    }
}

impl Sub for Tracked {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Tracked {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let value = self.value * other.value;
        let (ea, eb) = (self.error(), other.error());
        let inherited = self.value.abs() * eb + other.value.abs() * ea + ea * eb;
        Tracked::made(value, inherited + U * value.abs() + if value == 0.0 { 0.0 } else { TINY })
    }
}

impl Div for Tracked {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        let (ea, eb) = (self.error(), other.error());
        let denominator = (other.value.abs() - eb).max(0.0);
        Tracked::made(value, (ea + value.abs() * eb) / denominator + 2.0 * U * value.abs() + TINY)
    }
}

impl AddAssign for Tracked {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Tracked {
    fn sum<I: Iterator<Item = Self>>(terms: I) -> Self {
        terms.fold(Tracked::made(0.0, 0.0), Add::add)
    }
}

impl PartialEq for Tracked {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl PartialOrd for Tracked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl Real for Tracked {
    fn of(x: f64) -> Self {
        let exact = x as f32 as f64 == x || x.is_nan();
        Tracked::made(x, if exact { 0.0 } else { U * x.abs() })
    }
    fn f64(self) -> f64 {
        self.value
    }
    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        let error = self.error();
        let inherited = if value > 0.0 { error / value } else { error.sqrt() };
        Tracked::made(value, inherited + 2.0 * U * value)
    }
    fn exp(self) -> Self {
        let value = self.value.exp();
        Tracked::made(value, value * self.error().exp_m1() + FUNCTION_ROUNDINGS * U * value + TINY)
    }
    fn ln(self) -> Self {
        let value = self.value.ln();
        let denominator = (self.value - self.error()).max(0.0);
        // Near 1 the logarithm is small and its absolute error is what versions for f32 bound.
        Tracked::made(value, self.error() / denominator + FUNCTION_ROUNDINGS * U * value.abs().max(1.0))
    }
    fn tanh(self) -> Self {
        let value = self.value.tanh();
        Tracked::made(value, self.error() + FUNCTION_ROUNDINGS * U * value.abs())
    }
    fn max(self, other: Self) -> Self {
        Tracked::made(self.value.max(other.value), self.error().max(other.error()))
    }
    fn held_in(self, dtype: DType) -> Self {
        let rounding = if dtype == DType::Bf16 { dtype.unit_roundoff() } else { 0.0 };
        Tracked::made(self.value, self.error() + rounding * self.value.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_in_f32(terms: impl Iterator<Item = f32>) -> f64 {
        terms.sum::<f32>() as f64
    }

    #[test]
    fn a_sum_in_any_order_stays_within_the_bound_and_the_bound_is_not_slack() {
        let terms: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).sin() * 10f32.powi(i % 5)).collect();
        let tracked: Tracked = terms.iter().map(|&x| Tracked::of(x as f64)).sum();
        let mut ascending = terms.clone();
        ascending.sort_by(f32::total_cmp);
        for (what, sum) in [
            ("as given", sum_in_f32(terms.iter().copied())),
            ("backwards", sum_in_f32(terms.iter().rev().copied())),
            ("ascending, the worst", sum_in_f32(ascending.iter().copied())),
        ] {
            let error = (sum - tracked.f64()).abs();
            assert!(error <= tracked.error(), "{what}: {error:e} > {:e}", tracked.error());
        }
        let magnitudes: f64 = terms.iter().map(|x| x.abs() as f64).sum();
        assert!(tracked.error() <= 1000.0 * U * magnitudes);
    }

    #[test]
    fn functions_and_products_bound_what_f32_does() {
        for i in 1..2000 {
            let x = i as f32 * 0.0173;
            let t = Tracked::of(x as f64);
            for (what, tracked, plain) in [
                ("exp", (-t).exp(), (-x).exp()),
                ("ln", t.ln(), x.ln()),
                ("sqrt", t.sqrt(), x.sqrt()),
                ("tanh", t.tanh(), x.tanh()),
                ("1/x", Tracked::of(1.0) / t, 1.0 / x),
                ("x*x*x", t * t * t, x * x * x),
                ("exp(x - 3) / x", (t - Tracked::of(3.0)).exp() / t, (x - 3.0).exp() / x),
            ] {
                let error = (plain as f64 - tracked.f64()).abs();
                assert!(error <= tracked.error(), "{what} of {x}: {error:e} > {:e}", tracked.error());
            }
        }
    }

    #[test]
    fn infinities_do_not_make_bounds_of_nan() {
        let barred = (Tracked::of(f64::NEG_INFINITY) - Tracked::of(3.0)).exp();
        assert_eq!(barred.f64(), 0.0);
        assert!(barred.error().is_finite());
    }
}
