//! Conversion between float dtypes, rounding to nearest even.

use crate::check::{Check, FLOATS};
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// `y = x` in `y`'s dtype.
    Cast = "cast" {
        /// `[...]`
        read x,
        /// `[...]`, as many elements
        write y,
    }
}

impl OpSpec for Cast {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        c.dtype("x", &self.x, FLOATS)?;
        c.dtype("y", &self.y, FLOATS)?;
        c.that(self.x.elems() == self.y.elems(), || {
            format!("operand y: expected as many elements as x, {}, given {}", self.x.elems(), self.y.elems())
        })
    }

    /// None: conversions are not counted.
    fn flops(&self) -> f64 {
        0.0
    }

    fn exact(&self) -> bool {
        true
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let x = io.get(&self.x);
        io.set(&self.y, x);
    }

    fn cases() -> Vec<Case> {
        // Ties to even on both sides, overflow to infinity, subnormals, signed zeros.
        let mut edges: Vec<f32> =
            [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f80_8001, 0x7f7f_ffff, 0xff7f_8000, 1, 0x8000]
                .map(f32::from_bits)
                .to_vec();
        edges.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, -1e-40, 0.1]);
        let mut cases = Vec::new();
        for from in [DType::F32, DType::Bf16] {
            for to in [DType::F32, DType::Bf16] {
                let mut at = Places::default();
                let (x, y) = (at.tensor(from, [edges.len()]), at.tensor(to, [edges.len()]));
                cases.push(
                    Case::new(format!("{from} to {to}, edge values"), Cast { x, y })
                        .fill(x, Fill::Values(edges.clone())),
                );
                for n in [1usize, 31, 1025] {
                    let mut at = Places::default();
                    let (x, y) = (at.tensor(from, [n, 3]), at.tensor(to, [3 * n]));
                    cases.push(Case::new(format!("{from} to {to}, {n}x3"), Cast { x, y }));
                }
            }
        }
        cases
    }
}
