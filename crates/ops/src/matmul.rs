//! Matrix product with either factor transposed; accumulates in f32 whatever the dtype.
//!
//! The three products of a linear layer `y = x W^T`: forward `y = x W^T` (`transpose_b`), input gradient `dx = dy W`,
//! weight gradient `dW (+)= dy^T x` (`transpose_a`, f32 result).

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

impl crate::OpSpec for Matmul {
    fn check(&self) -> Result<(), crate::OpError> {
        Ok(())
    }
    fn flops(&self) -> f64 {
        0.0
    }
    fn reference<R: crate::Real>(&self, _io: &mut crate::RefIo<R>) {
        todo!()
    }
    fn cases() -> Vec<crate::Case> {
        Vec::new()
    }
}
