//! `out = a + b`, elementwise.

op! {
    /// `out = a + b`. All three have the same shape and dtype.
    Add = "add" {
        /// `[...]`
        read a,
        /// `[...]`
        read b,
        /// `[...]`
        write out,
    }
}

impl crate::OpSpec for Add {
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
