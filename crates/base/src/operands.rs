//! [`Operands`]: the declared spans of one command, resolved to memory. The only place where a span becomes a slice.
//!
//! A kernel or host task asks for the tensors it declared and gets slices; asking for anything else panics (a bug in
//! the command's declaration). Writes can be taken once, and spans that are written may not overlap any other span of
//! the same command, so the slices handed out never alias.

use crate::{Access, Element, Span, Tensor};
use std::cell::Cell;
use std::marker::PhantomData;

struct Entry {
    span: Span,
    access: Access,
    ptr: *mut u8,
    taken: Cell<bool>,
}

/// The memory of one command, by declared span.
pub struct Operands<'a> {
    entries: Vec<Entry>,
    _memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Operands<'a> {
    /// Resolves spans to memory.
    ///
    /// # Panics
    /// If a written span overlaps another one: a bug
    /// of whoever declared or placed the spans.
    ///
    /// # Safety
    /// For every `(span, access, ptr)`, `ptr` must be valid for `span.len_bytes` bytes for all of `'a`, for writes where
    /// `access` writes, initialised where it reads; and during `'a` nobody else may write those bytes, or read the
    /// written ones. Executors get this from a verified program: conflicting commands are ordered by events.
    pub unsafe fn new(spans: impl IntoIterator<Item = (Span, Access, *mut u8)>) -> Self {
        let entries: Vec<Entry> =
            spans.into_iter().map(|(span, access, ptr)| Entry { span, access, ptr, taken: Cell::new(false) }).collect();
        for (i, a) in entries.iter().enumerate() {
            for b in &entries[i + 1..] {
                assert!(
                    !(a.access.conflicts(b.access) && a.span.overlaps(&b.span)),
                    "operands {} and {} overlap and one is written",
                    a.span,
                    b.span
                );
            }
        }
        Operands { entries, _memory: PhantomData }
    }

    fn entry<T: Element>(&self, tensor: &Tensor, write: bool) -> &Entry {
        assert_eq!(tensor.dtype, T::DTYPE, "operand {tensor} asked for as {}", T::DTYPE);
        let entry =
            self.entries.iter().find(|e| e.span == tensor.span && e.access.writes() == write).unwrap_or_else(|| {
                panic!("{tensor} was not declared for {}", if write { "writing" } else { "reading" })
            });
        assert_eq!(entry.ptr as usize % size_of::<T>(), 0, "operand {tensor} is misaligned");
        entry
    }

    /// The elements of a tensor declared `Read`. May be taken any number of times.
    pub fn read<T: Element>(&self, tensor: &Tensor) -> &'a [T] {
        let entry = self.entry::<T>(tensor, false);
        // SAFETY: `new`'s caller promised validity for 'a; no written span overlaps this one; T accepts any bits.
        unsafe { std::slice::from_raw_parts(entry.ptr.cast(), tensor.elems()) }
    }

    /// The elements of a tensor declared `Write` or `Update`. May be taken once; under `Write` the contents are
    /// arbitrary (possibly NaN) and every element must be written.
    pub fn write<T: Element>(&self, tensor: &Tensor) -> &'a mut [T] {
        let entry = self.entry::<T>(tensor, true);
        assert!(!entry.taken.replace(true), "operand {tensor} taken for writing twice");
        // SAFETY: as in `read`; `taken` makes this the only slice of a span that overlaps no other.
        unsafe { std::slice::from_raw_parts_mut(entry.ptr.cast(), tensor.elems()) }
    }

    /// Every declared span with its pointer, for executors that copy bytes.
    pub fn raw(&self) -> impl Iterator<Item = (Span, Access, *mut u8)> + '_ {
        self.entries.iter().map(|e| (e.span, e.access, e.ptr))
    }
}
