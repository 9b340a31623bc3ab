//! RMS normalisation (Zhang and Sennrich 2019, arXiv 1910.07467): `y = x * rstd * weight`, `rstd = 1 / sqrt(mean(x^2) + eps)`.

use crate::check::Check;
use crate::{Case, Fill, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// RMSNorm forward over the last dimension.
    RmsNorm = "rms_norm" {
        /// `[tokens, dim]`
        read x,
        /// `[dim]`
        read weight,
        /// `[tokens, dim]`
        write y,
        /// `[tokens]` f32
        write rstd,
    }
    scalars {
        /// Added to the mean square.
        eps: f32,
    }
}

op! {
    /// RMSNorm backward. With `g = dy * weight`, `n = x * rstd`: `dx (+)= rstd * (g - n * mean(g * n))`,
    /// `dweight (+)= sum_t dy * n`.
    RmsNormBackward = "rms_norm_backward" {
        /// `[tokens, dim]`
        read dy,
        /// `[tokens, dim]`
        read x,
        /// `[dim]`
        read weight,
        /// `[tokens]` f32
        read rstd,
        /// `[tokens, dim]`; with `add_to_dx` it holds the residual branch's gradient and the norm's is added
        accum(add_to_dx) dx,
        /// `[dim]` f32
        accum(accumulate) dweight,
    }
    scalars {
        /// Add to `dx` instead of overwriting it.
        add_to_dx: bool,
        /// Add to `dweight` instead of overwriting it.
        accumulate: bool,
    }
}

impl OpSpec for RmsNorm {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let (tokens, dim) = c.matrix("x", &self.x)?;
        c.shape("weight", &self.weight, &[dim])?;
        c.shape("y", &self.y, &[tokens, dim])?;
        c.shape("rstd", &self.rstd, &[tokens])?;
        c.one_float(&[("x", &self.x), ("weight", &self.weight), ("y", &self.y)])?;
        c.dtype("rstd", &self.rstd, &[DType::F32])?;
        c.positive("eps", self.eps as f64)
    }

    /// Four an element: square and sum, `x * rstd`, `* weight`.
    fn flops(&self) -> f64 {
        4.0 * self.x.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (x, weight) = (io.get(&self.x), io.get(&self.weight));
        let (mut y, mut rstds) = (Vec::with_capacity(x.len()), Vec::new());
        for row in x.chunks(weight.len()) {
            let rstd = rstd_of(row, self.eps);
            rstds.push(rstd);
            y.extend(row.iter().zip(&weight).map(|(&x, &w)| x * rstd * w));
        }
        io.set(&self.y, y);
        io.set(&self.rstd, rstds);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_sizes(|name, dtype, tokens, dim, x_fill| {
            let mut at = Places::default();
            let op = RmsNorm {
                x: at.tensor(dtype, [tokens, dim]),
                weight: at.tensor(dtype, [dim]),
                y: at.tensor(dtype, [tokens, dim]),
                rstd: at.tensor(DType::F32, [tokens]),
                eps: 1e-5,
            };
            cases.push(Case::new(name, op).fill(op.x, x_fill));
        });
        cases
    }
}

