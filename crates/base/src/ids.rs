//! Identifiers. Plain integers with a type, so that a unit is never taken for a region.

use std::fmt;

/// A contiguous piece of some memory space (a host slab, the device heap, a file): the first coordinate of an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u32);

/// A streamed unit of a model: the embedding, a block, the head. Units are numbered in forward order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct UnitId(pub u32);

/// One device of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Rank {
    /// Machine number.
    pub node: u16,
    /// Device number on that machine.
    pub local: u16,
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.local)
    }
}
