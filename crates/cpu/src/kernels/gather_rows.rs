//! Selected rows of a matrix.

use super::{by_float, par};
use megatrain_base::{Element, Operands};
use megatrain_ops::GatherRows;

/// Runs the op.
pub(super) fn run(op: &GatherRows, operands: &Operands) {
    by_float!(op.x, T => typed::<T>(op, operands));
}

fn typed<T: Element>(op: &GatherRows, operands: &Operands) {
    let (x, index) = (operands.read::<T>(&op.x), operands.read::<i32>(&op.index));
    let (rows, dim) = (op.x.shape.dim(0), op.x.shape.last());
    if dim == 0 {
        return;
    }
    let step = par::rows_per_chunk(dim);
    par::chunks(operands.write::<T>(&op.y), step * dim, |chunk, y| {
        for (y, &row) in y.chunks_exact_mut(dim).zip(&index[chunk * step..]) {
            assert!(row >= 0 && (row as usize) < rows, "gather_rows: index {row} is not in 0..{rows}");
            y.copy_from_slice(&x[row as usize * dim..][..dim]);
        }
    });
}
