//! [`Words`]: the numbers of all documents, in memory or in a file that is mapped into it.

use memmap2::Mmap;
use std::fs::File;

// A file's numbers are used where they lie. Nothing that trains models is built of big-endian machines any more.
const _: () = assert!(cfg!(target_endian = "little"), "token files are little-endian and are mapped as they are");

/// Numbers of 32 bits: tokens and labels.
#[derive(Debug)]
pub(crate) enum Words {
    /// In memory.
    Owned(Vec<i32>),
    /// Part of a file, aligned.
    Mapped(Mapped),
}

/// Numbers in a file.
#[derive(Debug)]
pub(crate) struct Mapped {
    map: Mmap,
    start_bytes: usize,
    len: usize,
}

impl Default for Words {
    fn default() -> Self {
        Words::Owned(Vec::new())
    }
}

impl Words {
    /// `len` numbers of a mapped file from a place that is a multiple of four. None where the file ends before.
    pub fn mapped(map: Mmap, start_bytes: usize, len: usize) -> Option<Words> {
        let end = len.checked_mul(4)?.checked_add(start_bytes)?;
        let fits = end <= map.len() && start_bytes.is_multiple_of(align_of::<i32>());
        fits.then_some(Words::Mapped(Mapped { map, start_bytes, len }))
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[i32] {
        match self {
            Words::Owned(words) => words,
            Words::Mapped(Mapped { map, start_bytes, len }) => {
                let bytes = &map[*start_bytes..*start_bytes + 4 * *len];
                // SAFETY: `bytes` are 4 * len initialised bytes that live as long as `self`; they begin at a multiple of
                // four in a map that begins at a page, so they are aligned; every pattern of 32 bits is an i32.
                unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<i32>(), *len) }
            }
        }
    }
}

/// Maps a token file.
pub(crate) fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: a map is a slice only as long as nobody changes the file beneath it. Token files are written once, under a name
    // of the writing process's own, mapped when they are complete, and never written again: who wants the room or the name
    // unlinks or renames, which leaves the file as it is while it is mapped. NFS promises that only among the processes of one
    // machine; after another one has removed the file there, a page that is no longer in memory ends the process (SIGBUS), but
    // never changes beneath the slice.
    unsafe { Mmap::map(file) }
}
