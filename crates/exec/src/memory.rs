//! [`RegionMemory`]: one block of memory for each region of a contract, and the one place where a span becomes a pointer.
//!
//! Host regions are borrowed from whoever owns them (the arena, a mapped file); device regions live in a heap of their
//! own, so that a program that forgets a copy reads other bytes than it should. Nothing here decides who may touch what.

use crate::ExecError;
use megatrain_base::{Span, fmt_bytes, slab::ALIGN_BYTES};
use megatrain_scheduler::{Contract, Space};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// The memory of one region. It stays alive as long as the executor (and any thread of it) does.
pub struct RegionMemory {
    ptr: *mut u8,
    len_bytes: u64,
    shared: bool,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a `RegionMemory` is an address and a length; it hands out no reference by itself. `new`'s caller promised that
// the block may be used from any thread, and `heap` makes a block that nobody else knows.
unsafe impl Send for RegionMemory {}
// SAFETY: as above; there is nothing to mutate through a shared reference.
unsafe impl Sync for RegionMemory {}

impl RegionMemory {
    /// Memory that someone else made: an arena's region, a mapped file, device memory. `owner` is kept until the executor
    /// is gone and must keep the block alive.
    ///
    /// # Safety
    /// In the space of its region (host, or a device and its copies), `ptr` must be valid for reads and writes of `len_bytes` initialised bytes, from any thread, until the last clone of
    /// `owner` is dropped. The block must not overlap another region's. While a program that declares bytes of it is
    /// unfinished, nobody but the executor may touch those bytes.
    pub unsafe fn new(ptr: *mut u8, len_bytes: u64, owner: Arc<dyn Any + Send + Sync>) -> Self {
        RegionMemory { ptr, len_bytes, shared: false, _owner: owner }
    }

    /// The block may overlap another region's: for timing programs larger than the machine, whose results mean nothing.
    pub fn shared(self) -> Self {
        RegionMemory { shared: true, ..self }
    }

    /// A zeroed block of its own, page-aligned; from 4 MiB on, huge pages are asked for. Pages become resident when
    /// they are first touched.
    ///
    /// # Errors
    /// If the system refuses that much.
    pub fn heap(len_bytes: u64) -> Result<Self, ExecError> {
        let refused = || ExecError::Memory(format!("the system refuses a heap of {}", fmt_bytes(len_bytes)));
        let len = usize::try_from(len_bytes).map_err(|_| refused())?;
        let align = if len >= 2 * HUGE_PAGE { HUGE_PAGE } else { PAGE };
        // Aligned by hand: the system allocator hands out untouched zero pages only at its own small alignment.
        let padded = len.checked_add(align).ok_or_else(refused)?;
        let layout = Layout::from_size_align(padded, 16).map_err(|_| refused())?;
        // SAFETY: the layout's size is at least `align`, so not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(refused());
        }
        let owner = Heap { base, layout };
        let skip = (base as usize).next_multiple_of(align) - base as usize;
        // SAFETY: skip < align and the block has len + align bytes, so the result lies inside it.
        let ptr = unsafe { base.add(skip) };
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // SAFETY: the range is page-aligned and inside our own block; the advice changes no byte. Where the kernel
            // does not know it, ordinary pages are what we get, so the answer is not needed.
            unsafe { libc::madvise(ptr.cast(), len, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: `owner` owns a zeroed block that holds ptr..ptr+len and frees it when dropped; nobody else knows it.
        Ok(unsafe { RegionMemory::new(ptr, len_bytes, Arc::new(owner)) })
    }
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionMemory({} at {:p})", fmt_bytes(self.len_bytes), self.ptr)
    }
}

struct Heap {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: an allocation may be freed from any thread, and `Heap` does nothing else with it.
unsafe impl Send for Heap {}
// SAFETY: a shared `Heap` gives access to nothing.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this layout and is freed once, here.
        unsafe { dealloc(self.base, self.layout) }
    }
}

/// The memory of all regions of a contract.
#[derive(Debug)]
pub struct Memory {
    regions: Vec<RegionMemory>,
}

impl Memory {
    /// Checks the blocks against the contract.
    pub fn new(contract: &Contract, regions: Vec<RegionMemory>) -> Result<Self, ExecError> {
        let fail = |what: String| Err(ExecError::Memory(what));
        if regions.len() != contract.regions.len() {
            return fail(format!("{} blocks for {} regions", regions.len(), contract.regions.len()));
        }
        for (spec, memory) in contract.regions.iter().zip(&regions) {
            if memory.len_bytes < spec.len_bytes {
                let (need, got) = (fmt_bytes(spec.len_bytes), fmt_bytes(memory.len_bytes));
                return fail(format!("region `{}` needs {need} and got a block of {got}", spec.name));
            }
            if !(memory.ptr as u64).is_multiple_of(ALIGN_BYTES) {
                let at = memory.ptr;
                return fail(format!("region `{}` starts at {at:p}, no multiple of {ALIGN_BYTES}", spec.name));
            }
        }
        let mut by_address: Vec<usize> =
            (0..regions.len()).filter(|&i| regions[i].len_bytes > 0 && !regions[i].shared).collect();
        by_address.sort_by_key(|&i| regions[i].ptr as usize);
        for pair in by_address.windows(2) {
            let (low, high) = (&regions[pair[0]], &regions[pair[1]]);
            if low.ptr as u64 + low.len_bytes > high.ptr as u64 {
                let (low, high) = (&contract.regions[pair[0]].name, &contract.regions[pair[1]].name);
                return fail(format!("the blocks of regions `{low}` and `{high}` overlap"));
            }
        }
        Ok(Memory { regions })
    }

