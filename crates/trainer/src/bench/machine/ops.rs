//! The ops that are timed, at shapes of a real model.

use super::stage::{DEVICE, Places};
use megatrain_base::{DType, Tensor};
use megatrain_ops::*;

/// Shapes to time at.
#[derive(Clone, Copy, Debug)]
pub struct Shapes {
    pub tokens: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub logits_rows: usize,
    /// Document lengths of attention.
    pub documents: &'static [usize],
    /// `(m, n, k)` of linear layers, largest first.
    pub products: &'static [[usize; 3]],
}

/// Those of a model of 7 billion parameters, and products down to a model of 0.1.
pub const GPU: Shapes = Shapes {
    tokens: 32_768,
    hidden: 3584,
    intermediate: 18_944,
    heads: 28,
    kv_heads: 4,
    head_dim: 128,
    vocab: 152_064,
    logits_rows: 1024,
    documents: &[512, 1024, 4096, 32_768],
    products: &[
        [32_768, 37_888, 3584],
        [16_384, 18_944, 3584],
        [16_384, 4608, 3584],
        [8192, 4096, 2048],
        [4096, 2048, 2048],
        [2048, 896, 896],
    ],
};

/// Small enough for any processor.
pub const CPU: Shapes = Shapes {
    tokens: 1024,
    hidden: 1024,
    intermediate: 2816,
    heads: 16,
    kv_heads: 4,
    head_dim: 64,
    vocab: 32_768,
    logits_rows: 128,
    documents: &[128, 1024],
    products: &[[1024, 2816, 1024], [512, 1024, 1024], [256, 576, 576]],
};

/// A new place for each operand, so that every op starts at the same bytes.
pub fn placed(op: impl Into<Op>) -> Op {
    let mut op = op.into();
    let mut places = Places::new(DEVICE);
    op.map(&mut |t: &mut Tensor| *t = places.tensor(t.dtype, t.shape));
    op
}

fn tensor<const N: usize>(dtype: DType, dims: [usize; N]) -> Tensor
where
    [usize; N]: Into<megatrain_base::Shape>,
{
    Tensor::new(DEVICE, 0, dtype, dims)
}

impl Shapes {
    /// Ops that memory limits.
    pub fn rows(&self, dtype: DType) -> Vec<Op> {
        let &Shapes { tokens, hidden, vocab, logits_rows, .. } = self;
        let (f, i) = (DType::F32, DType::I32);
        let (heads, kv_heads, head_dim) = (self.heads as u32, self.kv_heads as u32, self.head_dim as u32);
        let x = tensor(dtype, [tokens, hidden]);
        let weight = tensor(dtype, [hidden]);
        let (rstd, dweight) = (tensor(f, [tokens]), tensor(f, [hidden]));
        let gate_up = tensor(dtype, [tokens, 2 * self.intermediate]);
        let activation = tensor(dtype, [tokens, self.intermediate]);
        let qkv_columns = (self.heads + 2 * self.kv_heads) * self.head_dim;
        let qkv = tensor(dtype, [tokens, qkv_columns]);
        let index = tensor(i, [tokens]);
        let head = |dtype| tensor(dtype, [self.head_dim]);
        let logits = tensor(f, [logits_rows, vocab]);
        let targets = tensor(i, [logits_rows]);
        let losses = tensor(f, [logits_rows]);
        let rope = RopeParams { theta: 1e6, scaling: RopeScaling::Default };
        let (eps, accumulate) = (1e-6, true);
        vec![
            placed(Add { a: x, b: x, out: x }),
            placed(Cast {
                x: tensor(f, [self.intermediate, hidden]),
                y: tensor(DType::Bf16, [self.intermediate, hidden]),
            }),
            placed(RmsNorm { x, weight, y: x, rstd, eps }),
            placed(RmsNormBackward { dy: x, x, weight, rstd, dx: x, dweight, add_to_dx: true, accumulate }),
            placed(SwiGlu { gate_up, out: activation }),
            placed(SwiGluBackward { dout: activation, gate_up }),
            placed(BiasAdd { x: qkv, bias: tensor(dtype, [qkv_columns]) }),
            placed(BiasGrad { dy: qkv, dbias: tensor(f, [qkv_columns]), accumulate }),
            placed(Rope { qkv, positions: index, heads, kv_heads, head_dim, rope, inverse: false }),
            placed(QkNorm {
                qkv,
                q_weight: head(dtype),
                k_weight: head(dtype),
                out: qkv,
                heads,
                kv_heads,
                head_dim,
                eps,
            }),
            placed(QkNormBackward {
                dout: qkv,
                qkv,
                q_weight: head(dtype),
                k_weight: head(dtype),
                dqkv: qkv,
                dq_weight: head(f),
                dk_weight: head(f),
                heads,
                kv_heads,
                head_dim,
                eps,
                accumulate,
            }),
            placed(GatherRows { x, index, y: x }),
            placed(CrossEntropy {
                logits,
                targets,
                inv_targets: tensor(f, [1]),
                dlogits: tensor(dtype, [logits_rows, vocab]),
                losses,
            }),
            placed(CrossEntropyLoss { logits, targets, losses }),
            placed(SquareSum { x: tensor(dtype, [2 * self.intermediate * hidden]), part: tensor(DType::F64, [2]) }),
        ]
    }

