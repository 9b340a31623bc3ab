//! Launches of the sum of squares: a block a chunk, then one block over the chunks.

use super::{Args, Launch, Step, blocks, by_dtype};
use megatrain_ops::SquareSum;

/// Elements of a chunk, as in the kernel's source.
const CHUNK_ELEMS: usize = 32_768;

/// `[chunks, 2]` f64.
pub(super) fn scratch_bytes(op: &SquareSum) -> u64 {
    u64::from(blocks(op.x.elems(), CHUNK_ELEMS)) * 16
}

pub(super) fn square_sum(op: &SquareSum, [x, part]: [u64; 2], scratch: u64) -> Vec<Step> {
    let (n, chunks) = (op.x.elems(), blocks(op.x.elems(), CHUNK_ELEMS));
    let launch = |kernel, grid, threads, args| {
        Step::Launch(Launch { kernel, grid: [grid, 1, 1], block: [threads, 1, 1], shared_bytes: 0, args })
    };
    let parts = by_dtype(op.x.dtype, "square_sum_parts_f32", "square_sum_parts_bf16");
    vec![
        launch(parts, chunks, 256, Args::new().pointer(x).pointer(scratch).long(n)),
        launch("square_sum_total", 1, 512, Args::new().pointer(scratch).pointer(part).long(chunks as usize)),
    ]
}
