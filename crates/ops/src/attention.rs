//! Causal grouped-query attention over packed documents, forward and backward.
//!
//! For query head `h` with key/value head `g = h / (heads / kv_heads)`, token `i` of a document that starts at `s`:
//! `o_i = sum_{j = s..=i} softmax_j(scale * q_i . k_j) v_j`. Documents never see each other.

op! {
    /// Attention forward.
    Attention = "attention" {
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`: all query heads, then key heads, then value heads.
        read qkv,
        /// `[documents + 1]` i32: ascending document borders, first 0, last `tokens`; empty documents are allowed.
        read cu_seqlens,
        /// `[tokens, heads * head_dim]`
        write out,
        /// `[heads, tokens]` f32: natural-log sum of exponentials of the scaled scores.
        write lse,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads; divides `heads`.
        kv_heads: u32,
        /// Elements a head; a multiple of 8.
        head_dim: u32,
        /// Score scale, usually `1 / sqrt(head_dim)`.
        scale: f32,
    }
}

op! {
    /// Attention backward.
    AttentionBackward = "attention_backward" {
        /// `[tokens, heads * head_dim]`
        read dout,
        /// `[tokens, heads * head_dim]`: the forward's output.
        read out,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`
        read qkv,
        /// `[heads, tokens]` f32: the forward's log sums.
        read lse,
        /// `[documents + 1]` i32
        read cu_seqlens,
        /// `[tokens, (heads + 2 kv_heads) * head_dim]`; key and value gradients summed over the query heads of a group.
        write dqkv,
    }
    scalars {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Elements a head.
        head_dim: u32,
        /// Score scale.
        scale: f32,
    }
}

impl crate::OpSpec for Attention {
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

impl crate::OpSpec for AttentionBackward {
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
