//! Matrix product with either factor transposed; accumulates in f32 whatever the dtype.
//!
//! The three products of a linear layer `y = x W^T`: forward `y = x W^T` (`transpose_b`), input gradient `dx = dy W`,
//! weight gradient `dW (+)= dy^T x` (`transpose_a`, f32 result).

use crate::check::Check;
use crate::{Case, OpError, OpSpec, Places, Real, RefIo};
use megatrain_base::DType;

op! {
    /// `c[m, n] (+)= op(a) op(b)`.
    Matmul = "matmul" {
        /// `[m, k]`, or `[k, m]` when `transpose_a`; f32 or bf16
        read a,
        /// `[k, n]`, or `[n, k]` when `transpose_b`; the dtype of `a`
        read b,
        /// `[m, n]`; f32, or bf16 when both factors are and `accumulate` is off
        accum(accumulate) c,
    }
    scalars {
        /// `a` is stored `[k, m]`.
        transpose_a: bool,
        /// `b` is stored `[n, k]`.
        transpose_b: bool,
        /// Add to `c` instead of overwriting it.
        accumulate: bool,
    }
}

impl Matmul {
    /// `(m, n, k)` from the factors' shapes.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let (m, k) = swap_if(self.transpose_a, self.a.shape.dim(0), self.a.shape.dim(1));
        let (_, n) = swap_if(self.transpose_b, self.b.shape.dim(0), self.b.shape.dim(1));
        (m, n, k)
    }
}

fn swap_if(swap: bool, a: usize, b: usize) -> (usize, usize) {
    if swap { (b, a) } else { (a, b) }
}

impl OpSpec for Matmul {
    fn check(&self) -> Result<(), OpError> {
        let c = Check::start(self)?;
        c.matrix("a", &self.a)?;
        c.matrix("b", &self.b)?;
        let (m, n, k) = self.sizes();
        let (rows, columns) = swap_if(self.transpose_b, k, n);
        c.shape("b", &self.b, &[rows, columns])?;
        c.shape("c", &self.c, &[m, n])?;
        c.one_float(&[("a", &self.a), ("b", &self.b)])?;
        c.that(self.c.dtype == DType::F32 || (self.c.dtype == DType::Bf16 && self.a.dtype == DType::Bf16), || {
            format!(
                "operand c: expected dtype f32, or bf16 when a and b are; given {} of {}",
                self.c.dtype, self.a.dtype
            )
        })?;
        c.that(!self.accumulate || self.c.dtype == DType::F32, || {
            format!("operand c: expected dtype f32 because accumulate is on, given {}", self.c.dtype)
        })
    }

    /// `2 m n k`.
    fn flops(&self) -> f64 {
        let (m, n, k) = self.sizes();
        2.0 * m as f64 * n as f64 * k as f64
    }

    fn reference<R: Real>(&self, io: &mut RefIo<R>) {
        let (a, b) = (io.get(&self.a), io.get(&self.b));
        let (m, n, k) = self.sizes();
        let (a_row, a_column) = if self.transpose_a { (1, m) } else { (k, 1) };
        let (b_row, b_column) = if self.transpose_b { (1, k) } else { (n, 1) };
        let mut c = Vec::with_capacity(m * n);
        for i in 0..m {
            for j in 0..n {
                let mut sum = R::of(0.0);
                for l in 0..k {
                    sum += a[i * a_row + l * a_column] * b[l * b_row + j * b_column];
                }
                c.push(sum);
            }
        }
        io.add_or_set(&self.c, c, self.accumulate);
    }

    fn cases() -> Vec<Case> {
        const F: DType = DType::F32;
        const B: DType = DType::Bf16;
        let mut cases = Vec::new();
        for (m, n, k) in [(1, 1, 1), (17, 33, 65), (128, 96, 200), (5, 7, 1), (1, 64, 31), (33, 1, 9), (2, 259, 40)] {
            for transposes in 0..4 {
                for (dtype, result, accumulate) in
                    [(F, F, false), (F, F, true), (B, F, false), (B, F, true), (B, B, false)]
                {
                    let (transpose_a, transpose_b) = (transposes & 1 != 0, transposes & 2 != 0);
                    let mut at = Places::default();
                    let op = Matmul {
                        a: at.tensor(dtype, <[usize; 2]>::from(swap_if(transpose_a, m, k))),
                        b: at.tensor(dtype, <[usize; 2]>::from(swap_if(transpose_b, k, n))),
                        c: at.tensor(result, [m, n]),
                        transpose_a,
                        transpose_b,
                        accumulate,
                    };
                    let t = |on| if on { "^T" } else { "" };
                    cases.push(Case::new(
                        format!(
                            "{dtype} to {result} a{} b{} m={m} n={n} k={k} accumulate={accumulate}",
                            t(transpose_a),
                            t(transpose_b)
                        ),
                        op,
                    ));
                }
            }
        }
        cases
    }
}
