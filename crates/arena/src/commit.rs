//! [`Plan::commit`]: maps, places, touches and pins the whole plan, or leaves nothing of it behind.

use crate::limits::{Limits, Resource};
use crate::numa::Topology;
use crate::plan::{Backing, Plan, Reservation};
use crate::region::Region;
use crate::touch::{Fresh, Progress, first_touch};
use crate::{Arena, Error, Pinner, sys};
use megatrain_base::fmt_bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Where a commit learns about NUMA nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Numa {
    /// From sysfs.
    #[default]
    System,
    /// From here.
    Given(Topology),
    /// Nodes are ignored.
    Off,
}

/// What happens where a region cannot be page-locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PinFailure {
    /// The commit fails with [`Error::Pin`].
    #[default]
    Refuse,
    /// The region stays pageable: [`crate::RegionRef::is_pinned`] is false, and a notice says why.
    Pageable,
}

/// How a plan is committed.
pub struct CommitOptions {
    /// Threads of the first touch; 0 for as many as there are CPUs for this process.
    pub threads: usize,
    /// Whether transparent huge pages are asked for, in regions of 2 MiB and more.
    pub huge_pages: bool,
    /// NUMA nodes; only where there are two or more is anything placed.
    pub numa: Numa,
    /// Page-locks the regions that were reserved [`Reservation::pinned`].
    pub pinner: Option<Arc<dyn Pinner>>,
    /// What happens if it cannot.
    pub pin_failure: PinFailure,
    /// Checks the plan against [`Limits::read`] first. Off only where the system misreports its limits and a check was
    /// made by hand: a plan that does not fit is then killed, not refused.
    pub check: bool,
    /// Called on the committing thread some times a second while a long first touch goes on, and at its end.
    pub progress: Option<Box<dyn Fn(Progress)>>,
    /// How long a first touch is before `progress` hears of it.
    pub progress_after: Duration,
}

impl Default for CommitOptions {
    fn default() -> Self {
        CommitOptions {
            threads: 0,
            huge_pages: true,
            numa: Numa::System,
            pinner: None,
            pin_failure: PinFailure::Refuse,
            check: true,
            progress: None,
            progress_after: Duration::from_secs(2),
        }
    }
}

impl fmt::Debug for CommitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitOptions")
            .field("threads", &self.threads)
            .field("huge_pages", &self.huge_pages)
            .field("numa", &self.numa)
            .field("pinner", &self.pinner.as_ref().map(|p| p.name()))
            .field("pin_failure", &self.pin_failure)
            .field("check", &self.check)
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// Allocates everything. Memory is zero-filled and present afterwards, at a multiple of the page; nothing grows.
    ///
    /// # Errors
    /// Those of [`Plan::check_with`]; [`Error::NoSuchNode`]; what goes wrong with a mapping, a file or a pin. All that
    /// was mapped, pinned or created by then has been given back.
    pub fn commit(&self, options: &CommitOptions) -> Result<Arena, Error> {
        self.check_sizes()?;
        if options.check {
            self.check_with(&Limits::read()?, options)?;
        }
        let topology = match &options.numa {
            Numa::System => Some(Topology::read()?),
            Numa::Given(topology) => Some(topology.clone()),
            Numa::Off => None,
        };
        let topology = topology.filter(Topology::is_numa);
        self.check_nodes(topology.as_ref())?;

        let mut arena = Arena::empty();
        for spec in self.regions() {
            let region = Region::map(spec, options.huge_pages, &mut arena.notices)?;
            arena.regions.push(region);
        }
        touch(&mut arena, options, topology.as_ref());
        if let Some(pinner) = &options.pinner {
            pin(&mut arena, pinner, options.pin_failure)?;
        }
        arena.regions.iter_mut().for_each(Region::keep);
        Ok(arena)
    }

    fn check_nodes(&self, topology: Option<&Topology>) -> Result<(), Error> {
        let Some(topology) = topology else { return Ok(()) };
        match self.regions().iter().find_map(|r| r.node.filter(|&id| topology.node(id).is_none()).map(|id| (r, id))) {
            None => Ok(()),
            Some((Reservation { name, .. }, node)) => {
                let nodes = topology.nodes.iter().map(|n| n.id).collect();
                Err(Error::NoSuchNode { region: name.clone(), node, nodes })
            }
        }
    }
}

/// Places and touches the regions in memory.
fn touch(arena: &mut Arena, options: &CommitOptions, topology: Option<&Topology>) {
    let mut fresh = Vec::new();
    for region in arena.regions.iter().filter(|r| r.spec().backing == Backing::Anonymous) {
        let (base, len) = region.pages();
        if let (Some(_), Some(node), 1..) = (topology, region.spec().node, len) {
            // SAFETY: the pages were mapped by this commit, and nothing has touched them.
            if let Err(e) = unsafe { sys::prefer_node(base, len, node) } {
                arena.notices.push(format!("region `{}`: not placed on node {node} ({e})", region.spec().name));
            }
        }
        // SAFETY: anonymous pages just mapped, so zeros; the arena that owns them has not been handed out, and the
        // vector is gone before it is.
        fresh.push(unsafe { Fresh::new(base, len, region.spec().node) });
    }
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    first_touch(&fresh, threads, topology, options.progress.as_deref(), options.progress_after);
}

fn pin(arena: &mut Arena, pinner: &Arc<dyn Pinner>, on_failure: PinFailure) -> Result<(), Error> {
    let mut pinned_bytes = 0;
    for region in arena.regions.iter_mut().filter(|r| r.spec().pinned) {
        let (name, bytes) = (region.spec().name.clone(), region.pages().1 as u64);
        match (region.pin(pinner), on_failure) {
            (Ok(()), _) => pinned_bytes += bytes,
            (Err(e), PinFailure::Pageable) => arena.notices.push(format!(
                "region `{name}`: host pin failed, its {} stay pageable ({}: {e})",
                fmt_bytes(bytes),
                pinner.name()
            )),
            (Err(source), PinFailure::Refuse) => {
                let memlock_bytes = Limits::read().ok().and_then(|l| l.bound(Resource::Memlock).map(|b| b.limit_bytes));
                let pinner = pinner.name().to_string();
                return Err(Error::Pin { pinner, region: name, bytes, pinned_bytes, memlock_bytes, source });
            }
        }
    }
    Ok(())
}
