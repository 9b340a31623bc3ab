//! [`Limits`]: how much the machine, the container and the user's limits allow. Plain data, read from `/proc` and
//! cgroups, or made by hand.

use crate::{Error, cgroup};
use megatrain_base::fmt_bytes;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Something that there is only so much of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Resource {
    /// Memory that the machine can give without swapping.
    Ram,
    /// The memory limit of a version 1 cgroup around this process.
    CgroupV1,
    /// The memory limit of a version 2 cgroup around this process.
    CgroupV2,
    /// What the kernel may promise in all, where overcommitting is off.
    CommitLimit,
    /// This process's address space (RLIMIT_AS).
    AddressSpace,
    /// Memory that this process may page-lock (RLIMIT_MEMLOCK).
    Memlock,
    /// Space for new files.
    Disk,
}

/// One limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Of what.
    pub resource: Resource,
    /// The limit.
    pub limit_bytes: u64,
    /// How much of it is taken and would not be given back under pressure.
    pub used_bytes: u64,
    /// Where the limit was read.
    pub source: String,
}

impl Bound {
    /// What is left.
    pub fn available_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = match self.resource {
            Resource::Ram => "the machine's memory",
            Resource::CgroupV1 => "the cgroup v1 limit",
            Resource::CgroupV2 => "the cgroup v2 limit",
            Resource::CommitLimit => "the commit limit",
            Resource::AddressSpace => "the address space limit",
            Resource::Memlock => "the memlock limit",
            Resource::Disk => "the file system's free space",
        };
        write!(f, "{limit} is {}", fmt_bytes(self.limit_bytes))?;
        if self.used_bytes > 0 {
            write!(f, ", {} of it in use", fmt_bytes(self.used_bytes))?;
        }
        write!(f, " ({})", self.source)
    }
}

/// All limits that a plan is checked against. A limit that is absent does not bind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// The limits, at most one for each resource. [`Resource::Disk`] here binds the files of all regions together;
    /// without it, the check asks the file system of each new file.
    pub bounds: Vec<Bound>,
}

impl Limits {
    /// Reads the limits of this process.
    ///
    /// # Errors
    /// [`Error::System`] if a file is there but makes no sense. Files that are absent or may not be read bind nothing.
    pub fn read() -> Result<Limits, Error> {
        Limits::read_at(Path::new("/"))
    }

    /// Reads the limits from a tree that looks like `/` (`root/proc/meminfo`, `root/sys/fs/cgroup`, ...).
    ///
    /// # Errors
    /// As [`Limits::read`].
    pub fn read_at(root: &Path) -> Result<Limits, Error> {
        let read = |path: &str| Table::read(root, path);
        let (meminfo, status, limits) =
            (read("/proc/meminfo")?, read("/proc/self/status")?, read("/proc/self/limits")?);
        let mut bounds = Vec::new();
        if let (Some(total), Some(available)) = (meminfo.kib("MemTotal:")?, meminfo.kib("MemAvailable:")?) {
            bounds.push(Bound {
                resource: Resource::Ram,
                limit_bytes: total,
                used_bytes: total.saturating_sub(available),
                source: meminfo.path.clone(),
            });
        }
        bounds.extend(cgroup::tightest(root)?);
        // Mode 2 is the only one in which the commit limit is enforced (proc_sys_vm(5)).
        if read("/proc/sys/vm/overcommit_memory")?.text.trim() == "2"
            && let (Some(limit_bytes), Some(used_bytes)) = (meminfo.kib("CommitLimit:")?, meminfo.kib("Committed_AS:")?)
        {
            let source = meminfo.path.clone();
            bounds.push(Bound { resource: Resource::CommitLimit, limit_bytes, used_bytes, source });
        }
        if let Some(limit_bytes) = limits.soft_limit("Max address space")? {
            let used_bytes = status.kib("VmSize:")?.unwrap_or(0);
            let source = limits.path.clone();
            bounds.push(Bound { resource: Resource::AddressSpace, limit_bytes, used_bytes, source });
        }
        if let Some(limit_bytes) = limits.soft_limit("Max locked memory")?
            && !may_lock_anything(&status, &read("/proc/self/uid_map")?)
        {
            let used_bytes = status.kib("VmLck:")?.unwrap_or(0);
            let source = limits.path.clone();
            bounds.push(Bound { resource: Resource::Memlock, limit_bytes, used_bytes, source });
        }
        Ok(Limits { bounds })
    }

    /// The limit of one resource, if it binds.
    pub fn bound(&self, resource: Resource) -> Option<&Bound> {
        self.bounds.iter().find(|b| b.resource == resource)
    }
}

/// Whether RLIMIT_MEMLOCK does not apply: CAP_IPC_LOCK (bit 14) held in the initial user namespace. Inside another one
/// (a rootless container) the capability shows but does not count.
fn may_lock_anything(status: &Table, uid_map: &Table) -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let effective = status.line("CapEff:").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let initial = uid_map.text.split_whitespace().eq(["0", "0", "4294967295"]);
    effective >> CAP_IPC_LOCK & 1 == 1 && initial
}

/// A text file of the system, with the path that errors and sources name.
pub(crate) struct Table {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Table {
    /// Reads `path` under `root`; empty if it is absent or may not be read.
    pub(crate) fn read(root: &Path, path: &str) -> Result<Table, Error> {
        let text = read_optional(root, path)?.unwrap_or_default();
        Ok(Table { path: path.to_string(), text })
    }

    fn line(&self, key: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(key))
    }

    /// The value of `key value kB`, in bytes.
    fn kib(&self, key: &str) -> Result<Option<u64>, Error> {
        let Some(rest) = self.line(key) else { return Ok(None) };
        let number = rest.trim().strip_suffix("kB").map(str::trim).and_then(|n| n.parse::<u64>().ok());
        match number.and_then(|kib| kib.checked_mul(1024)) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(self.nonsense(format!("`{key}{rest}` is not a number of kB"))),
        }
    }

    /// The value of `key value` in a file of such lines, where the key is a whole word.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u64>, Error> {
        let words = self.text.lines().filter_map(|line| line.split_once(' '));
        let Some((_, value)) = words.into_iter().find(|(word, _)| *word == key) else { return Ok(None) };
        let number = value.trim().parse().map_err(|_| self.nonsense(format!("`{key} {value}` is not a number")))?;
        Ok(Some(number))
    }

    /// The first number behind `name` in `/proc/self/limits`; `None` where it says `unlimited`.
    fn soft_limit(&self, name: &str) -> Result<Option<u64>, Error> {
        let Some(rest) = self.line(name) else { return Ok(None) };
        match rest.split_whitespace().next() {
            Some("unlimited") => Ok(None),
            word => match word.and_then(|w| w.parse().ok()) {
                Some(bytes) => Ok(Some(bytes)),
                None => Err(self.nonsense(format!("`{name}{rest}` has no soft limit"))),
            },
        }
    }

    pub(crate) fn nonsense(&self, reason: String) -> Error {
        Error::System { path: self.path.clone().into(), reason }
    }
}

/// The text of `path` (absolute, as this process sees it) under `root`; `None` where it is absent or off limits.
pub(crate) fn read_optional(root: &Path, path: &str) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(under(root, path)) {
        Ok(text) => Ok(Some(text)),
        Err(e) => match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(Error::System { path: path.into(), reason: e.to_string() }),
        },
    }
}

/// `path` with its leading slash taken as `root`.
pub(crate) fn under(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