    /// Whether a span lies inside its region; if not, a sentence.
    pub fn check(&self, contract: &Contract, span: &Span) -> Result<(), String> {
        let Some(spec) = contract.regions.get(span.region.0 as usize) else {
            return Err(format!("touches region {}; the contract has {}", span.region, contract.regions.len()));
        };
        match span.offset_bytes.checked_add(span.len_bytes) {
            Some(end) if end <= spec.len_bytes => Ok(()),
            _ => Err(format!(
                "touches {} bytes at {} of region `{}`, which has {}",
                span.len_bytes, span.offset_bytes, spec.name, spec.len_bytes
            )),
        }
    }

    /// Where a span starts. The span must have passed [`Memory::check`].
    pub fn resolve(&self, span: &Span) -> *mut u8 {
        let region = &self.regions[span.region.0 as usize];
        assert!(span.end_bytes() <= region.len_bytes, "{span} was not checked");
        // SAFETY: the offset is at most the block's length, by the line above.
        unsafe { region.ptr.add(span.offset_bytes as usize) }
    }

    /// Copies a span that the host can address out.
    ///
    /// # Errors
    /// [`ExecError::Memory`] if the span leaves its region or is not as long as `out`.
    ///
    /// # Safety
    /// The region must be memory of the host, and nobody may be writing those bytes.
    pub unsafe fn read(&self, contract: &Contract, span: &Span, out: &mut [u8]) -> Result<(), ExecError> {
        let ptr = self.host(contract, span, out.len())?;
        // SAFETY: `host` checked the bounds; `out` is borrowed exclusively, so it is no part of a region.
        unsafe { std::ptr::copy_nonoverlapping(ptr, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Overwrites a span that the host can address.
    ///
    /// # Errors
    /// As [`Memory::read`].
    ///
    /// # Safety
    /// The region must be memory of the host, and nobody may be accessing those bytes.
    pub unsafe fn write(&self, contract: &Contract, span: &Span, bytes: &[u8]) -> Result<(), ExecError> {
        let ptr = self.host(contract, span, bytes.len())?;
        // SAFETY: `host` checked the bounds; a copy that may overlap, since `bytes` could lie in a region.
        unsafe { std::ptr::copy(bytes.as_ptr(), ptr, bytes.len()) };
        Ok(())
    }

    fn host(&self, contract: &Contract, span: &Span, len: usize) -> Result<*mut u8, ExecError> {
        self.check(contract, span).map_err(ExecError::Memory)?;
        if span.len_bytes != len as u64 {
            return Err(ExecError::Memory(format!("{len} bytes for {span}")));
        }
        Ok(self.resolve(span))
    }

    /// Fills every region that is undefined when a program starts (files excepted) with 0xFF bytes: NaN in every float
    /// type.
    ///
    /// # Safety
    /// No command may be running.
    pub unsafe fn poison(&self, contract: &Contract) {
        for (spec, memory) in contract.regions.iter().zip(&self.regions) {
            if !spec.defined_at_entry && spec.space != Space::File {
                // SAFETY: the block is valid for at least `len_bytes`, by `new`, and idle, by our caller.
                unsafe { std::ptr::write_bytes(memory.ptr, 0xff, spec.len_bytes as usize) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_base::RegionId;

    #[test]
    fn blocks_that_do_not_fit_are_refused_by_name() {
        let mut contract = Contract::default();
        contract.region("weights", Space::Host, 1000, true);
        contract.region("heap", Space::Host, 64, true);
        let check = |regions: Vec<RegionMemory>, expected: &str| {
            let text = Memory::new(&contract, regions).unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        };
        let heap = |len| RegionMemory::heap(len).unwrap();
        check(vec![heap(1000)], "1 blocks for 2 regions");
        check(vec![heap(999), heap(64)], "region `weights` needs 1000 B and got a block of 999 B");
        let (block, shifted) = (heap(2048), heap(4096));
        // SAFETY: both point into blocks that the owner handed over keeps alive; neither is ever used.
        let (overlapping, odd) = unsafe {
            let inner = RegionMemory::new(block.ptr.add(512), 64, block._owner.clone());
            (inner, RegionMemory::new(shifted.ptr.add(8), 64, shifted._owner.clone()))
        };
        check(vec![block, overlapping], "the blocks of regions `weights` and `heap` overlap");
        check(vec![heap(1000), odd], "no multiple of 256");
        let refused = RegionMemory::heap(u64::MAX).unwrap_err().to_string();
        assert!(refused.contains("refuses a heap"), "{refused}");
    }

    #[test]
    fn heaps_are_zeroed_and_aligned() {
        for len in [0, 1, 4096, 9 << 20] {
            let heap = RegionMemory::heap(len).unwrap();
            assert_eq!(heap.ptr as usize % PAGE, 0);
            // SAFETY: the block is ours alone, initialised and `len` bytes long.
            assert!(unsafe { std::slice::from_raw_parts(heap.ptr, len as usize) }.iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn spans_beyond_their_region_are_named() {
        let mut contract = Contract::default();
        contract.region("weights", Space::Host, 1000, true);
        let memory = Memory::new(&contract, vec![RegionMemory::heap(4096).unwrap()]).unwrap();
        let at = |region, offset, len| memory.check(&contract, &Span::new(RegionId(region), offset, len));
        assert_eq!(at(0, 900, 100), Ok(()));
        assert!(at(0, 900, 101).unwrap_err().contains("of region `weights`, which has 1000"));
        assert!(at(0, u64::MAX, 2).unwrap_err().contains("of region `weights`, which has 1000"));
        assert!(at(1, 0, 1).unwrap_err().contains("touches region r1; the contract has 1"));
    }
}
