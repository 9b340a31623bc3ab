//! The three products of a linear layer, as [`Matmul`] arguments.

use megatrain_base::Tensor;
use megatrain_ops::Matmul;

/// `y = x W^T`: `x` `[T, in]`, `weight` `[out, in]`, `y` `[T, out]`.
pub fn linear(x: Tensor, weight: Tensor, y: Tensor) -> Matmul {
    Matmul { a: x, b: weight, c: y, transpose_a: false, transpose_b: true, accumulate: false }
}

/// `dx = dy W`: `dy` `[T, out]`, `weight` `[out, in]`, `dx` `[T, in]`.
pub fn input_grad(dy: Tensor, weight: Tensor, dx: Tensor) -> Matmul {
    Matmul { a: dy, b: weight, c: dx, transpose_a: false, transpose_b: false, accumulate: false }
}

/// `dW (+)= dy^T x`: `dy` `[T, out]`, `x` `[T, in]`, `grad` `[out, in]` f32.
pub fn weight_grad(dy: Tensor, x: Tensor, grad: Tensor, accumulate: bool) -> Matmul {
    Matmul { a: dy, b: x, c: grad, transpose_a: true, transpose_b: false, accumulate }
}
