//! [`traffic()`]: how many bytes a program moves over each link, counted from its commands.

use crate::{Cmd, Entry, LaneKind, Program, Space};
use megatrain_base::{Command, Rank, fmt_bytes};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes that cross a rank's link to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkTraffic {
    /// Host to device.
    pub h2d_bytes: u64,
    /// Device to host.
    pub d2h_bytes: u64,
}

/// Bytes that a program moves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Per rank that copies.
    pub links: BTreeMap<Rank, LinkTraffic>,
    /// Host memory read by host tasks and copies on host lanes. What links read is in `links`.
    pub host_read_bytes: u64,
    /// Host memory written by host tasks and copies on host lanes.
    pub host_written_bytes: u64,
    /// Read from files by host tasks and copies.
    pub file_read_bytes: u64,
    /// Written to files by host tasks and copies.
    pub file_written_bytes: u64,
    /// Device memory that collectives read or write, summed over ranks.
    pub collective_bytes: u64,
}

impl Traffic {
    /// Host to device, all ranks.
    pub fn h2d_bytes(&self) -> u64 {
        self.links.values().map(|l| l.h2d_bytes).sum()
    }

    /// Device to host, all ranks.
    pub fn d2h_bytes(&self) -> u64 {
        self.links.values().map(|l| l.d2h_bytes).sum()
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, link) in &self.links {
            let (up, down) = (fmt_bytes(link.h2d_bytes), fmt_bytes(link.d2h_bytes));
            writeln!(f, "rank {rank}: {up} to the device, {down} back")?;
        }
        let (read, written) = (fmt_bytes(self.host_read_bytes), fmt_bytes(self.host_written_bytes));
        write!(f, "host tasks: {read} read, {written} written")?;
        if self.file_read_bytes + self.file_written_bytes > 0 {
            let (read, written) = (fmt_bytes(self.file_read_bytes), fmt_bytes(self.file_written_bytes));
            write!(f, "\nfiles: {read} read, {written} written")?;
        }
        if self.collective_bytes > 0 {
            write!(f, "\ncollectives: {}", fmt_bytes(self.collective_bytes))?;
        }
        Ok(())
    }
}

/// Counts a whole program.
pub fn traffic<O: Command, T: Command>(program: &Program<O, T>) -> Traffic {
    traffic_where(program, |_| true)
}

/// Counts the commands that `which` picks, e.g. those of one unit or phase. Spans beyond the contract's regions and
/// commands on lanes it does not have count nothing.
pub fn traffic_where<O: Command, T: Command>(program: &Program<O, T>, which: impl Fn(&Entry<O, T>) -> bool) -> Traffic {
    let mut out = Traffic::default();
    for entry in program.commands.iter().filter(|e| which(e)) {
        let Some(lane) = program.contract.lanes.get(entry.lane.0 as usize) else { continue };
        match (&entry.cmd, lane.kind) {
            (Cmd::Copy { src, .. }, LaneKind::H2d) => {
                out.links.entry(lane.rank).or_default().h2d_bytes += src.len_bytes;
            }
            (Cmd::Copy { src, .. }, LaneKind::D2h) => {
                out.links.entry(lane.rank).or_default().d2h_bytes += src.len_bytes;
            }
            (Cmd::Copy { .. } | Cmd::Host(_), _) => entry.cmd.accesses(&mut |span, access| {
                let (read, written) = match program.contract.regions.get(span.region.0 as usize).map(|r| r.space) {
                    Some(Space::Host) => (&mut out.host_read_bytes, &mut out.host_written_bytes),
                    Some(Space::File) => (&mut out.file_read_bytes, &mut out.file_written_bytes),
                    Some(Space::Device(_)) | None => return,
                };
                *read += if access.reads() { span.len_bytes } else { 0 };
                *written += if access.writes() { span.len_bytes } else { 0 };
            }),
            (Cmd::Collective(c), _) => {
                out.collective_bytes += c.accesses.iter().map(|(span, _)| span.len_bytes).sum::<u64>();
            }
            (Cmd::Launch(_) | Cmd::Record(_) | Cmd::Wait(_), _) => {}
        }
    }
    out
}
