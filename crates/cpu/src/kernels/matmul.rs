//! Matrix products. Two ways, chosen once per machine: AMX tiles where there are any ([`super::matmul_amx`]), else the
//! `gemm` crate's f32 kernels on fixed tiles of the result.

use super::Packable;
use super::factor::Factor;
use super::{par, scratch::Scratch};
use megatrain_base::{DType, Element, Operands, bf16};
use megatrain_ops::Matmul;

/// Rows and columns of the tiles of the result that the portable way gives to one task.
const TILE: usize = 256;
/// k of the blocks that the portable way widens from bf16 at once.
const BLOCK_K: usize = 512;

/// Where a result goes and what becomes of what it held.
pub(super) struct Output<'a, C> {
    /// `[m, n]`
    pub(super) c: &'a mut [C],
    /// Columns.
    pub(super) n: usize,
    /// Add instead of overwriting; f32 only.
    pub(super) accumulate: bool,
}

/// Runs the op.
pub(super) fn run(op: &Matmul, operands: &Operands) {
    match (op.a.dtype, op.c.dtype) {
        (DType::F32, DType::F32) => typed::<f32, f32>(op, operands),
        (DType::Bf16, DType::F32) => typed::<bf16, f32>(op, operands),
        (DType::Bf16, DType::Bf16) => typed::<bf16, bf16>(op, operands),
        (a, c) => unreachable!("Matmul::check refuses {a} factors with a {c} result"),
    }
}

fn typed<T: Packable, C: Element>(op: &Matmul, operands: &Operands) {
    let (a, b) = (operands.read::<T>(&op.a), operands.read::<T>(&op.b));
    let c = operands.write::<C>(&op.c);
    let (m, n) = (op.c.shape.dim(0), op.c.shape.dim(1));
    let k = if op.transpose_a { op.a.shape.dim(0) } else { op.a.shape.dim(1) };
    let left = Factor::matrix(a, m, k, !op.transpose_a);
    let right = Factor::matrix(b, n, k, op.transpose_b);
    multiply(&left, &right, Output { c, n, accumulate: op.accumulate });
}

fn multiply<T: Packable, C: Element>(left: &Factor<T>, right: &Factor<T>, out: Output<C>) {
    if left.rows == 0 || right.rows == 0 {
        return;
    }
    if left.k == 0 {
        if !out.accumulate {
            out.c.fill(C::from_f32(0.0));
        }
        return;
    }
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if super::amx::available() {
        return super::matmul_amx::multiply(left, right, out);
    }
    portable(left, right, out);
}

/// The result in tiles of [`TILE`] x [`TILE`], each by one single-threaded call of `gemm` per block of k. bf16 blocks are
/// widened first, and sums of bf16 results are kept in f32 until the end: at most 2.3 MiB of scratch a thread.
fn portable<T: Packable, C: Element>(left: &Factor<T>, right: &Factor<T>, out: Output<C>) {
    let (m, n, k) = (left.rows, right.rows, left.k);
    let (tiles_m, tiles_n) = (m.div_ceil(TILE), n.div_ceil(TILE));
    let (accumulate, ldc) = (out.accumulate, out.n);
    let c = par::SharedMut::new(out.c);
    par::each(tiles_m * tiles_n, |tile| {
        let (row, col) = (tile % tiles_m * TILE, tile / tiles_m * TILE);
        let (left, right) = (left.part(row, TILE, 0, k), right.part(col, TILE, 0, k));
        let (rows, cols) = (left.rows, right.rows);
        // SAFETY: tiles of the result are disjoint and inside it.
        let c_tile = unsafe { c.at(row * ldc + col) };
        if T::DTYPE == DType::F32 {
            // SAFETY: f32 factors are only paired with f32 results (`run`); everything is in bounds.
            unsafe { gemm_f32(&left.as_f32(), &right.as_f32(), c_tile.cast(), ldc, accumulate) };
            return;
        }
        let mut sum = Scratch::<f32>::take(TILE * TILE);
        let mut wide_left = Scratch::<f32>::take(TILE * BLOCK_K);
        let mut wide_right = Scratch::<f32>::take(TILE * BLOCK_K);
        for k0 in (0..k).step_by(BLOCK_K) {
            let left = widen(&left.part(0, rows, k0, BLOCK_K), &mut wide_left);
            let right = widen(&right.part(0, cols, k0, BLOCK_K), &mut wide_right);
            // SAFETY: `sum` holds TILE x TILE; both blocks lie in scratch.
            unsafe { gemm_f32(&left, &right, sum.as_mut_ptr(), TILE, k0 > 0) };
        }
        for (r, sums) in sum.chunks_exact(TILE).take(rows).enumerate() {
            // SAFETY: row r of this task's tile.
            let c = unsafe { std::slice::from_raw_parts_mut(c_tile.add(r * ldc), cols) };
            finish(&sums[..cols], c, accumulate);
        }
    });
}

super::simd::simd! {
    /// Adds sums to a row or stores them, in its dtype.
    pub(super) fn finish[C: Element](sums: &[f32], c: &mut [C], accumulate: bool) {
        if accumulate {
            for (c, &s) in c.iter_mut().zip(sums) {
                *c = C::from_f32(c.to_f32() + s);
            }
        } else {
            for (c, &s) in c.iter_mut().zip(sums) {
                *c = C::from_f32(s);
            }
        }
    }
}

/// Copies a block to f32, in its own orientation.
pub(super) fn widen<T: Element>(block: &Factor<T>, out: &mut [f32]) -> Factor<f32> {
    super::simd::simd! {
        fn line[T: Element](from: &[T], to: &mut [f32]) {
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.to_f32();
            }
        }
    }
    let k_last = block.k_stride == 1;
    let (lines, len, stride) =
        if k_last { (block.rows, block.k, block.row_stride) } else { (block.k, block.rows, block.k_stride) };
    for (i, to) in out.chunks_exact_mut(len).take(lines).enumerate() {
        // SAFETY: line i of the block, which is readable while the op runs.
        line(unsafe { std::slice::from_raw_parts(block.ptr.add(i * stride), len) }, to);
    }
    let (row_stride, k_stride) = if k_last { (len, 1) } else { (1, len) };
    Factor { ptr: out.as_ptr(), rows: block.rows, k: block.k, row_stride, k_stride }
}

/// `c (+)= left right^T` on the calling thread.
///
/// # Safety
/// The factors are readable; `c` is `left.rows` rows of `right.rows`, `ldc` apart, writable by this task alone and
/// initialised if `accumulate`.
pub(super) unsafe fn gemm_f32(left: &Factor<f32>, right: &Factor<f32>, c: *mut f32, ldc: usize, accumulate: bool) {
    // SAFETY: in bounds by contract; strides are in elements and below isize::MAX since the slices exist.
    unsafe {
        // The product is computed transposed, `c^T = right left^T`: the micro-kernels write columns.
        gemm_f32::gemm::f32::get_gemm_fn()(
            right.rows,
            left.rows,
            left.k,
            c,
            ldc as isize,
            1,
            accumulate,
            right.ptr,
            right.k_stride as isize,
            right.row_stride as isize,
            left.ptr,
            left.row_stride as isize,
            left.k_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}
