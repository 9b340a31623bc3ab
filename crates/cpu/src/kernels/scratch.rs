//! Scratch memory of the kernels: cache-line-aligned buffers that return to a process-wide pool when dropped.
//!
//! The pool keeps as many buffers as were ever in use at once, so its size is bounded by what one call needs; the bounds
//! are stated where buffers are taken. Taking one costs a lock, so kernels take them per task, not per row.

use megatrain_base::Element;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

static POOL: Mutex<Vec<Vec<Line>>> = Mutex::new(Vec::new());
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of all scratch buffers, in use or not.
pub(super) fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// A buffer of `T`, 64-byte aligned; arbitrary (but initialised) contents.
pub(super) struct Scratch<T: Element> {
    lines: Vec<Line>,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T: Element> Scratch<T> {
    /// Takes a buffer of `len` elements.
    pub(super) fn take(len: usize) -> Self {
        let need = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if need == 0 {
            return Scratch { lines: Vec::new(), len, _elements: PhantomData };
        }
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = (0..pool.len()).filter(|&i| pool[i].len() >= need).min_by_key(|&i| pool[i].len());
        // Where none is large enough, the largest makes way for one that is, so that the pool does not collect rests.
        let any = (0..pool.len()).max_by_key(|&i| pool[i].len());
        let found = fits.or(any).map(|i| pool.swap_remove(i));
        drop(pool);
        let lines = match found {
            Some(lines) if lines.len() >= need => lines,
            too_small => {
                let freed = too_small.map_or(0, |lines| lines.len());
                BYTES.fetch_add(need * size_of::<Line>(), Ordering::Relaxed);
                BYTES.fetch_sub(freed * size_of::<Line>(), Ordering::Relaxed);
                vec![Line([0; 64]); need]
            }
        };
        Scratch { lines, len, _elements: PhantomData }
    }

    /// Takes a buffer of zeros.
    pub(super) fn zeroed(len: usize) -> Self {
        let mut scratch = Self::take(len);
        scratch.fill(T::from_f32(0.0));
        scratch
    }
}

impl<T: Element> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `lines` holds at least `len` elements' bytes, aligned to 64, initialised; any bytes are a valid `T`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Element> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl<T: Element> Drop for Scratch<T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if !lines.is_empty() {
            POOL.lock().unwrap_or_else(PoisonError::into_inner).push(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_distinct_and_reused() {
        let mut a = Scratch::<f32>::zeroed(100);
        let b = Scratch::<f32>::zeroed(100);
        assert!(a.as_ptr().addr().is_multiple_of(64) && a.as_ptr() != b.as_ptr() && a.len() == 100);
        a.fill(1.0);
        assert!(b.iter().all(|&x| x == 0.0));
        drop((a, b));
        let before = bytes();
        for _ in 0..10 {
            let (_a, _b) = (Scratch::<f32>::take(90), Scratch::<f32>::take(100));
        }
        assert_eq!(bytes(), before);
        assert!(Scratch::<u16>::take(0).is_empty());
    }
}
