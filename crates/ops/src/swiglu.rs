//! SwiGLU (Shazeer 2020, arXiv 2002.05202): `out = silu(gate) * up`, `silu(z) = z / (1 + e^-z)`.

op! {
    /// SwiGLU forward.
    SwiGlu = "swiglu" {
        /// `[tokens, 2 * intermediate]`: gate columns, then up columns
        read gate_up,
        /// `[tokens, intermediate]`
        write out,
    }
}

op! {
    /// SwiGLU backward, in place: `gate_up` holds the forward's input on entry and its gradient on return.
    SwiGluBackward = "swiglu_backward" {
        /// `[tokens, intermediate]`
        read dout,
        /// `[tokens, 2 * intermediate]`
        update gate_up,
    }
}

impl crate::OpSpec for SwiGlu {
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

impl crate::OpSpec for SwiGluBackward {
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
