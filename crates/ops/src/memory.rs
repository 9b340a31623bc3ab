//! [`Memory`]: the buffers of one conformance case, one a region, between guard bytes.

use crate::Op;
use megatrain_base::slab::ALIGN_BYTES;
use megatrain_base::{Operands, RegionId};

/// Fills memory that an op has yet to write: NaN in every float dtype.
const POISON: u8 = 0xff;
/// Fills what lies before and behind a buffer.
const GUARD: u8 = 0xa5;
const ALIGN: usize = ALIGN_BYTES as usize;

/// The buffers of a case.
#[derive(Debug, Default)]
pub struct Memory {
    buffers: Vec<(RegionId, Buffer)>,
}

#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    /// Adds a poisoned buffer unless the region has one, or one that is too short.
    pub(crate) fn reserve(&mut self, region: RegionId, len: usize) {
        if let Some(at) = self.buffers.iter().position(|(r, _)| *r == region) {
            if self.buffers[at].1.len >= len {
                return;
            }
            self.buffers.swap_remove(at);
        }
        let mut bytes = vec![GUARD; len + 3 * ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN) + ALIGN;
        bytes[start..start + len].fill(POISON);
        self.buffers.push((region, Buffer { bytes, start, len }));
    }

    fn buffer(&self, region: RegionId) -> &Buffer {
        let found = self.buffers.iter().find(|(r, _)| *r == region);
        &found.unwrap_or_else(|| panic!("the case has no region {region}")).1
    }

    /// The regions.
    pub fn regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.buffers.iter().map(|(region, _)| *region)
    }

    /// The bytes of a region, e.g. to copy them to a device. Panics if the case has no such region.
    pub fn bytes(&self, region: RegionId) -> &[u8] {
        let buffer = self.buffer(region);
        &buffer.bytes[buffer.start..buffer.start + buffer.len]
    }

    /// The bytes of a region, e.g. to copy them back. Panics if the case has no such region.
    pub fn bytes_mut(&mut self, region: RegionId) -> &mut [u8] {
        let found = self.buffers.iter_mut().find(|(r, _)| *r == region);
        let buffer = &mut found.unwrap_or_else(|| panic!("the case has no region {region}")).1;
        &mut buffer.bytes[buffer.start..buffer.start + buffer.len]
    }

    /// The op's operands in this memory, for executors that run on [`Operands`].
    ///
    /// # Panics
    /// If an operand lies outside the case's regions, or a written operand overlaps another.
    pub fn operands(&mut self, op: &Op) -> Operands<'_> {
        let bases: Vec<(RegionId, *mut u8, u64)> = self
            .buffers
            .iter_mut()
            .map(|(region, b)| (*region, b.bytes[b.start..b.start + b.len].as_mut_ptr(), b.len as u64))
            .collect();
        let spans: Vec<_> = op
            .operands()
            .into_iter()
            .map(|(t, access)| {
                let (_, base, len) = *bases
                    .iter()
                    .find(|(region, ..)| *region == t.span.region)
                    .unwrap_or_else(|| panic!("the case has no region for {t}"));
                assert!(t.span.end_bytes() <= len, "{t} does not fit its region of {len} bytes");
                // SAFETY: the offset lies within the region's buffer, as just asserted.
                (t.span, access, unsafe { base.add(t.span.offset_bytes as usize) })
            })
            .collect();
        // SAFETY: every pointer comes from this memory's own buffer with room for the span, initialised by `reserve`;
        // the returned value borrows `self` mutably, so nobody else touches the bytes.
        unsafe { Operands::new(spans) }
    }

    /// Whether all guard bytes of a region are as they were.
    pub(crate) fn guards_whole(&self, region: RegionId) -> bool {
        let b = self.buffer(region);
        b.bytes[..b.start].iter().chain(&b.bytes[b.start + b.len..]).all(|&byte| byte == GUARD)
    }

    /// Writes behind the end of a region.
    #[cfg(test)]
    pub(crate) fn overrun(&mut self, region: RegionId) {
        let b = &mut self.buffers.iter_mut().find(|(r, _)| *r == region).unwrap().1;
        let end = b.start + b.len;
        b.bytes[end] = 0;
    }
}
