//! What reference twins compute with: [`Real`] arithmetic and [`RefIo`], values by span; and [`run_on`], a twin on memory.

use crate::Op;
use megatrain_base::{Access, DType, Element, Operands, Span, Tensor, bf16};
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

/// Runs an op's twin on memory, rounding to nearest even on store; in f32, or in f64 where a result is one. Slow: it is
/// what executors fall back to for an op they have no kernel for.
///
/// # Panics
/// If `operands` does not hold the op's operands, or index data is out of range.
pub fn run_on(op: &Op, operands: &Operands) {
    if op.operands().iter().any(|(t, _)| t.dtype == DType::F64) {
        run_in::<f64>(op, operands);
    } else {
        run_in::<f32>(op, operands);
    }
}

fn run_in<R: Real>(op: &Op, operands: &Operands) {
    enum Out<'a> {
        F64(&'a mut [f64]),
        F32(&'a mut [f32]),
        Bf16(&'a mut [bf16]),
    }
    fn wide<R: Real, T: Element>(values: &[T]) -> Vec<R> {
        values.iter().map(|x| R::of(f64::from(x.to_f32()))).collect()
    }
    let mut io = RefIo::<R>::new();
    let mut outs = Vec::new();
    for (t, access) in op.operands() {
        match (t.dtype, access) {
            (DType::F32, Access::Read) => io.set(&t, wide(operands.read::<f32>(&t))),
            (DType::Bf16, Access::Read) => io.set(&t, wide(operands.read::<bf16>(&t))),
            (DType::I32, Access::Read) => io.set_ints(&t, operands.read::<i32>(&t).to_vec()),
            (DType::F64, Access::Write) => outs.push((t, access, Out::F64(operands.write(&t)))),
            (DType::F32, _) => outs.push((t, access, Out::F32(operands.write(&t)))),
            (DType::Bf16, _) => outs.push((t, access, Out::Bf16(operands.write(&t)))),
            (dtype, _) => panic!("{}: no twin works on {dtype} ({t})", op.name()),
        }
    }
    for (t, access, out) in &outs {
        if access.reads() {
            io.set(
                t,
                match out {
                    Out::F64(_) => unreachable!("only written, as matched above"),
                    Out::F32(values) => wide(values),
                    Out::Bf16(values) => wide(values),
                },
            );
        }
    }
    op.reference(&mut io);
    for (t, _, out) in outs {
        let values = io.get(&t).into_iter().map(Real::f64);
        match out {
            Out::F64(to) => to.iter_mut().zip(values).for_each(|(to, x)| *to = x),
            Out::F32(to) => to.iter_mut().zip(values).for_each(|(to, x)| *to = x as f32),
            Out::Bf16(to) => to.iter_mut().zip(values).for_each(|(to, x)| *to = Element::from_f32(x as f32)),
        }
    }
}
