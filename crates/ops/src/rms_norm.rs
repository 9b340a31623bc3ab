//! RMS normalisation (Zhang and Sennrich 2019, arXiv 1910.07467): `y = x * rstd * weight`, `rstd = 1 / sqrt(mean(x^2) + eps)`.

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

impl crate::OpSpec for RmsNorm {
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

impl crate::OpSpec for RmsNormBackward {
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
