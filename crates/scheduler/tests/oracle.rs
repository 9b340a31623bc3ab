//! The verifier against a plain judge: every pair of accesses of every byte, order by search through the graph.

mod support;

use megatrain_base::Access;
use megatrain_scheduler::{Cmd, verify};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use support::{ToyProgram, build, contract, raws};

/// Whether a program without collectives keeps all rules, in quadratic time and without clocks or intervals.
fn sound(program: &ToyProgram) -> bool {
    let contract = &program.contract;
    let boundaries = contract.boundaries.len();
    // Behind what: earlier entries by index, boundary events on entry by `n + event`.
    let n = program.commands.len();
    let mut behind: Vec<BTreeSet<usize>> = Vec::new();
    let mut last_of_lane = vec![None; contract.lanes.len()];
    let mut record_of = vec![None; program.events as usize];
    let mut twice = false;
    for (index, entry) in program.commands.iter().enumerate() {
        let mut before = BTreeSet::new();
        let mut follow = |other: usize, behind: &Vec<BTreeSet<usize>>| {
            before.extend(behind[other].iter().copied());
            before.insert(other);
        };
        if let Some(last) = last_of_lane[entry.lane.0 as usize] {
            follow(last, &behind);
        }
        match entry.cmd {
            Cmd::Record(event) => twice |= record_of[event.0 as usize].replace(index).is_some(),
            Cmd::Wait(event) => match record_of[event.0 as usize] {
                Some(record) => follow(record, &behind),
                None if (event.0 as usize) < boundaries => drop(before.insert(n + event.0 as usize)),
                None => return false,
            },
            _ => {}
        }
        last_of_lane[entry.lane.0 as usize] = Some(index);
        behind.push(before);
    }
    if twice || record_of[boundaries..].iter().any(Option::is_none) {
        return false;
    }
    for (boundary, spec) in contract.boundaries.iter().enumerate() {
        let mut touched = false;
        for guard in &spec.guards {
            for byte in guard.offset_bytes..guard.end_bytes() {
                let mut accesses: Vec<(usize, Access)> = Vec::new();
                for (index, entry) in program.commands.iter().enumerate() {
                    entry.cmd.accesses(&mut |span, access| {
                        if span.region == guard.region && (span.offset_bytes..span.end_bytes()).contains(&byte) {
                            accesses.push((index, access));
                        }
                    });
                }
                let mut defined = contract.regions[guard.region.0 as usize].defined_at_entry;
                for (i, &(later, access)) in accesses.iter().enumerate() {
                    touched = true;
                    let unordered = |&(earlier, other): &(usize, Access)| {
                        access.conflicts(other) && !behind[later].contains(&earlier)
                    };
                    if accesses[..i].iter().any(unordered)
                        || access.reads() && !defined
                        || !behind[later].contains(&(n + boundary))
                        || record_of[boundary].is_none_or(|record| !behind[record].contains(&later))
                    {
                        return false;
                    }
                    defined |= access.writes();
                }
            }
        }
        if record_of[boundary].is_some() && !touched {
            return false;
        }
    }
    true
}

/// Drops an entry, swaps two neighbours, or moves a wait or record to another lane.
fn mutate(program: &mut ToyProgram, (kind, at): (u8, u16)) {
    let commands = &mut program.commands;
    if commands.len() < 2 {
        return;
    }
    let at = usize::from(at) % commands.len();
    let next = (at + 1) % commands.len();
    match kind % 3 {
        0 => drop(commands.remove(at)),
        1 => commands.swap(at, next),
        _ if matches!(commands[at].cmd, Cmd::Wait(_) | Cmd::Record(_)) => commands[at].lane = commands[next].lane,
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verifier_and_judge_agree_on_mutated_programs(
        cuts in proptest::collection::vec(any::<u16>(), 1..8),
        raws in raws(16),
        mutations in proptest::collection::vec(any::<(u8, u16)>(), 0..3),
    ) {
        let mut program = build(&Arc::new(contract(1, &cuts)), &raws);
        mutations.into_iter().for_each(|m| mutate(&mut program, m));
        let verdict = verify(&program);
        prop_assert_eq!(sound(&program), verdict.is_ok(), "{:?} on {}", verdict, program);
    }
}
