//! Bias of a linear layer: added to every row, and its gradient, the column sums.

use crate::check::{Check, FLOATS};
use crate::{Case, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// `x[t, n] += bias[n]`.
    BiasAdd = "bias_add" {
        /// `[tokens, n]`
        update x,
        /// `[n]`
        read bias,
    }
}

op! {
    /// `dbias[n] (+)= sum_t dy[t, n]`.
    BiasGrad = "bias_grad" {
        /// `[tokens, n]`
        read dy,
        /// `[n]` f32
        accum(accumulate) dbias,
    }
    scalars {
        /// Add to `dbias` instead of overwriting it.
        accumulate: bool,
    }
}

impl OpSpec for BiasAdd {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let (_, n) = c.matrix("x", &self.x)?;
        c.shape("bias", &self.bias, &[n])?;
        c.one_float(&[("x", &self.x), ("bias", &self.bias)])
    }

    /// One an element.
    fn flops(&self) -> f64 {
        self.x.elems() as f64
    }

    fn exact(&self) -> bool {
        true
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (mut x, bias) = (io.get(&self.x), io.get(&self.bias));
        for row in x.chunks_mut(bias.len()) {
            for (x, &b) in row.iter_mut().zip(&bias) {
                *x += b;
            }
        }
        io.set(&self.x, x);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            for (tokens, n) in SIZES {
                let mut at = Places::default();
                let op = BiasAdd { x: at.tensor(dtype, [tokens, n]), bias: at.tensor(dtype, [n]) };
                cases.push(Case::new(format!("{dtype} {tokens}x{n}"), op));
            }
        }
        cases
    }
}

impl OpSpec for BiasGrad {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let (_, n) = c.matrix("dy", &self.dy)?;
        c.dtype("dy", &self.dy, FLOATS)?;
        c.shape("dbias", &self.dbias, &[n])?;
        c.dtype("dbias", &self.dbias, &[DType::F32])
    }

    /// One an element of `dy`.
    fn flops(&self) -> f64 {
        self.dy.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let dy = io.get(&self.dy);
        let mut sums = vec![R::of(0.0); self.dbias.elems()];
        for row in dy.chunks(sums.len()) {
            for (sum, &d) in sums.iter_mut().zip(row) {
                *sum += d;
            }
        }
        io.add_or_set(&self.dbias, sums, self.accumulate);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for dtype in [DType::F32, DType::Bf16] {
            for (tokens, n) in SIZES {
                for accumulate in [false, true] {
                    let mut at = Places::default();
                    let (dy, dbias) = (at.tensor(dtype, [tokens, n]), at.tensor(DType::F32, [n]));
                    let name = format!("{dtype} {tokens}x{n} accumulate={accumulate}");
                    cases.push(Case::new(name, BiasGrad { dy, dbias, accumulate }));
                }
            }
        }
        cases
    }
}

/// Tokens and columns of the cases.
const SIZES: [(usize, usize); 5] = [(1, 1), (1, 40), (31, 7), (33, 259), (200, 17)];
