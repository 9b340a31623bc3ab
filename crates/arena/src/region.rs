//! [`Region`]: one mapping with its pin, both undone on drop. [`RegionRef`]: its base and length, for whoever makes
//! typed views.

use crate::plan::{Backing, Kind, Reservation, page_rounded};
use crate::{Error, Pinner, sys};
use memmap2::{MmapOptions, MmapRaw};
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a transparent huge page on x86-64; regions at least as large start at a multiple of it.
const HUGE_BYTES: usize = 2 << 20;

enum Memory {
    /// A region without bytes.
    Empty,
    /// Pages of ours: base and mapped length.
    Anonymous(NonNull<u8>, usize),
    /// A shared mapping of a file, which is kept open for its lock.
    File { map: MmapRaw, _locked: File },
}

/// A committed region.
pub(crate) struct Region {
    spec: Reservation,
    len_bytes: usize,
    memory: Memory,
    /// Set once a pinner has locked the region.
    pin: Option<Arc<dyn Pinner>>,
    /// A file that this commit made and has not vouched for yet.
    provisional: Option<PathBuf>,
}

// SAFETY: the region owns its mapping, and neither the mapping nor the pin (`Pinner` is Send) is tied to a thread.
unsafe impl Send for Region {}
// SAFETY: through a shared reference only the address can be had; every access of the bytes is its maker's `unsafe`.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region; nothing of it is touched yet. `notices` takes what went less well than asked.
    pub(crate) fn map(spec: &Reservation, huge_pages: bool, notices: &mut Vec<String>) -> Result<Region, Error> {
        let too_large = |_| Error::TooLarge { region: spec.name.clone(), bytes: spec.bytes };
        let len_bytes = usize::try_from(spec.bytes).map_err(too_large)?;
        let mut region = Region { spec: spec.clone(), len_bytes, memory: Memory::Empty, pin: None, provisional: None };
        match spec.backing.clone() {
            Backing::Anonymous if len_bytes > 0 => region.map_anonymous(huge_pages, notices)?,
            Backing::Anonymous => {}
            Backing::NewFile(path) => region.map_new_file(&path)?,
            Backing::ExistingFile(path) => region.map_existing_file(&path)?,
        }
        Ok(region)
    }

    fn map_anonymous(&mut self, huge_pages: bool, notices: &mut Vec<String>) -> Result<(), Error> {
        let mapped = page_rounded(self.spec.bytes) as usize;
        let huge = huge_pages && mapped >= HUGE_BYTES;
        let base = sys::map_anonymous(mapped, if huge { HUGE_BYTES } else { sys::page_bytes() })
            .map_err(|source| Error::Map { region: self.spec.name.clone(), bytes: self.spec.bytes, source })?;
        self.memory = Memory::Anonymous(base, mapped);
        if huge {
            // SAFETY: the range was mapped just now and is ours alone.
            if let Err(e) = unsafe { sys::advise_huge(base.as_ptr(), mapped) } {
                notices.push(format!("region `{}`: no huge pages ({e})", self.spec.name));
            }
        }
        Ok(())
    }

    fn map_new_file(&mut self, path: &Path) -> Result<(), Error> {
        let file = match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::FileExists { region: self.spec.name.clone(), path: path.into() });
            }
            Err(e) => return Err(self.file_error("create", path, e)),
        };
        self.provisional = Some(path.into());
        if self.len_bytes > 0 {
            sys::allocate(&file, self.spec.bytes).map_err(|e| self.file_error("allocate the blocks of", path, e))?;
        }
        self.map_file(file, path)
    }

    fn map_existing_file(&mut self, path: &Path) -> Result<(), Error> {
        let open = OpenOptions::new().read(true).write(true).open(path);
        let file = open.map_err(|e| self.file_error("open", path, e))?;
        let found = file.metadata().map_err(|e| self.file_error("read the length of", path, e))?.len();
        if found != self.spec.bytes {
            let (region, path) = (self.spec.name.clone(), path.into());
            return Err(Error::FileLength { region, path, expected: self.spec.bytes, found });
        }
        self.map_file(file, path)
    }

    fn map_file(&mut self, file: File, path: &Path) -> Result<(), Error> {
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::FileInUse { region: self.spec.name.clone(), path: path.into() });
            }
            Err(TryLockError::Error(e)) => return Err(self.file_error("lock", path, e)),
        }
        if self.len_bytes > 0 {
            let map = MmapOptions::new().len(self.len_bytes).map_raw(&file);
            let map = map.map_err(|e| self.file_error("map", path, e))?;
            self.memory = Memory::File { map, _locked: file };
        }
        Ok(())
    }

    fn file_error(&self, action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::File { region: self.spec.name.clone(), action, path: path.into(), source }
    }

    /// Locks the region's pages.
    pub(crate) fn pin(&mut self, pinner: &Arc<dyn Pinner>) -> io::Result<()> {
        let (base, mapped) = self.pages();
        if mapped > 0 && self.pin.is_none() {
            // SAFETY: the pages are mapped, `&mut self` keeps others away, and `drop` unpins before it unmaps.
            unsafe { pinner.pin(base, mapped)? };
            self.pin = Some(pinner.clone());
        }
        Ok(())
    }

    /// The commit has succeeded: a file that it made stays.
    pub(crate) fn keep(&mut self) {
        self.provisional = None;
    }

    /// What was reserved.
    pub(crate) fn spec(&self) -> &Reservation {
        &self.spec
    }

    /// Base and length of the mapped pages.
    pub(crate) fn pages(&self) -> (*mut u8, usize) {
        match &self.memory {
            Memory::Empty => (std::ptr::without_provenance_mut(sys::page_bytes()), 0),
            Memory::Anonymous(base, mapped) => (base.as_ptr(), *mapped),
            Memory::File { map, .. } => (map.as_mut_ptr(), self.len_bytes.next_multiple_of(sys::page_bytes())),
        }
    }

    /// The region's bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len_bytes` bytes from the base are mapped and initialised (zeros or the file) for as long as self
        // lives. `&mut self` excludes every other safe view; code that made views through `RegionRef::as_ptr` has
        // promised not to use them while the arena is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages().0, self.len_bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (base, mapped) = self.pages();
        if let Some(pinner) = self.pin.take() {
            // SAFETY: pinned with these arguments, still mapped, and whoever ran a device on the region has let go of
            // the arena.
            unsafe { pinner.unpin(base, mapped) };
        }
        if let Memory::Anonymous(base, mapped) = self.memory {
            // SAFETY: `map_anonymous` made this mapping, this is its only owner, and it is dropped once.
            unsafe { sys::unmap(base.as_ptr(), mapped) };
        }
        if let Some(path) = self.provisional.take() {
            // Best effort while another error is on its way to the user.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A look at a committed region: where it lies and what it is, never its bytes.
#[derive(Clone, Copy)]
pub struct RegionRef<'a>(pub(crate) &'a Region);

impl<'a> RegionRef<'a> {
    /// Its first byte, at a multiple of the page (4096 on x86-64). Valid for reads and writes of
    /// [`RegionRef::len_bytes`] bytes until the arena is dropped; initialised. Whoever dereferences it must order its
    /// accesses with everybody else's, and make none while the arena is borrowed mutably.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.pages().0
    }
    /// Its exact size, as reserved.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }
    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.0.spec.name
    }
    /// Its group.
    pub fn kind(&self) -> Kind {
        self.0.spec.kind
    }
    /// What stands behind it.
    pub fn backing(&self) -> &'a Backing {
        &self.0.spec.backing
    }
    /// Whether a pinner has page-locked it.
    pub fn is_pinned(&self) -> bool {
        self.0.pin.is_some()
    }
}

impl fmt::Debug for RegionRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} bytes at {:p})", self.name(), self.kind(), self.len_bytes(), self.as_ptr())
    }
}