    /// Attention and its backward over documents of so many tokens.
    pub fn attention(&self, dtype: DType, document: usize) -> [Op; 2] {
        let qkv = tensor(dtype, [self.tokens, (self.heads + 2 * self.kv_heads) * self.head_dim]);
        let out = tensor(dtype, [self.tokens, self.heads * self.head_dim]);
        let lse = tensor(DType::F32, [self.heads, self.tokens]);
        let cu_seqlens = tensor(DType::I32, [self.tokens / document + 1]);
        let (heads, kv_heads, head_dim) = (self.heads as u32, self.kv_heads as u32, self.head_dim as u32);
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        [
            placed(Attention { qkv, cu_seqlens, out, lse, heads, kv_heads, head_dim, scale }),
            placed(AttentionBackward {
                dout: out,
                out,
                qkv,
                lse,
                cu_seqlens,
                dqkv: qkv,
                heads,
                kv_heads,
                head_dim,
                scale,
            }),
        ]
    }
}

/// The three products of a linear layer of `[m, k]` to `[m, n]`.
pub fn linear(dtype: DType, [m, n, k]: [usize; 3]) -> [Op; 3] {
    let (x, w, y) = (tensor(dtype, [m, k]), tensor(dtype, [n, k]), tensor(dtype, [m, n]));
    let product = |a, b, c, transpose_a, transpose_b, accumulate| {
        placed(Matmul { a, b, c, transpose_a, transpose_b, accumulate })
    };
    [
        product(x, w, y, false, true, false),
        product(y, w, x, false, false, false),
        product(y, x, tensor(DType::F32, [n, k]), true, false, true),
    ]
}

/// Integers that serve an operand: borders of documents (empty ones where there are more borders than documents), targets
/// or rows in range, or positions.
pub fn integers(op: &Op, t: &Tensor, document: usize) -> Vec<i32> {
    let borders = |tokens: usize| (0..t.elems()).map(|i| (i * document).min(tokens) as i32).collect();
    let below = |end: usize| (0..t.elems()).map(|i| (i * 7919 % end) as i32).collect();
    match op {
        Op::Attention(op) => borders(op.qkv.shape.dim(0)),
        Op::AttentionBackward(op) => borders(op.qkv.shape.dim(0)),
        Op::CrossEntropy(op) => below(op.logits.shape.last()),
        Op::CrossEntropyLoss(op) => below(op.logits.shape.last()),
        Op::GatherRows(op) => below(op.x.shape.dim(0)),
        _ => below(t.elems()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_but_products_is_timed_and_fits_together() {
        for shapes in [GPU, CPU] {
            for dtype in [DType::F32, DType::Bf16] {
                let mut ops = shapes.rows(dtype);
                ops.extend(shapes.documents.iter().flat_map(|&d| shapes.attention(dtype, d)));
                ops.extend(shapes.products.iter().flat_map(|&p| linear(dtype, p)));
                for op in &ops {
                    op.check().unwrap_or_else(|error| panic!("{error}"));
                }
                for name in Op::NAMES {
                    assert!(ops.iter().any(|op| op.name() == *name), "{name} is not timed");
                }
            }
        }
    }
}
