//! Collectives: the same order on every rank of a group, and no lane that waits for ever.
//!
//! The collectives of one group on lanes of one kind share a communicator, and a rank has one lane of that kind: so
//! lane order is the communicator's order, in one program and from program to program. A member's command completes only when all
//! members have started theirs, so collectives and waits together can hold one another up; without collectives they
//! cannot, because waits point back in program order.

use crate::check::place;
use crate::error::VerifyError;
use crate::{Cmd, Collective, LaneKind, Program};
use megatrain_base::{Command, Rank};
use std::collections::HashMap;

/// One member's command.
#[derive(Clone, Copy)]
struct Turn<'a> {
    index: usize,
    collective: &'a Collective,
}

/// A rank's turns, by group and kind of lane.
type Groups<'a> = Vec<((&'a [Rank], LaneKind), HashMap<Rank, Vec<Turn<'a>>>)>;

/// Checks order, completeness and that everything can run. `record_of_wait` gives each wait's record by index, with
/// indices beyond the program for events pending on entry.
///
/// # Errors
/// The first collective that has no partner, or two commands that wait for one another.
pub(crate) fn check<O: Command, T: Command>(
    program: &Program<O, T>,
    record_of_wait: &[u32],
) -> Result<(), VerifyError> {
    let groups = collect(program)?;
    if groups.is_empty() {
        return Ok(());
    }
    // Per collective command: the number of its meeting, and how many take part in each.
    let mut meeting = vec![usize::MAX; program.commands.len()];
    let mut members = Vec::new();
    let at = |turn: &Turn<'_>| place(&program.contract, turn.index, &program.commands[turn.index]);
    for ((group, _), ranks) in &groups {
        let most = group.iter().filter_map(|r| ranks.get(r)).max_by_key(|turns| turns.len());
        for (number, first) in most.into_iter().flatten().enumerate() {
            for rank in *group {
                let Some(turn) = ranks.get(rank).and_then(|turns| turns.get(number)) else {
                    let tag = first.collective.tag;
                    return Err(VerifyError::CollectiveMissing { place: at(first), tag, rank: *rank });
                };
                let (a, b) = (first.collective, turn.collective);
                if (a.tag, a.kind) != (b.tag, b.kind) {
                    return Err(VerifyError::CollectiveOrder {
                        turn: number,
                        first: at(first),
                        first_tag: a.tag,
                        second: at(turn),
                        second_tag: b.tag,
                    });
                }
                meeting[turn.index] = members.len();
            }
            members.push(group.len());
        }
    }
    run(program, record_of_wait, &meeting, members)
}

/// Sorts collectives by group, kind of lane and rank.
fn collect<O: Command, T: Command>(program: &Program<O, T>) -> Result<Groups<'_>, VerifyError> {
    let mut groups: Groups<'_> = Vec::new();
    let mut number: HashMap<(&[Rank], LaneKind), usize> = HashMap::new();
    let mut tags: HashMap<(usize, Rank, u32), usize> = HashMap::new();
    let at = |index: usize| place(&program.contract, index, &program.commands[index]);
    for (index, entry) in program.commands.iter().enumerate() {
        let Cmd::Collective(collective) = &entry.cmd else { continue };
        let lane = program.contract.lanes[entry.lane.0 as usize];
        let key = (&*collective.group, lane.kind);
        let group = *number.entry(key).or_insert_with(|| {
            groups.push((key, HashMap::new()));
            groups.len() - 1
        });
        if let Some(first) = tags.insert((group, lane.rank, collective.tag), index) {
            return Err(VerifyError::TagTwice { tag: collective.tag, first: at(first), second: at(index) });
        }
        if program.contract.lanes.iter().filter(|other| **other == lane).count() > 1 {
            return Err(VerifyError::CollectiveLanes { place: at(index), lane });
        }
        groups[group].1.entry(lane.rank).or_default().push(Turn { index, collective });
    }
    Ok(groups)
}

/// Runs all lanes as far as they go; order does not matter, since running a command never holds up another.
fn run<O: Command, T: Command>(
    program: &Program<O, T>,
    record_of_wait: &[u32],
    meeting: &[usize],
    mut missing: Vec<usize>,
) -> Result<(), VerifyError> {
    let mut lanes: Vec<Vec<usize>> = vec![Vec::new(); program.contract.lanes.len()];
    for (index, entry) in program.commands.iter().enumerate() {
        lanes[entry.lane.0 as usize].push(index);
    }
    let mut next = vec![0; lanes.len()];
    let mut arrived = vec![false; program.commands.len()];
    let mut done = vec![false; program.commands.len()];
    let mut moved = true;
    while moved {
        moved = false;
        for (lane, next) in lanes.iter().zip(&mut next) {
            while let Some(&index) = lane.get(*next) {
                let free = match &program.commands[index].cmd {
                    Cmd::Wait(_) => done.get(record_of_wait[index] as usize).copied().unwrap_or(true),
                    Cmd::Collective(_) => {
                        let missing = &mut missing[meeting[index]];
                        if !std::mem::replace(&mut arrived[index], true) {
                            *missing -= 1;
                            moved = true;
                        }
                        *missing == 0
                    }
                    _ => true,
                };
                if !free {
                    break;
                }
                done[index] = true;
                *next += 1;
                moved = true;
            }
        }
    }
    let mut stuck = lanes.iter().zip(&next).filter_map(|(lane, next)| lane.get(*next).copied());
    let Some(first) = stuck.next() else { return Ok(()) };
    // A lane never waits for itself, so a second one is stuck, too.
    let second = stuck.next().unwrap_or(first);
    let at = |index: usize| place(&program.contract, index, &program.commands[index]);
    Err(VerifyError::Deadlock { first: at(first), second: at(second) })
}
