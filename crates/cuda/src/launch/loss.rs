//! Launches of the cross-entropy ops: a block a row.

use super::{Args, Launch, Step, blocks, by_dtype};
use megatrain_ops::{CrossEntropy, CrossEntropyLoss};

fn launch(kernel: &'static str, rows: usize, args: Args) -> Vec<Step> {
    vec![Step::Launch(Launch { kernel, grid: [blocks(rows, 1), 1, 1], block: [512, 1, 1], shared_bytes: 0, args })]
}

pub(super) fn cross_entropy(op: &CrossEntropy, addresses: [u64; 5]) -> Vec<Step> {
    let args = addresses.into_iter().fold(Args::new(), Args::pointer).long(op.logits.shape.last());
    launch(by_dtype(op.dlogits.dtype, "cross_entropy_f32", "cross_entropy_bf16"), op.losses.elems(), args)
}

pub(super) fn cross_entropy_loss(op: &CrossEntropyLoss, addresses: [u64; 3]) -> Vec<Step> {
    let args = addresses.into_iter().fold(Args::new(), Args::pointer).long(op.logits.shape.last());
    launch("cross_entropy_loss", op.losses.elems(), args)
}
