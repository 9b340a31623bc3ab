//! The sum of squares of a gradient and the count of its elements that are not finite: what clipping and skipping a step
//! are decided by.
//!
//! `sum = sum_i x[i]^2`, `nonfinite = |{i : x[i] is NaN or infinite}|`, both in f64. Squares of f32 are exact there and
//! cannot overflow, so `sum` is finite exactly where `nonfinite` is 0; else it is NaN if any element is, or infinity.
//! The same meaning as `megatrain_optim::SquareSum`; like that, never a number that only looks like a norm.

use crate::check::{Check, FLOATS};
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// `part = [sum of squares of x, elements of x that are not finite]`.
    SquareSum = "square_sum" {
        /// `[n]`
        read x,
        /// `[2]` f64
        write part,
    }
}

impl OpSpec for SquareSum {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        c.vector("x", &self.x)?;
        c.dtype("x", &self.x, FLOATS)?;
        c.shape("part", &self.part, &[2])?;
        c.dtype("part", &self.part, &[DType::F64])
    }

    /// Two an element.
    fn flops(&self) -> f64 {
        2.0 * self.x.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let x = io.get(&self.x);
        let count = |is: fn(f64) -> bool| x.iter().filter(|x| is(x.f64())).count();
        let (nan, infinite) = (count(f64::is_nan), count(f64::is_infinite));
        let sum = match (nan, infinite) {
            (0, 0) => x.iter().map(|&x| x * x).sum(),
            (0, _) => R::of(f64::INFINITY),
            _ => R::of(f64::NAN),
        };
        io.set(&self.part, vec![sum, R::of((nan + infinite) as f64)]);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        let mut case = |name: &str, dtype: DType, n: usize, fill: Fill| {
            let mut at = Places::default();
            let op = SquareSum { x: at.tensor(dtype, [n]), part: at.tensor(DType::F64, [2usize]) };
            cases.push(Case::new(format!("{name} in {dtype}"), op).fill(op.x, fill));
        };
        for dtype in [DType::F32, DType::Bf16] {
            for n in [1, 7, 31, 33, 1025, 100_003] {
                case(&format!("{n} elements"), dtype, n, Fill::Normal(1.0));
            }
            // Whose squares leave the range of f32.
            case("large elements", dtype, 333, Fill::Normal(1e37));
            case("small elements", dtype, 333, Fill::Normal(1e-38));
            case("zeros", dtype, 40, Fill::Values(vec![0.0; 40]));
            let ends: [(&str, &[(usize, f32)]); 5] = [
                ("an infinite first element", &[(0, f32::INFINITY)]),
                ("a negative infinite last element", &[(70_000, f32::NEG_INFINITY)]),
                ("a NaN last element", &[(70_000, f32::NAN)]),
                ("infinities far apart", &[(5, f32::INFINITY), (6, f32::NEG_INFINITY), (69_000, f32::INFINITY)]),
                ("a NaN among infinities", &[(0, f32::INFINITY), (40_000, f32::NAN), (69_999, f32::INFINITY)]),
            ];
            for (name, elements) in ends {
                let mut x: Vec<f32> = (0..70_001).map(|i| (i % 17) as f32 - 8.0).collect();
                elements.iter().for_each(|&(i, value)| x[i] = value);
                case(name, dtype, x.len(), Fill::Values(x));
            }
        }
        cases
    }
}