impl OpSpec for RmsNormBackward {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        let (tokens, dim) = c.matrix("x", &self.x)?;
        c.shape("dy", &self.dy, &[tokens, dim])?;
        c.shape("weight", &self.weight, &[dim])?;
        c.shape("rstd", &self.rstd, &[tokens])?;
        c.shape("dx", &self.dx, &[tokens, dim])?;
        c.shape("dweight", &self.dweight, &[dim])?;
        c.one_float(&[("x", &self.x), ("dy", &self.dy), ("weight", &self.weight), ("dx", &self.dx)])?;
        c.dtype("rstd", &self.rstd, &[DType::F32])?;
        c.dtype("dweight", &self.dweight, &[DType::F32])
    }

    /// Nine an element: `g`, `n`, the dot product (two), `n * mean`, the difference, `* rstd`, and `dweight` (two);
    /// one more with `add_to_dx`.
    fn flops(&self) -> f64 {
        (9.0 + f64::from(self.add_to_dx)) * self.x.elems() as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (dy, x, weight, rstd) = (io.get(&self.dy), io.get(&self.x), io.get(&self.weight), io.get(&self.rstd));
        let dim = weight.len();
        let mut dx = Vec::with_capacity(x.len());
        let mut dweight = vec![R::of(0.0); dim];
        for ((dy, x), &rstd) in dy.chunks(dim).zip(x.chunks(dim)).zip(&rstd) {
            dx.extend(row_backward(dy, x, &weight, rstd, &mut dweight));
        }
        io.add_or_set(&self.dx, dx, self.add_to_dx);
        io.add_or_set(&self.dweight, dweight, self.accumulate);
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for_sizes(|name, dtype, tokens, dim, x_fill| {
            for (add_to_dx, accumulate) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut at = Places::default();
                let op = RmsNormBackward {
                    dy: at.tensor(dtype, [tokens, dim]),
                    x: at.tensor(dtype, [tokens, dim]),
                    weight: at.tensor(dtype, [dim]),
                    rstd: at.tensor(DType::F32, [tokens]),
                    dx: at.tensor(dtype, [tokens, dim]),
                    dweight: at.tensor(DType::F32, [dim]),
                    add_to_dx,
                    accumulate,
                };
                let forward = RmsNorm {
                    x: op.x,
                    weight: op.weight,
                    y: at.tensor(dtype, [tokens, dim]),
                    rstd: op.rstd,
                    eps: 1e-5,
                };
                cases.push(
                    Case::new(format!("{name}, add_to_dx={add_to_dx} accumulate={accumulate}"), op)
                        .fill(op.x, x_fill.clone())
                        .fill(op.rstd, Fill::From(Box::new(forward.into()))),
                );
            }
        });
        cases
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
pub(crate) fn rstd_of<R: Real>(x: &[R], eps: f32) -> R {
    let squares: R = x.iter().map(|&x| x * x).sum();
    R::of(1.0) / (squares / R::of(x.len() as f64) + R::of(eps as f64)).sqrt()
}

/// The gradient of one normalised row; adds the row's part to `dweight`.
pub(crate) fn row_backward<R: Real>(dy: &[R], x: &[R], weight: &[R], rstd: R, dweight: &mut [R]) -> Vec<R> {
    let normed: Vec<R> = x.iter().map(|&x| x * rstd).collect();
    let g: Vec<R> = dy.iter().zip(weight).map(|(&dy, &w)| dy * w).collect();
    let dot: R = g.iter().zip(&normed).map(|(&g, &n)| g * n).sum();
    let mean = dot / R::of(x.len() as f64);
    for ((sum, &dy), &n) in dweight.iter_mut().zip(dy).zip(&normed) {
        *sum += dy * n;
    }
    g.iter().zip(&normed).map(|(&g, &n)| rstd * (g - n * mean)).collect()
}

/// The cases' names, dtypes, tokens, dimensions and fills of `x`.
fn for_sizes(mut make: impl FnMut(String, DType, usize, usize, Fill)) {
    for dtype in [DType::F32, DType::Bf16] {
        for (tokens, dim) in [(1, 1), (1, 64), (31, 40), (33, 259), (5, 576)] {
            make(format!("{dtype} {tokens}x{dim}"), dtype, tokens, dim, Fill::Normal(1.0));
        }
        make(format!("{dtype} large values"), dtype, 3, 96, Fill::Normal(1e4));
        make(format!("{dtype} values below eps"), dtype, 3, 96, Fill::Normal(1e-4));
        make(format!("{dtype} a row of zeros"), dtype, 1, 8, Fill::Values(vec![0.0; 8]));
    }
}
