//! [`Plan`]: the list of regions, in order, with exact sizes. Holds names and numbers, never memory.

use crate::{Error, sys};
use std::fmt;
use std::path::PathBuf;

/// What a region is for: the groups of the printed plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Weights as they are streamed.
    Weights,
    /// What the optimizer keeps beside them: low halves, moments.
    OptimizerState,
    /// Gradient slabs.
    Gradients,
    /// Activations spilled to the host.
    Activations,
    /// Batches, gathered rows and other buffers on their way to or from a device.
    Staging,
    /// The device memory of an executor whose device is this machine.
    DeviceHeap,
    /// Anything else.
    Other,
}

impl Kind {
    /// All of them, in the order in which they are printed.
    pub const ALL: [Kind; 7] = [
        Kind::Weights,
        Kind::OptimizerState,
        Kind::Gradients,
        Kind::Activations,
        Kind::Staging,
        Kind::DeviceHeap,
        Kind::Other,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Weights => "weights",
            Kind::OptimizerState => "optimizer state",
            Kind::Gradients => "gradients",
            Kind::Activations => "activations",
            Kind::Staging => "staging",
            Kind::DeviceHeap => "device heap",
            Kind::Other => "other",
        })
    }
}

/// What stands behind a region's addresses.
///
/// A file-backed region is mapped shared: what is written reaches the file, at the latest some time after the arena is
/// dropped, and the file stays. The arena holds an advisory lock on it; a program that ignores the lock and truncates
/// the file kills this process (SIGBUS), one that writes to it changes the region.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Backing {
    /// Memory, zero-filled.
    #[default]
    Anonymous,
    /// A file that must not exist yet. Made with all its blocks allocated, zero-filled; removed if the commit fails.
    NewFile(PathBuf),
    /// A file that exists with exactly the region's length. Its contents are kept.
    ExistingFile(PathBuf),
}

impl Backing {
    /// The file, if there is one.
    pub fn path(&self) -> Option<&std::path::Path> {
        match self {
            Backing::Anonymous => None,
            Backing::NewFile(path) | Backing::ExistingFile(path) => Some(path),
        }
    }
}

/// One region to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// For people: `weights[3]`.
    pub name: String,
    /// Its group.
    pub kind: Kind,
    /// Its exact size; zero is allowed and takes no memory.
    pub bytes: u64,
    /// The NUMA node whose memory is preferred. Ignored on machines with one node and for files.
    pub node: Option<usize>,
    /// Whether the commit's [`crate::Pinner`], if there is one, page-locks it.
    pub pinned: bool,
    /// What stands behind it.
    pub backing: Backing,
}

impl Reservation {
    /// A region in memory, on no particular node, not pinned.
    pub fn new(name: impl Into<String>, kind: Kind, bytes: u64) -> Self {
        Reservation { name: name.into(), kind, bytes, node: None, pinned: false, backing: Backing::Anonymous }
    }
    /// Prefers the memory of a NUMA node.
    pub fn on_node(self, node: usize) -> Self {
        Reservation { node: Some(node), ..self }
    }
    /// Asks the pinner to page-lock the region, so that a device can copy from and to it at full speed.
    pub fn pinned(self) -> Self {
        Reservation { pinned: true, ..self }
    }
    /// Chooses what stands behind the region.
    pub fn backed_by(self, backing: Backing) -> Self {
        Reservation { backing, ..self }
    }
}

/// Regions to be committed together, in the order in which they were reserved.
///
/// Prints as a table by group; with `{:#}` also as a list of all regions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    regions: Vec<Reservation>,
    allowances: Vec<(String, u64)>,
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a region in memory and returns its index, which is also its index in the arena.
    pub fn reserve(&mut self, name: impl Into<String>, kind: Kind, bytes: u64) -> usize {
        self.add(Reservation::new(name, kind, bytes))
    }

    /// Appends a region of any sort and returns its index.
    pub fn add(&mut self, reservation: Reservation) -> usize {
        self.regions.push(reservation);
        self.regions.len() - 1
    }

    /// Counts memory that somebody else will allocate (a loader's text, the one shard that an export holds): printed
    /// and checked with the plan, never committed.
    pub fn allow_for(&mut self, name: impl Into<String>, bytes: u64) {
        self.allowances.push((name.into(), bytes));
    }

    /// The regions, in order.
    pub fn regions(&self) -> &[Reservation] {
        &self.regions
    }

    /// Name and bytes of what was counted by [`Plan::allow_for`].
    pub fn allowances(&self) -> &[(String, u64)] {
        &self.allowances
    }

    /// Bytes of memory that the regions of `kind` take, rounded up to pages, files not counted.
    pub fn memory_bytes(&self, kind: Kind) -> u64 {
        self.sum(|r| r.kind == kind && r.backing == Backing::Anonymous)
    }

    /// Bytes that the files of `kind` take, rounded up to pages.
    pub fn file_bytes(&self, kind: Kind) -> u64 {
        self.sum(|r| r.kind == kind && r.backing != Backing::Anonymous)
    }

    /// Bytes that a pinner would page-lock.
    pub fn pinned_bytes(&self) -> u64 {
        self.sum(|r| r.pinned)
    }

    /// Bytes of all regions that `count` chooses, rounded up to pages; saturating, so that a plan with impossible sizes
    /// can still be printed.
    pub(crate) fn sum(&self, count: impl Fn(&Reservation) -> bool) -> u64 {
        self.regions.iter().filter(|r| count(r)).map(|r| page_rounded(r.bytes)).fold(0, u64::saturating_add)
    }

    /// Refuses sizes that no address space holds.
    pub(crate) fn check_sizes(&self) -> Result<(), Error> {
        let mut total = 0u64;
        let regions = self.regions.iter().map(|r| (&r.name, r.bytes));
        for (region, bytes) in regions.chain(self.allowances.iter().map(|(name, bytes)| (name, *bytes))) {
            total = total.saturating_add(page_rounded(bytes));
            if total > isize::MAX as u64 {
                return Err(Error::TooLarge { region: region.clone(), bytes });
            }
        }
        Ok(())
    }
}

/// `bytes` rounded up to whole pages, saturating.
pub(crate) fn page_rounded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(sys::page_bytes() as u64).unwrap_or(u64::MAX)
}
