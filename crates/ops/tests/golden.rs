//! Every twin against PyTorch: the numbers and the snippet that made them are in `golden/`.
//!
//! PyTorch's result is handed to the conformance harness as if an executor had made it, so the bound is the harness's:
//! twice the error of the twin in f32, plus what another order of summation may cost.

use megatrain_base::{Access, DType, Tensor};
use megatrain_ops::harness;
use megatrain_ops::{Case, Fill, Op, Places, RopeParams, RopeScaling};
use safetensors::SafeTensors;

static FILE: &[u8] = include_bytes!("golden/goldens.safetensors");

struct Goldens {
    file: SafeTensors<'static>,
    at: Places,
}

impl Goldens {
    fn open() -> Self {
        Goldens { file: SafeTensors::deserialize(FILE).unwrap(), at: Places::default() }
    }

    /// An operand with the shape and dtype of the golden.
    fn operand(&mut self, name: &str) -> Tensor {
        let view = self.file.tensor(name).unwrap();
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::I32 => DType::I32,
            other => panic!("{name}: {other:?}"),
        };
        let dims: Vec<u64> = view.shape().iter().map(|&d| d as u64).collect();
        self.at.tensor(dtype, megatrain_base::Shape::new(&dims))
    }

    fn words<T>(&self, name: &str, word: fn([u8; 4]) -> T) -> Vec<T> {
        let view = self.file.tensor(name).unwrap();
        view.data().chunks_exact(4).map(|b| word([b[0], b[1], b[2], b[3]])).collect()
    }

    fn check(&self, case: &str, op: impl Into<Op>) {
        let op = op.into();
        let mut filled = Case::new(format!("golden {case}"), op);
        for ((t, access), operand) in op.operands().into_iter().zip(op.operand_names()) {
            let before = match access {
                Access::Write => continue,
                Access::Read => format!("{case}.{operand}"),
                Access::Update => format!("{case}.{operand}.in"),
            };
            let fill = match t.dtype {
                DType::I32 => Fill::Ints(self.words(&before, i32::from_le_bytes)),
                _ => Fill::Values(self.words(&before, f32::from_le_bytes)),
            };
            filled = filled.fill(t, fill);
        }
        let paste = |op: &Op, memory: &mut harness::Memory| {
            for ((t, access), operand) in op.operands().into_iter().zip(op.operand_names()) {
                if access.writes() {
                    let data: Vec<u8> = self
                        .words(&format!("{case}.{operand}"), f32::from_le_bytes)
                        .iter()
                        .flat_map(|x| x.to_ne_bytes())
                        .collect();
                    memory.bytes_mut(t.span.region).copy_from_slice(&data);
                }
            }
            Ok(())
        };
        let report = harness::check(&filled, paste).unwrap_or_else(|e| panic!("{e}"));
        assert!(report.outputs.iter().all(|o| o.elements > 0), "{report:?}");
    }
}

/// Builds an op whose operands have the goldens' shapes and checks it.
macro_rules! golden {
    ($test:ident: $op:ident { $($operand:ident),* } $({ $($scalar:ident: $value:expr),* })?) => {
        #[test]
        fn $test() {
            let mut goldens = Goldens::open();
            let op = megatrain_ops::$op {
                $($operand: goldens.operand(&format!("{}.{}", stringify!($test), stringify!($operand))),)*
                $($($scalar: $value,)*)?
            };
            goldens.check(stringify!($test), op);
        }
    };
}

const PLAIN_ROPE: RopeParams = RopeParams { theta: 1e4, scaling: RopeScaling::Default };

golden!(add: Add { a, b, out });
golden!(bias_add: BiasAdd { x, bias });
golden!(bias_grad: BiasGrad { dy, dbias } { accumulate: true });
golden!(gather_rows: GatherRows { x, index, y });
golden!(matmul_forward: Matmul { a, b, c } { transpose_a: false, transpose_b: true, accumulate: false });
golden!(matmul_input_gradient: Matmul { a, b, c } { transpose_a: false, transpose_b: false, accumulate: false });
golden!(matmul_weight_gradient: Matmul { a, b, c } { transpose_a: true, transpose_b: false, accumulate: true });
golden!(matmul_both_transposed: Matmul { a, b, c } { transpose_a: true, transpose_b: true, accumulate: false });
golden!(rms_norm: RmsNorm { x, weight, y, rstd } { eps: 1e-5 });
golden!(rms_norm_backward: RmsNormBackward { dy, x, weight, rstd, dx, dweight } { add_to_dx: true, accumulate: true });
golden!(qk_norm: QkNorm { qkv, q_weight, k_weight, out } { heads: 4, kv_heads: 2, head_dim: 8, eps: 1e-6 });
golden!(qk_norm_backward: QkNormBackward { dout, qkv, q_weight, k_weight, dqkv, dq_weight, dk_weight }
    { heads: 4, kv_heads: 2, head_dim: 8, eps: 1e-6, accumulate: false });
golden!(rope: Rope { qkv, positions } { heads: 3, kv_heads: 1, head_dim: 16, rope: PLAIN_ROPE, inverse: false });
golden!(rope_inverse: Rope { qkv, positions } { heads: 3, kv_heads: 1, head_dim: 16, rope: PLAIN_ROPE, inverse: true });
golden!(swiglu: SwiGlu { gate_up, out });
golden!(swiglu_backward: SwiGluBackward { dout, gate_up });
golden!(cross_entropy: CrossEntropy { logits, targets, inv_targets, dlogits, losses });
golden!(cross_entropy_loss: CrossEntropyLoss { logits, targets, losses });
golden!(attention: Attention { qkv, cu_seqlens, out, lse } { heads: 6, kv_heads: 2, head_dim: 8, scale: 8f32.powf(-0.5) });
golden!(attention_backward: AttentionBackward { dout, out, qkv, lse, cu_seqlens, dqkv }
    { heads: 6, kv_heads: 2, head_dim: 8, scale: 8f32.powf(-0.5) });

#[test]
fn cast_rounds_as_pytorch_does() {
    let mut goldens = Goldens::open();
    let x = goldens.operand("cast.x");
    let y = goldens.at.tensor(DType::Bf16, x.shape);
    let case = Case::new("golden cast", megatrain_ops::Cast { x, y })
        .fill(x, Fill::Values(goldens.words("cast.x", f32::from_le_bytes)));
    let paste = |_: &Op, memory: &mut harness::Memory| {
        // The file holds bf16 values as f32: the upper halves are the bf16 bits.
        let halves = goldens.words("cast.y", |b| ((u32::from_le_bytes(b) >> 16) as u16).to_ne_bytes());
        memory.bytes_mut(y.span.region).copy_from_slice(halves.as_flattened());
        Ok(())
    };
    harness::check(&case, paste).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn inverse_frequencies_are_those_of_transformers() {
    let goldens = Goldens::open();
    let llama3 =
        RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };
    for (name, scaling) in
        [("default", RopeScaling::Default), ("linear", RopeScaling::Linear { factor: 4.0 }), ("llama3", llama3)]
    {
        let ours = RopeParams { theta: 5e5, scaling }.inv_freq(64);
        let theirs = goldens.words(&format!("inv_freq.{name}"), f32::from_le_bytes);
        assert_eq!(ours.len(), theirs.len());
        for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            // PyTorch rounds the exponent to f32, which the power multiplies by ln 5e5 = 13, and about ten results.
            let relative = (ours / theirs as f64 - 1.0).abs();
            assert!(relative < 24.0 * DType::F32.unit_roundoff(), "{name}[{i}]: {ours:e} against {theirs:e}");
        }
    }
}
