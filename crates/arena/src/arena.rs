//! [`Arena`]: the committed plan. Owns every mapping; hands out addresses; has no way to grow.

use crate::region::{Region, RegionRef};
use std::fmt;

/// Committed memory. Regions have the indices that [`crate::Plan::reserve`] returned. On drop they are unpinned and
/// unmapped, last first; files stay.
pub struct Arena {
    pub(crate) regions: Vec<Region>,
    pub(crate) notices: Vec<String>,
}

impl Arena {
    pub(crate) fn empty() -> Arena {
        Arena { regions: Vec::new(), notices: Vec::new() }
    }

    /// The region with this index.
    ///
    /// # Panics
    /// If the plan had no such region.
    pub fn region(&self, index: usize) -> RegionRef<'_> {
        RegionRef(&self.regions[index])
    }

    /// All regions, by index.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = RegionRef<'_>> {
        self.regions.iter().map(RegionRef)
    }

    /// The bytes of a region, while nobody else has the arena: for filling it before work begins and for looking at it
    /// afterwards.
    ///
    /// # Panics
    /// If the plan had no such region.
    pub fn bytes_mut(&mut self, index: usize) -> &mut [u8] {
        self.regions[index].bytes_mut()
    }

    /// What the system gave less of than was asked for, in sentences: huge pages, placement, pinning. Empty if all went
    /// well. None of it changes results.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        while let Some(region) = self.regions.pop() {
            drop(region);
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.regions()).finish()
    }
}
