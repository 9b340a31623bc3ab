//! Scratch memory of the kernels: cache-line-aligned buffers that return to a process-wide pool when dropped.
//!
//! The pool keeps as many buffers as were ever in use at once, so its size is bounded by what one call needs; the bounds
//! are stated where buffers are taken. Taking one costs a lock, so kernels take them per task, not per row.

use megatrain_base::Element;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

static POOL: Mutex<Vec<Vec<Line>>> = Mutex::new(Vec::new());

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
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = (0..pool.len()).filter(|&i| pool[i].len() >= need).min_by_key(|&i| pool[i].len());
        // Where none is large enough, the largest makes way for one that is, so that the pool does not collect rests.
        let any = (0..pool.len()).max_by_key(|&i| pool[i].len());
        let found = fits.or(any).map(|i| pool.swap_remove(i));
        drop(pool);
        let lines = match found {
            Some(lines) if lines.len() >= need => lines,
            too_small => {
                drop(too_small);
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
