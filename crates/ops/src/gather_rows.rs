//! Selected rows of a matrix.

op! {
    /// `y[i] = x[index[i]]`.
    GatherRows = "gather_rows" {
        /// `[rows, dim]`
        read x,
        /// `[n]` i32, each in `0..rows`
        read index,
        /// `[n, dim]`
        write y,
    }
}

impl crate::OpSpec for GatherRows {
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
