//! Which NUMA nodes there are and which CPUs are near them, from sysfs. A machine without that part of sysfs is one
//! node.

use crate::Error;
use crate::limits::read_optional;
use std::path::Path;

/// Larger CPU and node numbers than any kernel is built for (NR_CPUS is at most 8192) are taken for nonsense.
const MAX_ID: usize = 1 << 16;

/// A node: memory and the CPUs near it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number.
    pub id: usize,
    /// The CPUs near it; none for a node that is memory only.
    pub cpus: Vec<usize>,
}

/// The nodes that are online, by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// At least one.
    pub nodes: Vec<Node>,
}

impl Topology {
    /// Reads `/sys/devices/system/node`.
    ///
    /// # Errors
    /// [`Error::System`] if it is there but makes no sense.
    pub fn read() -> Result<Topology, Error> {
        Topology::read_at(Path::new("/"))
    }

    /// Reads `sys/devices/system/node` under `root`.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_at(root: &Path) -> Result<Topology, Error> {
        let list = |path: String| -> Result<Vec<usize>, Error> {
            let text = read_optional(root, &path)?.unwrap_or_default();
            parse_list(&text).map_err(|reason| Error::System { path: path.into(), reason })
        };
        let mut nodes = Vec::new();
        for id in list("/sys/devices/system/node/online".into())? {
            nodes.push(Node { id, cpus: list(format!("/sys/devices/system/node/node{id}/cpulist"))? });
        }
        if nodes.is_empty() {
            nodes.push(Node { id: 0, cpus: Vec::new() });
        }
        Ok(Topology { nodes })
    }

    /// Whether placement makes a difference.
    pub fn is_numa(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The node with this number.
    pub fn node(&self, id: usize) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }
}

/// Reads the kernel's list format, `0-3,8,10-11`: ascending numbers and ranges; empty for none.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_list(text: &str) -> Result<Vec<usize>, String> {
    let text = text.trim();
    let mut out: Vec<usize> = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
        match range.filter(|&(a, b)| a <= b && b < MAX_ID && out.last().is_none_or(|&before| before < a)) {
            Some((a, b)) => out.extend(a..=b),
            None => return Err(format!("`{part}` in `{text}`: expected ascending numbers and ranges like 0-3,8")),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join("sys/devices/system/node").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn lists_read_and_nonsense_does_not() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Ok(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("0\n"), Ok(vec![0]));
        assert_eq!(parse_list("\n"), Ok(vec![]));
        for text in ["3-0", "a", "0,", "0,,1", "-1", "0-", "2,1", "0-3,3", "0-4294967295", "0-3:1/2"] {
            assert!(parse_list(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn two_sockets_and_a_memory_only_node() {
        let dir = tree(&[
            ("online", "0-1,4\n"),
            ("node0/cpulist", "0-1,4-5\n"),
            ("node1/cpulist", "2-3,6-7\n"),
            ("node4/cpulist", "\n"),
        ]);
        let topology = Topology::read_at(dir.path()).unwrap();
        assert!(topology.is_numa());
        assert_eq!(topology.node(0).unwrap().cpus, [0, 1, 4, 5]);
        assert_eq!(topology.node(1).unwrap().cpus, [2, 3, 6, 7]);
        assert_eq!(topology.node(4).unwrap().cpus, [0; 0]);
        assert_eq!(topology.node(2), None);
    }

    #[test]
    fn no_sysfs_is_one_node_and_so_may_this_machine_be() {
        let dir = tempfile::tempdir().unwrap();
        let alone = Topology::read_at(dir.path()).unwrap();
        assert_eq!(alone, Topology { nodes: vec![Node { id: 0, cpus: vec![] }] });
        assert!(!alone.is_numa());
        assert!(!Topology::read().unwrap().nodes.is_empty());
    }

    #[test]
    fn a_broken_list_names_the_file() {
        let dir = tree(&[("online", "0-1\n"), ("node0/cpulist", "0-1\n"), ("node1/cpulist", "2-x\n")]);
        let error = Topology::read_at(dir.path()).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot make sense of `/sys/devices/system/node/node1/cpulist`: `2-x` in `2-x`: expected ascending \
             numbers and ranges like 0-3,8"
        );
    }
}
