//! [`Factor`]: a matrix in memory as one factor of a product.

/// Which factor of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The left factor: its rows are the result's rows.
    Left,
    /// The right factor: its rows are the result's columns.
    Right,
}

/// A factor, seen as `rows` x `k` whatever its side and however it is stored; one of the strides is 1. It is a raw
/// address because parts of one slice overlap: whoever reads through it must know that the slice is still borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor<T> {
    /// Element (0, 0).
    pub(super) ptr: *const T,
    /// Rows.
    pub(super) rows: usize,
    /// Length of the contraction.
    pub(super) k: usize,
    /// Elements from one row to the next.
    pub(super) row_stride: usize,
    /// Elements from one k to the next.
    pub(super) k_stride: usize,
}

// SAFETY: a factor is only read, by tasks that live inside the borrow it was made from.
unsafe impl<T: Sync> Send for Factor<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Factor<T> {}

impl<T> Factor<T> {
    /// A whole matrix; `k_last`: stored `[rows, k]`, else `[k, rows]`.
    pub(super) fn matrix(data: &[T], rows: usize, k: usize, k_last: bool) -> Self {
        assert_eq!(data.len(), rows * k, "a factor of {rows} x {k}");
        let (row_stride, k_stride) = if k_last { (k, 1) } else { (1, rows) };
        Factor { ptr: data.as_ptr(), rows, k, row_stride, k_stride }
    }

    /// `rows` x `k` from the start of `data`, with lines (rows if `k_last`, else columns) `stride` apart.
    pub(super) fn strided(data: &[T], rows: usize, k: usize, stride: usize, k_last: bool) -> Self {
        let (lines, len) = if k_last { (rows, k) } else { (k, rows) };
        assert!(
            lines == 0 || (lines - 1) * stride + len <= data.len(),
            "a factor of {rows} x {k}, lines {stride} apart"
        );
        let (row_stride, k_stride) = if k_last { (stride, 1) } else { (1, stride) };
        Factor { ptr: data.as_ptr(), rows, k, row_stride, k_stride }
    }

    /// The part that starts at (`row`, `k`), at most `rows` x `len` elements of it.
    pub(super) fn part(&self, row: usize, rows: usize, k: usize, len: usize) -> Self {
        assert!(row <= self.rows && k <= self.k, "part at ({row}, {k}) of {} x {}", self.rows, self.k);
        Factor {
            ptr: self.ptr.wrapping_add(row * self.row_stride + k * self.k_stride),
            rows: rows.min(self.rows - row),
            k: len.min(self.k - k),
            ..*self
        }
    }

    /// The same factor where `T` is known to be f32.
    pub(super) fn as_f32(&self) -> Factor<f32> {
        assert_eq!(size_of::<T>(), size_of::<f32>());
        let Factor { ptr, rows, k, row_stride, k_stride } = *self;
        Factor { ptr: ptr.cast(), rows, k, row_stride, k_stride }
    }
}
