//! Launches of the norms and of column sums: a pass over parts of the rows, then [`sum_parts`].

use super::{Args, Launch, Limits, Parts, Step, blocks, by_dtype, sum_parts};
use crate::CudaError;
use megatrain_ops::{BiasGrad, OpArgs, QkNorm, QkNormBackward, RmsNorm, RmsNormBackward};

/// Warps of a block of the backward of `qk_norm`, each with sums of its own in shared memory.
const QK_WARPS: u32 = 8;
/// Static shared memory of the backward kernels, in bytes, at most.
const STATIC_SHARED_BYTES: u64 = 1024;

/// # Errors
/// If a block cannot have that much dynamic shared memory.
fn shared(op: &'static str, bytes: u64, limits: Limits) -> Result<u32, CudaError> {
    if bytes + STATIC_SHARED_BYTES <= u64::from(limits.shared_bytes) {
        return Ok(bytes as u32);
    }
    let why = format!("needs {bytes} bytes of shared memory a block, this GPU has {}", limits.shared_bytes);
    Err(CudaError::Unsupported { op, why })
}

pub(super) fn bias_grad(op: &BiasGrad, [dy, dbias]: [u64; 2], scratch: u64) -> Vec<Step> {
    let (rows, n) = (op.dy.shape.dim(0), op.dbias.elems());
    let parts = Parts::of(rows);
    let pass = Launch {
        kernel: by_dtype(op.dy.dtype, "bias_grad_parts_f32", "bias_grad_parts_bf16"),
        grid: [blocks(n, 256), parts.count as u32, 1],
        block: [32, 8, 1],
        shared_bytes: 0,
        args: Args::new().pointer(dy).pointer(scratch).long(rows).long(n).long(parts.rows),
    };
    vec![Step::Launch(pass), sum_parts(scratch, parts.count, n, 0, dbias, n, op.accumulate)]
}

pub(super) fn rms_norm(op: &RmsNorm, addresses: [u64; 4]) -> Vec<Step> {
    let dim = op.weight.elems();
    vec![Step::Launch(Launch {
        kernel: by_dtype(op.x.dtype, "rms_norm_f32", "rms_norm_bf16"),
        grid: [blocks(op.rstd.elems(), 1), 1, 1],
        block: [if dim <= 2048 { 128 } else { 256 }, 1, 1],
        shared_bytes: 0,
        args: addresses.into_iter().fold(Args::new(), Args::pointer).long(dim).float(op.eps),
    })]
}

pub(super) fn rms_norm_backward(
    op: &RmsNormBackward,
    [dy, x, weight, rstd, dx, dweight]: [u64; 6],
    scratch: u64,
    limits: Limits,
) -> Result<Vec<Step>, CudaError> {
    let (rows, dim) = (op.rstd.elems(), op.weight.elems());
    let parts = Parts::of(rows);
    let pass = Launch {
        kernel: by_dtype(op.x.dtype, "rms_norm_backward_f32", "rms_norm_backward_bf16"),
        grid: [parts.count as u32, 1, 1],
        block: [256, 1, 1],
        shared_bytes: shared(RmsNormBackward::NAME, dim as u64 * 4, limits)?,
        args: [dy, x, weight, rstd, dx, scratch]
            .into_iter()
            .fold(Args::new(), Args::pointer)
            .long(rows)
            .long(dim)
            .long(parts.rows)
            .flag(op.add_to_dx),
    };
    Ok(vec![Step::Launch(pass), sum_parts(scratch, parts.count, dim, 0, dweight, dim, op.accumulate)])
}

pub(super) fn qk_norm(op: &QkNorm, addresses: [u64; 4]) -> Vec<Step> {
    let tokens = op.qkv.shape.dim(0);
    let heads = tokens * (op.heads + 2 * op.kv_heads) as usize;
    vec![Step::Launch(Launch {
        kernel: by_dtype(op.qkv.dtype, "qk_norm_f32", "qk_norm_bf16"),
        // Eight warps a block, each taking four heads twice.
        grid: [blocks(heads, 64), 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        args: addresses
            .into_iter()
            .fold(Args::new(), Args::pointer)
            .long(tokens)
            .int(op.heads)
            .int(op.kv_heads)
            .int(op.head_dim)
            .float(op.eps),
    })]
}

pub(super) fn qk_norm_backward(
    op: &QkNormBackward,
    [dout, qkv, q_weight, k_weight, dqkv, dq_weight, dk_weight]: [u64; 7],
    scratch: u64,
    limits: Limits,
) -> Result<Vec<Step>, CudaError> {
    let (tokens, head_dim) = (op.qkv.shape.dim(0), op.head_dim as usize);
    let parts = Parts::of(tokens);
    let pass = Launch {
        kernel: by_dtype(op.qkv.dtype, "qk_norm_backward_f32", "qk_norm_backward_bf16"),
        grid: [parts.count as u32, 1, 1],
        block: [32 * QK_WARPS, 1, 1],
        shared_bytes: shared(QkNormBackward::NAME, u64::from(QK_WARPS) * 2 * head_dim as u64 * 4, limits)?,
        args: [dout, qkv, q_weight, k_weight, dqkv, scratch]
            .into_iter()
            .fold(Args::new(), Args::pointer)
            .long(tokens)
            .int(op.heads)
            .int(op.kv_heads)
            .int(op.head_dim)
            .float(op.eps)
            .long(parts.rows),
    };
    let sum = |first, out| sum_parts(scratch, parts.count, 2 * head_dim, first, out, head_dim, op.accumulate);
    Ok(vec![Step::Launch(pass), sum(0, dq_weight), sum(head_dim, dk_weight)])
}
