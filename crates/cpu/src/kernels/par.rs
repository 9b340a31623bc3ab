//! Fixed-chunk parallel loops. Where a loop is cut depends on sizes only, never on the number of threads, so results are
//! bit-equal for any pool; what fits in one chunk runs on the caller without touching the pool.

use rayon::prelude::*;

/// Elements a chunk should hold: large enough to hide the hand-over to another thread, small enough to balance.
const CHUNK_ELEMS: usize = 1 << 15;

/// Rows a chunk should hold when each row costs as much as `row_elems` plain elements.
pub(super) fn rows_per_chunk(row_elems: usize) -> usize {
    (CHUNK_ELEMS / row_elems.max(1)).max(1)
}

/// Calls `f(i)` for `0..count`, in parallel and in any order.
pub(super) fn each(count: usize, f: impl Fn(usize) + Sync + Send) {
    if count <= 1 {
        (0..count).for_each(f);
    } else {
        (0..count).into_par_iter().with_max_len(1).for_each(f);
    }
}

/// Calls `f(chunk, part)` for consecutive parts of `step` elements (the last may be shorter).
pub(super) fn chunks<A: Send>(a: &mut [A], step: usize, f: impl Fn(usize, &mut [A]) + Sync + Send) {
    let step = step.max(1);
    if a.len() <= step {
        f(0, a);
    } else {
        a.par_chunks_mut(step).enumerate().with_max_len(1).for_each(|(i, a)| f(i, a));
    }
}

/// As [`chunks`], over two slices cut into as many parts each.
pub(super) fn chunks2<A: Send, B: Send>(
    a: &mut [A],
    step_a: usize,
    b: &mut [B],
    step_b: usize,
    f: impl Fn(usize, &mut [A], &mut [B]) + Sync + Send,
) {
    let (step_a, step_b) = (step_a.max(1), step_b.max(1));
    debug_assert_eq!(a.len().div_ceil(step_a), b.len().div_ceil(step_b));
    if a.len() <= step_a {
        f(0, a, b);
    } else {
        a.par_chunks_mut(step_a)
            .zip(b.par_chunks_mut(step_b))
            .enumerate()
            .with_max_len(1)
            .for_each(|(i, (a, b))| f(i, a, b));
    }
}

/// Splits `total` rows into at most 64 equal chunks of at least 16 rows, for sums over rows: partial sums by chunk, then
/// chunks in order. Returns the rows of a chunk.
pub(super) fn rows_per_partial_sum(total: usize) -> usize {
    total.div_ceil(64).max(16)
}

/// A pointer that tasks share to write disjoint places of one buffer.
#[derive(Clone, Copy)]
pub(super) struct SharedMut<T>(*mut T);

// SAFETY: the pointer is only dereferenced through `get`, whose caller promises that no two tasks touch the same element.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    /// Shares a buffer.
    pub(super) fn new(buffer: &mut [T]) -> Self {
        SharedMut(buffer.as_mut_ptr())
    }

    /// Shares the rest of a buffer that is shared already.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub(super) fn from_ptr(ptr: *mut T) -> Self {
        SharedMut(ptr)
    }

    /// The address of element `i`.
    ///
    /// # Safety
    /// `i` lies within the shared buffer (or one past its end), the buffer is still borrowed, and what is written
    /// through the pointer is touched by no other task.
    pub(super) unsafe fn at(&self, i: usize) -> *mut T {
        // SAFETY: `i` is in bounds by contract.
        unsafe { self.0.add(i) }
    }
}
