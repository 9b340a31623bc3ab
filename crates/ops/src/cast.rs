//! Conversion between float dtypes, rounding to nearest even.

op! {
    /// `y = x` in `y`'s dtype.
    Cast = "cast" {
        /// `[...]`
        read x,
        /// `[...]`, as many elements
        write y,
    }
}

impl crate::OpSpec for Cast {
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
