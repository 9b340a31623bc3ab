//! Bias of a linear layer: added to every row, and its gradient, the column sums.

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

impl crate::OpSpec for BiasAdd {
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

impl crate::OpSpec for BiasGrad {
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
