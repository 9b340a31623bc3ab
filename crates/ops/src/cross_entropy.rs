//! Cross-entropy of next-token logits: per-row loss and, fused, the gradient of the logits.
//!
//! `loss[t] = ln(sum_v e^logits[t, v]) - logits[t, target[t]]`; rows whose target is [`IGNORE_TARGET`] have loss 0 and
//! gradient 0. `dlogits[t, v] = (softmax_v(logits[t]) - [v == target[t]]) * inv_targets`.

/// The target of a token that is not trained on (Hugging Face's convention).
pub const IGNORE_TARGET: i32 = -100;

op! {
    /// Loss and gradient of a chunk of logits.
    CrossEntropy = "cross_entropy" {
        /// `[rows, vocab]` f32
        read logits,
        /// `[rows]` i32; already shifted: the token that follows
        read targets,
        /// `[1]` f32: 1 / number of targets of the whole optimizer step
        read inv_targets,
        /// `[rows, vocab]`
        write dlogits,
        /// `[rows]` f32, not scaled
        write losses,
    }
}

op! {
    /// Loss of a chunk of logits, without gradient.
    CrossEntropyLoss = "cross_entropy_loss" {
        /// `[rows, vocab]` f32
        read logits,
        /// `[rows]` i32
        read targets,
        /// `[rows]` f32, not scaled
        write losses,
    }
}

impl crate::OpSpec for CrossEntropy {
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

impl crate::OpSpec for CrossEntropyLoss {
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
