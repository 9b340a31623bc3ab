//! RMS normalisation of every query and key head (Qwen3); value heads pass through unchanged.

op! {
    /// `out = [rms_norm(q heads) * q_weight, rms_norm(k heads) * k_weight, v]`.
    QkNorm = "qk_norm" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        read qkv,
        /// `[head_dim]`
        read q_weight,
        /// `[head_dim]`
        read k_weight,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        write out,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head.
        head_dim: u32,
        /// Added to the mean square.
        eps: f32,
    }
}

op! {
    /// Backward of [`QkNorm`]; the reciprocal norms are computed again from `qkv`.
    QkNormBackward = "qk_norm_backward" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        read dout,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`: the forward's input.
        read qkv,
        /// `[head_dim]`
        read q_weight,
        /// `[head_dim]`
        read k_weight,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        write dqkv,
        /// `[head_dim]` f32
        accum(accumulate) dq_weight,
        /// `[head_dim]` f32
        accum(accumulate) dk_weight,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head.
        head_dim: u32,
        /// Added to the mean square.
        eps: f32,
        /// Add to the weight gradients instead of overwriting them.
        accumulate: bool,
    }
}

impl crate::OpSpec for QkNorm {
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

impl crate::OpSpec for QkNormBackward {
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
