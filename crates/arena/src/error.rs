//! [`Error`]: what can go wrong between a plan and its arena, in words for the person who has to change something.

use crate::Refusal;
use megatrain_base::fmt_bytes;
use std::io;
use std::path::PathBuf;

/// Why a plan was refused or could not be committed. After any of them nothing of the plan stays allocated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A region, or the sum up to it, is larger than an address space.
    #[error(
        "region `{region}` asks for {bytes} bytes; with the regions before it that is more than one address space \
         holds: look for an overflow or a wrong unit where its size is computed"
    )]
    TooLarge {
        /// The region at which the sum left the address space.
        region: String,
        /// Its size as asked for.
        bytes: u64,
    },

    /// The machine does not allow what the plan needs.
    #[error("the memory plan does not fit, and nothing was allocated{}", refusals.iter().map(|r| format!("\n  {r}")).collect::<String>())]
    DoesNotFit {
        /// Every limit that is too small, the tightest first.
        refusals: Vec<Refusal>,
    },

    /// A region names a NUMA node that the machine does not have.
    #[error("region `{region}` is to lie on NUMA node {node}, but this machine has the nodes {nodes:?}")]
    NoSuchNode {
        /// The region.
        region: String,
        /// The node it asks for.
        node: usize,
        /// The nodes there are.
        nodes: Vec<usize>,
    },

    /// The kernel refused address space that the check had found to be there.
    #[error(
        "mapping {} of memory for region `{region}` failed ({source}), although the check before it passed: another \
         process may have taken the memory, or vm.max_map_count is too small for the plan's regions",
        fmt_bytes(*bytes)
    )]
    Map {
        /// The region.
        region: String,
        /// Its size.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },

    /// A file of a file-backed region could not be made, opened, enlarged or mapped.
    #[error("region `{region}`: cannot {action} `{}`: {source}", path.display())]
    File {
        /// The region.
        region: String,
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A new file's name is taken. It is never overwritten.
    #[error(
        "region `{region}`: `{}` exists already and is not overwritten: remove it, choose another name, or map it \
         with its contents as Backing::ExistingFile",
        path.display()
    )]
    FileExists {
        /// The region.
        region: String,
        /// The file.
        path: PathBuf,
    },

    /// An existing file does not have the region's length.
    #[error("region `{region}`: `{}` has {found} bytes, but the plan expects {expected}", path.display())]
    FileLength {
        /// The region.
        region: String,
        /// The file.
        path: PathBuf,
        /// Bytes that the plan expects.
        expected: u64,
        /// Bytes that the file has.
        found: u64,
    },

    /// Somebody else holds the file.
    #[error(
        "region `{region}`: `{}` is mapped by another region or another process: give every region its own file",
        path.display()
    )]
    FileInUse {
        /// The region.
        region: String,
        /// The file.
        path: PathBuf,
    },

    /// Page-locking a region failed. This is host memory, never the device's.
    #[error(
        "host pin failed: {pinner} could not page-lock the {} of region `{region}` ({} were locked before it; the \
         memlock limit is {}): {source}\n  this is host memory, not device memory: raise the limit (`ulimit -l \
         unlimited`, docker --ulimit memlock=-1, LimitMEMLOCK=infinity), pin less, or allow pageable memory with \
         PinFailure::Pageable",
        fmt_bytes(*bytes), fmt_bytes(*pinned_bytes), memlock_bytes.map_or("unlimited or unknown".into(), fmt_bytes)
    )]
    Pin {
        /// [`crate::Pinner::name`].
        pinner: String,
        /// The region.
        region: String,
        /// Its size.
        bytes: u64,
        /// What this plan had pinned when it failed; unpinned again since.
        pinned_bytes: u64,
        /// The soft limit, if there is one.
        memlock_bytes: Option<u64>,
        /// What the pinner said.
        source: io::Error,
    },

    /// A file under `/proc` or `/sys` holds something unexpected, or could not be read.
    #[error("cannot make sense of `{}`: {reason}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}
