//! [`Tracked`]: arithmetic that carries, beside each value, a bound of what f32 arithmetic may make of it in any order
//! of summation; [`TrackedWide`]: of what f64 arithmetic may. Running a twin with it gives the conformance bound of every
//! element; no op writes a formula for that.
//!
//! The analysis is running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections
//! 3.3 and 4.2), to first order in the unit roundoff `u`, 2^-24 in f32:
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
use std::marker::PhantomData;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// Roundings that a transcendental function may cost.
pub const FUNCTION_ROUNDINGS: f64 = 4.0;

/// The arithmetic whose errors are bounded.
pub trait Format: Copy + std::fmt::Debug + 'static {
    /// Unit roundoff.
    const U: f64;
    /// Smallest normal number.
    const TINY: f64;
    /// Whether it has this number.
    fn holds(x: f64) -> bool;
}

impl Format for f32 {
    const U: f64 = f32::EPSILON as f64 / 2.0;
    const TINY: f64 = f32::MIN_POSITIVE as f64;
    fn holds(x: f64) -> bool {
        x as f32 as f64 == x || x.is_nan()
    }
}

impl Format for f64 {
    const U: f64 = f64::EPSILON / 2.0;
    const TINY: f64 = f64::MIN_POSITIVE;
    fn holds(_: f64) -> bool {
        true
    }
}

/// For ops that compute in f32.
pub type Tracked = TrackedIn<f32>;
/// For results in f64, which are computed in f64.
pub type TrackedWide = TrackedIn<f64>;

/// A value in f64 and how far a computation in `F` may be from it.
#[derive(Clone, Copy, Debug)]
pub struct TrackedIn<F> {
    value: f64,
    /// Error of the terms that were added up.
    inherited: f64,
    /// Sum of the terms' magnitudes.
    magnitude: f64,
    /// Additions so far.
    additions: f64,
    format: PhantomData<F>,
}

impl<F: Format> TrackedIn<F> {
    fn made(value: f64, error: f64) -> Self {
        // No error is claimed where it is not a number: for infinities and what follows from them.
        let inherited = if error.is_nan() { 0.0 } else { error };
        TrackedIn { value, inherited, magnitude: value.abs(), additions: 0.0, format: PhantomData }
    }

    /// How far a result in `F` may be from the value.
    pub fn error(&self) -> f64 {
        if self.additions == 0.0 { self.inherited } else { self.inherited + self.additions * F::U * self.magnitude }
    }
}

impl<F: Format> Add for TrackedIn<F> {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        if other.magnitude == 0.0 && other.error() == 0.0 {
            return self;
        }
        if self.magnitude == 0.0 && self.error() == 0.0 {
            return other;
        }
        TrackedIn {
            value: self.value + other.value,
            inherited: self.inherited + other.inherited,
            magnitude: self.magnitude + other.magnitude,
            additions: self.additions + other.additions + 1.0,
            format: PhantomData,
        }
    }
}

impl<F: Format> Neg for TrackedIn<F> {
    type Output = Self;
    fn neg(self) -> Self {
        TrackedIn { value: -self.value, ..self }
    }
}

impl<F: Format> Sub for TrackedIn<F> {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl<F: Format> Mul for TrackedIn<F> {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let value = self.value * other.value;
        let (ea, eb) = (self.error(), other.error());
        let inherited = self.value.abs() * eb + other.value.abs() * ea + ea * eb;
        Self::made(value, inherited + F::U * value.abs() + if value == 0.0 { 0.0 } else { F::TINY })
    }
}

impl<F: Format> Div for TrackedIn<F> {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        let (ea, eb) = (self.error(), other.error());
        let denominator = (other.value.abs() - eb).max(0.0);
        Self::made(value, (ea + value.abs() * eb) / denominator + 2.0 * F::U * value.abs() + F::TINY)
    }
}

impl<F: Format> AddAssign for TrackedIn<F> {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl<F: Format> Sum for TrackedIn<F> {
    fn sum<I: Iterator<Item = Self>>(terms: I) -> Self {
        terms.fold(Self::made(0.0, 0.0), Add::add)
    }
}

impl<F: Format> PartialEq for TrackedIn<F> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<F: Format> PartialOrd for TrackedIn<F> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl<F: Format> Real for TrackedIn<F> {
    fn of(x: f64) -> Self {
        Self::made(x, if F::holds(x) { 0.0 } else { F::U * x.abs() })
    }
    fn f64(self) -> f64 {
        self.value
    }
    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        let error = self.error();
        let inherited = if value > 0.0 { error / value } else { error.sqrt() };
        Self::made(value, inherited + 2.0 * F::U * value)
    }
    fn exp(self) -> Self {
        let value = self.value.exp();
        Self::made(value, value * self.error().exp_m1() + FUNCTION_ROUNDINGS * F::U * value + F::TINY)
    }
    fn ln(self) -> Self {
        let value = self.value.ln();
        let denominator = (self.value - self.error()).max(0.0);
        // Near 1 the logarithm is small and its absolute error is what versions for f32 bound.
        Self::made(value, self.error() / denominator + FUNCTION_ROUNDINGS * F::U * value.abs().max(1.0))
    }
    fn tanh(self) -> Self {
        let value = self.value.tanh();
        Self::made(value, self.error() + FUNCTION_ROUNDINGS * F::U * value.abs())
    }
    fn max(self, other: Self) -> Self {
        Self::made(self.value.max(other.value), self.error().max(other.error()))
    }
    fn held_in(self, dtype: DType) -> Self {
        let rounding = if dtype == DType::Bf16 { dtype.unit_roundoff() } else { 0.0 };
        Self::made(self.value, self.error() + rounding * self.value.abs())
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
        assert!(tracked.error() <= 1000.0 * <f32 as Format>::U * magnitudes);
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
