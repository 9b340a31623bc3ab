//! The tightest memory limit among the cgroups around this process, version 1 and 2.
//!
//! A limit anywhere between the process's own group and the mount binds, so every level is read. Which group is ours
//! comes from `/proc/self/cgroup`, where it is mounted from `/proc/self/mountinfo`; in a container the group's path may
//! be one of the host's, and then the mount point itself is the nearest that can be seen.

use crate::Error;
use crate::limits::{Bound, Resource, Table, read_optional};
use std::path::{Component, Path, PathBuf};

/// A version 1 group without a limit shows the largest page count; anything this large is no limit.
const UNLIMITED_V1: u64 = 1 << 62;

struct Mount {
    version: Resource,
    root: PathBuf,
    point: PathBuf,
}

/// The level with the least memory left.
pub(crate) fn tightest(root: &Path) -> Result<Option<Bound>, Error> {
    let groups = Table::read(root, "/proc/self/cgroup")?;
    let mounts = mounts(&Table::read(root, "/proc/self/mountinfo")?);
    let mut tightest: Option<Bound> = None;
    for line in groups.text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(groups.nonsense(format!("`{line}` is not `id:controllers:path`")));
        };
        let version = match (id, controllers) {
            ("0", "") => Resource::CgroupV2,
            _ if controllers.split(',').any(|c| c == "memory") => Resource::CgroupV1,
            _ => continue,
        };
        let Some(mount) = mounts.iter().find(|m| m.version == version) else { continue };
        for dir in levels(mount, Path::new(group)) {
            for bound in level(root, version, &dir)? {
                if tightest.as_ref().is_none_or(|t| bound.available_bytes() < t.available_bytes()) {
                    tightest = Some(bound);
                }
            }
        }
    }
    Ok(tightest)
}

/// The directories from the process's group up to the mount point.
fn levels(mount: &Mount, group: &Path) -> Vec<PathBuf> {
    let below = group.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let visible = below.components().all(|c| matches!(c, Component::Normal(_)));
    let leaf = if visible { mount.point.join(below) } else { mount.point.clone() };
    leaf.ancestors().take_while(|dir| dir.starts_with(&mount.point)).map(Path::to_path_buf).collect()
}

/// The limits that one directory sets.
fn level(root: &Path, version: Resource, dir: &Path) -> Result<Vec<Bound>, Error> {
    let path = |file: &str| dir.join(file).to_string_lossy().into_owned();
    let number = |file: &str| -> Result<Option<u64>, Error> {
        let Some(text) = read_optional(root, &path(file))? else { return Ok(None) };
        match text.trim() {
            "max" => Ok(None),
            word => word.parse().map(Some).map_err(|_| Error::System {
                path: path(file).into(),
                reason: format!("`{word}` is neither `max` nor a number of bytes"),
            }),
        }
    };
    // Pages of the file cache are charged to the group but given back under pressure, so they are not in use; memory
    // in tmpfs and shared memory is not on these lists.
    let (limits, usage, cache): (&[&str], _, _) = match version {
        Resource::CgroupV1 => {
            (&["memory.limit_in_bytes"], "memory.usage_in_bytes", ["total_inactive_file", "total_active_file"])
        }
        _ => (&["memory.max", "memory.high"], "memory.current", ["inactive_file", "active_file"]),
    };
    let mut bounds = Vec::new();
    for &file in limits {
        let Some(limit_bytes) = number(file)?.filter(|&limit| limit < UNLIMITED_V1) else { continue };
        let stat = Table::read(root, &path("memory.stat"))?;
        let mut cache_bytes = 0u64;
        for key in cache {
            cache_bytes = cache_bytes.saturating_add(stat.count(key)?.unwrap_or(0));
        }
        let used_bytes = number(usage)?.unwrap_or(0).saturating_sub(cache_bytes);
        bounds.push(Bound { resource: version, limit_bytes, used_bytes, source: path(file) });
    }
    Ok(bounds)
}

/// The mounts that hold memory limits: `id parent device root point options [tags] - type source super-options`.
fn mounts(mountinfo: &Table) -> Vec<Mount> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (unescape(left.next()?), unescape(left.next()?));
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let version = match kind {
            "cgroup2" => Resource::CgroupV2,
            "cgroup" if options.split(',').any(|o| o == "memory") => Resource::CgroupV1,
            _ => return None,
        };
        Some(Mount { version, root: root.into(), point: point.into() })
    };
    mountinfo.text.lines().filter_map(parse).collect()
}

/// Undoes the octal escapes of `/proc/self/mountinfo` (space, tab, newline and backslash).
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_string(), |text, (code, character)| text.replace(code, character))
}
