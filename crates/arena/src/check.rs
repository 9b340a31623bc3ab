//! [`Plan::check`]: compares a plan with the limits. Allocates nothing and refuses with need, limit and what to change.

use crate::limits::{Bound, Limits, Resource};
use crate::plan::{Backing, Kind, Plan, page_rounded};
use crate::{CommitOptions, Error, PinFailure, sys};
use megatrain_base::fmt_bytes;
use std::fmt;

/// A limit that is too small for a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What the plan needs of it.
    pub need_bytes: u64,
    /// The limit.
    pub bound: Bound,
    /// The group of the plan that takes most host memory.
    pub largest: Option<(Kind, u64)>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, setting) = match self.bound.resource {
            Resource::Ram => {
                ("host memory", "end other programs, use a machine with more memory, or back a group with files")
            }
            Resource::CgroupV1 => {
                ("host memory", "raise it (docker --memory, Kubernetes resources.limits.memory, Slurm --mem)")
            }
            Resource::CgroupV2 => (
                "host memory",
                "raise it (docker --memory, Kubernetes resources.limits.memory, Slurm --mem, systemd MemoryMax and \
                 MemoryHigh)",
            ),
            Resource::CommitLimit => {
                ("promised memory", "set the sysctl vm.overcommit_memory to 0, or raise vm.overcommit_ratio")
            }
            Resource::AddressSpace => ("address space", "raise it (`ulimit -v unlimited`)"),
            Resource::Memlock => (
                "page-locked memory",
                "raise it (`ulimit -l unlimited`, memlock in /etc/security/limits.conf, docker --ulimit memlock=-1, \
                 systemd LimitMEMLOCK=infinity), or allow pageable memory with PinFailure::Pageable",
            ),
            Resource::Disk => ("file space", "free some, or name files on another file system"),
        };
        let (need, available) = (fmt_bytes(self.need_bytes), fmt_bytes(self.bound.available_bytes()));
        write!(f, "{what}: {need} needed, {available} available; {}\n    {setting}", self.bound)?;
        let memory = !matches!(self.bound.resource, Resource::Memlock | Resource::Disk);
        if let (true, Some((kind, bytes))) = (memory, self.largest) {
            write!(f, "; or plan less: the largest group is {kind} with {}", fmt_bytes(bytes))?;
        }
        Ok(())
    }
}

impl Plan {
    /// Refuses the plan if it cannot fit. Nothing is allocated. Without a pinner nothing is page-locked, so the memlock
    /// limit does not bind; [`Plan::check_with`] takes the pinner into account.
    ///
    /// # Errors
    /// [`Error::TooLarge`], or [`Error::DoesNotFit`] with every limit that is too small.
    pub fn check(&self, limits: &Limits) -> Result<(), Error> {
        self.check_with(limits, &CommitOptions::default())
    }

    /// [`Plan::check`] for a commit with these options.
    ///
    /// # Errors
    /// As [`Plan::check`].
    pub fn check_with(&self, limits: &Limits, options: &CommitOptions) -> Result<(), Error> {
        self.check_sizes()?;
        let (disks, tmpfs_bytes) = self.disks(limits)?;
        let allowed = self.allowances().iter().map(|(_, bytes)| *bytes).sum::<u64>();
        let anonymous = self.sum(|r| r.backing == Backing::Anonymous) + allowed;
        let locks = options.pin_failure == PinFailure::Refuse
            && options.pinner.as_ref().is_some_and(|p| p.counts_against_memlock());
        let needs = limits.bounds.iter().filter_map(|bound| {
            let need_bytes = match bound.resource {
                Resource::Ram | Resource::CgroupV1 | Resource::CgroupV2 | Resource::CommitLimit => {
                    anonymous + tmpfs_bytes
                }
                Resource::AddressSpace => self.sum(|_| true) + allowed,
                Resource::Memlock if locks => self.pinned_bytes(),
                Resource::Memlock | Resource::Disk => return None,
            };
            Some((need_bytes, bound.clone()))
        });
        let largest = Kind::ALL.map(|kind| (kind, self.memory_bytes(kind))).into_iter().max_by_key(|(_, bytes)| *bytes);
        let mut refusals: Vec<Refusal> = needs
            .chain(disks)
            .filter(|(need_bytes, bound)| *need_bytes > bound.available_bytes())
            .map(|(need_bytes, bound)| Refusal { need_bytes, bound, largest: largest.filter(|(_, bytes)| *bytes > 0) })
            .collect();
        refusals.sort_by_key(|r| r.bound.available_bytes());
        if refusals.is_empty() { Ok(()) } else { Err(Error::DoesNotFit { refusals }) }
    }

    /// Needs and free space of every file system that is to hold new files, and the bytes of them that are memory.
    fn disks(&self, limits: &Limits) -> Result<(Vec<(u64, Bound)>, u64), Error> {
        let mut disks: Vec<(u64, u64, Bound)> = Vec::new();
        let mut tmpfs_bytes = 0;
        for region in self.regions() {
            let (Backing::NewFile(path), bytes @ 1..) = (&region.backing, page_rounded(region.bytes)) else { continue };
            let system = sys::file_system(path).map_err(|source| Error::File {
                region: region.name.clone(),
                action: "find the file system of",
                path: path.clone(),
                source,
            })?;
            if system.in_memory {
                tmpfs_bytes += bytes;
            }
            let (device, bound) = match limits.bound(Resource::Disk) {
                Some(bound) => (0, bound.clone()),
                None => {
                    let source = format!("the file system of {}", path.display());
                    let limit_bytes = system.free_bytes;
                    (system.device, Bound { resource: Resource::Disk, limit_bytes, used_bytes: 0, source })
                }
            };
            match disks.iter_mut().find(|(d, ..)| *d == device) {
                Some((_, need_bytes, _)) => *need_bytes += bytes,
                None => disks.push((device, bytes, bound)),
            }
        }
        Ok((disks.into_iter().map(|(_, need_bytes, bound)| (need_bytes, bound)).collect(), tmpfs_bytes))
    }
}
