//! Launches of ops whose elements, rows or heads do not depend on each other.

use super::{Args, Launch, Step, blocks, by_dtype, row_blocks};
use crate::CudaError;
use megatrain_ops::{Add, BiasAdd, Cast, GatherRows, OpArgs, Rope, SwiGlu, SwiGluBackward};

/// Elements that a block of 256 threads takes, a vector of 8 each.
const TILE: usize = 2048;
/// Frequencies that `rope` takes.
const MAX_FREQUENCIES: usize = 256;

fn launch(kernel: &'static str, grid: [u32; 2], threads: u32, args: Args) -> Vec<Step> {
    let [x, y] = grid;
    vec![Step::Launch(Launch { kernel, grid: [x, y, 1], block: [threads, 1, 1], shared_bytes: 0, args })]
}

pub(super) fn add(op: &Add, [a, b, out]: [u64; 3]) -> Vec<Step> {
    let n = op.out.elems();
    let args = Args::new().pointer(a).pointer(b).pointer(out).long(n);
    launch(by_dtype(op.out.dtype, "add_f32", "add_bf16"), [blocks(n, TILE), 1], 256, args)
}

pub(super) fn cast(op: &Cast, [x, y]: [u64; 2]) -> Vec<Step> {
    if op.x.dtype == op.y.dtype {
        return vec![Step::Copy { to: y, from: x, len_bytes: op.x.span.len_bytes }];
    }
    let n = op.x.elems();
    let kernel = by_dtype(op.x.dtype, "cast_f32_bf16", "cast_bf16_f32");
    launch(kernel, [blocks(n, TILE), 1], 256, Args::new().pointer(x).pointer(y).long(n))
}

pub(super) fn bias_add(op: &BiasAdd, [x, bias]: [u64; 2]) -> Vec<Step> {
    let (rows, n) = (op.x.shape.dim(0), op.bias.elems());
    // Some rows a block, so that a bias is loaded once for them.
    let grid = [blocks(n, TILE), row_blocks(rows.div_ceil(8))];
    let args = Args::new().pointer(x).pointer(bias).long(rows).long(n);
    launch(by_dtype(op.x.dtype, "bias_add_f32", "bias_add_bf16"), grid, 256, args)
}

pub(super) fn gather_rows(op: &GatherRows, [x, index, y]: [u64; 3]) -> Vec<Step> {
    let args = Args::new().pointer(x).pointer(index).pointer(y).long(op.x.shape.dim(0)).long(op.x.shape.dim(1));
    let kernel = by_dtype(op.x.dtype, "gather_rows_32", "gather_rows_16");
    launch(kernel, [blocks(op.index.elems(), 1), 1], 128, args)
}

pub(super) fn rope(op: &Rope, [qkv, positions]: [u64; 2]) -> Result<Vec<Step>, CudaError> {
    let turns: Vec<f64> = op.rope.inv_freq(op.head_dim).iter().map(|f| f / std::f64::consts::PI).collect();
    if turns.len() > MAX_FREQUENCIES {
        let why = format!("head_dim {} is over {}, the most its kernel takes", op.head_dim, 2 * MAX_FREQUENCIES);
        return Err(CudaError::Unsupported { op: Rope::NAME, why });
    }
    let args = Args::new()
        .pointer(qkv)
        .pointer(positions)
        .long(op.qkv.shape.last())
        .int(op.heads + op.kv_heads)
        .int(op.head_dim / 2)
        .flag(op.inverse)
        .doubles(&turns, MAX_FREQUENCIES);
    let kernel = by_dtype(op.qkv.dtype, "rope_f32", "rope_bf16");
    Ok(launch(kernel, [blocks(op.positions.elems(), 1), 1], 256, args))
}

pub(super) fn swiglu(op: &SwiGlu, [gate_up, out]: [u64; 2]) -> Vec<Step> {
    let (rows, n) = (op.out.shape.dim(0), op.out.shape.dim(1));
    let args = Args::new().pointer(gate_up).pointer(out).long(rows).long(n);
    launch(by_dtype(op.out.dtype, "swiglu_f32", "swiglu_bf16"), [blocks(n, TILE), row_blocks(rows)], 256, args)
}

pub(super) fn swiglu_backward(op: &SwiGluBackward, [dout, gate_up]: [u64; 2]) -> Vec<Step> {
    let (rows, n) = (op.dout.shape.dim(0), op.dout.shape.dim(1));
    let args = Args::new().pointer(dout).pointer(gate_up).long(rows).long(n);
    let kernel = by_dtype(op.dout.dtype, "swiglu_backward_f32", "swiglu_backward_bf16");
    launch(kernel, [blocks(n, TILE), row_blocks(rows)], 256, args)
}
