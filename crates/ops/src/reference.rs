//! What reference twins compute with: [`Real`] arithmetic and [`RefIo`], values by span.

use megatrain_base::{DType, Element, Span, Tensor, bf16};
use std::collections::HashMap;

/// f32 (the plain same-dtype computation) or f64 (the truth).
pub trait Real:
    Copy
    + PartialOrd
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::iter::Sum
    + 'static
{
    /// From f64, rounding.
    fn of(x: f64) -> Self;
    /// To f64.
    fn f64(self) -> f64;
    /// Square root.
    fn sqrt(self) -> Self;
    /// e^x.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The larger of two.
    fn max(self, other: Self) -> Self;
    /// An intermediate that kernels may hold in `dtype` (the operands' own): the plain computation rounds it, the
    /// truth does not.
    fn held_in(self, dtype: DType) -> Self;
}

macro_rules! real {
    ($t:ty, $held_in:expr) => {
        impl Real for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn f64(self) -> f64 {
                self as f64
            }
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            fn exp(self) -> Self {
                self.exp()
            }
            fn ln(self) -> Self {
                self.ln()
            }
            fn tanh(self) -> Self {
                self.tanh()
            }
            fn max(self, other: Self) -> Self {
                self.max(other)
            }
            fn held_in(self, dtype: DType) -> Self {
                let f: fn($t, DType) -> $t = $held_in;
                f(self, dtype)
            }
        }
    };
}
real!(f32, |x, dtype| if dtype == DType::Bf16 { Element::to_f32(<bf16 as Element>::from_f32(x)) } else { x });
real!(f64, |x, _| x);

/// The values of an op's operands. Outputs are kept unrounded: whoever compares decides about rounding.
#[derive(Clone, Debug, Default)]
pub struct RefIo<R> {
    reals: HashMap<Span, Vec<R>>,
    ints: HashMap<Span, Vec<i32>>,
}

impl<R: Real> RefIo<R> {
    /// No values.
    pub fn new() -> Self {
        RefIo { reals: HashMap::new(), ints: HashMap::new() }
    }
    /// The values of a float operand. Panics if there are none: the op did not declare it or nobody filled it.
    pub fn get(&self, t: &Tensor) -> Vec<R> {
        self.reals.get(&t.span).unwrap_or_else(|| panic!("no values for {t}")).clone()
    }
    /// The values of an integer operand.
    pub fn ints(&self, t: &Tensor) -> Vec<i32> {
        self.ints.get(&t.span).unwrap_or_else(|| panic!("no integers for {t}")).clone()
    }
    /// Sets the values of a float operand.
    pub fn set(&mut self, t: &Tensor, values: Vec<R>) {
        assert_eq!(values.len(), t.elems(), "{t}");
        self.reals.insert(t.span, values);
    }
    /// Sets the values of a float operand, or adds them to what it holds: for `accum` operands.
    pub fn add_or_set(&mut self, t: &Tensor, mut values: Vec<R>, add: bool) {
        if add {
            values = self.get(t).into_iter().zip(values).map(|(old, new)| old + new).collect();
        }
        self.set(t, values);
    }
    /// Sets the values of an integer operand.
    pub fn set_ints(&mut self, t: &Tensor, values: Vec<i32>) {
        assert_eq!(values.len(), t.elems(), "{t}");
        self.ints.insert(t.span, values);
    }
}
