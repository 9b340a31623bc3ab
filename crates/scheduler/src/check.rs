//! What can be said of a contract or a command alone, without any order: ranges, lane kinds, spaces.

use crate::error::{Bytes, CommandFault, ContractError, Place};
use crate::{Cmd, Contract, Entry, Lane, LaneId, LaneKind, Space};
use megatrain_base::{Access, Command, Span};

/// Names bytes for an error.
pub(crate) fn bytes(contract: &Contract, span: Span) -> Bytes {
    let region = contract.regions.get(span.region.0 as usize).map_or_else(String::new, |r| r.name.clone());
    Bytes { region, span }
}

/// Names a command for an error.
pub(crate) fn place<O: Command, T: Command>(contract: &Contract, index: usize, entry: &Entry<O, T>) -> Box<Place> {
    let lane = contract.lanes.get(entry.lane.0 as usize).copied();
    Box::new(Place { index, lane, label: entry.label, name: entry.cmd.name() })
}

/// Checks that guards lie inside their regions and share no byte.
///
/// # Errors
/// The first guard that does not.
pub(crate) fn contract(contract: &Contract) -> Result<(), ContractError> {
    let mut guards = Vec::new();
    for boundary in &contract.boundaries {
        for &span in boundary.guards.iter().filter(|g| g.len_bytes > 0) {
            let name = || boundary.name.clone();
            let Some(region) = contract.regions.get(span.region.0 as usize) else {
                let regions = contract.regions.len();
                return Err(ContractError::UnknownRegion { boundary: name(), region: span.region, regions });
            };
            if !inside(span, region.len_bytes) {
                let (bytes, len_bytes) = (bytes(contract, span), region.len_bytes);
                return Err(ContractError::OutOfRange { boundary: name(), bytes, len_bytes });
            }
            guards.push((span, &boundary.name));
        }
    }
    guards.sort_by_key(|(span, _)| (span.region, span.offset_bytes));
    for pair in guards.windows(2) {
        let [(a, first), (b, second)] = pair else { continue };
        if let Some(shared) = shared(a, b) {
            let (first, second) = ((*first).clone(), (*second).clone());
            return Err(ContractError::GuardedTwice { first, second, bytes: bytes(contract, shared) });
        }
    }
    Ok(())
}

/// Checks one command and leaves its non-empty accesses in `spans`.
///
/// # Errors
/// The first fault.
pub(crate) fn command<O: Command, T: Command>(
    contract: &Contract,
    lane: LaneId,
    cmd: &Cmd<O, T>,
    spans: &mut Vec<(Span, Access)>,
) -> Result<(), CommandFault> {
    let Some(&home) = contract.lanes.get(lane.0 as usize) else {
        return Err(CommandFault::UnknownLane { lane: lane.0, lanes: contract.lanes.len() });
    };
    spans.clear();
    cmd.accesses(&mut |span, access| spans.push((span, access)));
    for &(span, _) in spans.iter() {
        let Some(region) = contract.regions.get(span.region.0 as usize) else {
            return Err(CommandFault::UnknownRegion { region: span.region, regions: contract.regions.len() });
        };
        if !inside(span, region.len_bytes) {
            return Err(CommandFault::OutOfRange { bytes: bytes(contract, span), len_bytes: region.len_bytes });
        }
    }
    spans.retain(|(span, _)| span.len_bytes > 0);
    match cmd {
        Cmd::Copy { src, dst } => copy(contract, home, *src, *dst)?,
        Cmd::Launch(_) => {
            let what = "an op";
            if home.kind != LaneKind::Compute {
                return Err(CommandFault::WrongLane { what, kind: home.kind, allowed: "compute lanes" });
            }
            on_device(contract, home, what, spans)?;
        }
        Cmd::Host(_) => {
            let what = "a host task";
            if !matches!(home.kind, LaneKind::Update | LaneKind::Data | LaneKind::Io) {
                return Err(CommandFault::WrongLane { what, kind: home.kind, allowed: "update, data and io lanes" });
            }
            reach(contract, home, what, spans, |space| !matches!(space, Space::Device(_)))?;
        }
        Cmd::Collective(c) => {
            let what = "a collective";
            if !matches!(home.kind, LaneKind::H2d | LaneKind::Compute | LaneKind::D2h) {
                return Err(CommandFault::WrongLane { what, kind: home.kind, allowed: "h2d, compute and d2h lanes" });
            }
            if !c.group.contains(&home.rank) {
                return Err(CommandFault::NotInGroup { tag: c.tag, rank: home.rank });
            }
            for (i, rank) in c.group.iter().enumerate() {
                if c.group[..i].contains(rank) {
                    return Err(CommandFault::RepeatedMember { tag: c.tag, rank: *rank });
                }
            }
            on_device(contract, home, what, spans)?;
        }
        Cmd::Record(_) | Cmd::Wait(_) => {}
    }
    for (i, (a, a_access)) in spans.iter().enumerate() {
        for (b, b_access) in &spans[i + 1..] {
            if a_access.conflicts(*b_access)
                && let Some(shared) = shared(a, b)
            {
                return Err(CommandFault::SelfOverlap { bytes: bytes(contract, shared) });
            }
        }
    }
    Ok(())
}

fn copy(contract: &Contract, lane: Lane, src: Span, dst: Span) -> Result<(), CommandFault> {
    if src.len_bytes != dst.len_bytes {
        return Err(CommandFault::UnequalCopy { src_bytes: src.len_bytes, dst_bytes: dst.len_bytes });
    }
    let space = |span: Span| contract.regions[span.region.0 as usize].space;
    let (from, to, own) = (space(src), space(dst), Space::Device(lane.rank));
    let (fits, allowed) = match lane.kind {
        LaneKind::H2d => (from == Space::Host && to == own, "from the host to the device of its rank"),
        LaneKind::D2h => (from == own && to == Space::Host, "from the device of its rank to the host"),
        LaneKind::Compute => (from == own && to == own, "within the device of its rank"),
        LaneKind::Update | LaneKind::Data => (from == Space::Host && to == Space::Host, "within host memory"),
        LaneKind::Io => {
            (matches!((from, to), (Space::Host, Space::File) | (Space::File, Space::Host)), "between host and file")
        }
    };
    if fits { Ok(()) } else { Err(CommandFault::WrongDirection { from, to, kind: lane.kind, allowed }) }
}

fn on_device(
    contract: &Contract,
    lane: Lane,
    what: &'static str,
    spans: &[(Span, Access)],
) -> Result<(), CommandFault> {
    reach(contract, lane, what, spans, |space| space == Space::Device(lane.rank))
}

fn reach(
    contract: &Contract,
    lane: Lane,
    what: &'static str,
    spans: &[(Span, Access)],
    can: impl Fn(Space) -> bool,
) -> Result<(), CommandFault> {
    for &(span, _) in spans {
        let space = contract.regions[span.region.0 as usize].space;
        if !can(space) {
            return Err(CommandFault::WrongSpace { what, rank: lane.rank, bytes: bytes(contract, span), space });
        }
    }
    Ok(())
}

fn inside(span: Span, len_bytes: u64) -> bool {
    span.offset_bytes.checked_add(span.len_bytes).is_some_and(|end| end <= len_bytes)
}

fn shared(a: &Span, b: &Span) -> Option<Span> {
    let start = a.offset_bytes.max(b.offset_bytes);
    let end = a.end_bytes().min(b.end_bytes());
    a.overlaps(b).then(|| Span::new(a.region, start, end - start))
}
