//! Generated programs: what the builder makes is proved, needs each of its waits and records, and gives the same bytes
//! in every legal order.

mod support;

use megatrain_base::Rank;
use megatrain_scheduler::{Cmd, LaneKind, VerifyError, verify};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use support::{Raw, ToyProgram, build, contract, fresh, raws, run, run_in_order};

fn world() -> impl Strategy<Value = (u16, Vec<u16>)> {
    (1u16..4, proptest::collection::vec(any::<u16>(), 1..12))
}

fn without(program: &ToyProgram, index: usize) -> ToyProgram {
    let mut less = program.clone();
    less.commands.remove(index);
    less
}

/// A group, a kind of lane and a member.
type Member = (Arc<[Rank]>, LaneKind, Rank);

/// Indices of each member's collectives.
fn collectives(program: &ToyProgram) -> HashMap<Member, Vec<usize>> {
    let mut out: HashMap<Member, Vec<usize>> = HashMap::new();
    for (index, entry) in program.commands.iter().enumerate() {
        if let Cmd::Collective(c) = &entry.cmd {
            let lane = program.contract.lanes[entry.lane.0 as usize];
            out.entry((c.group.clone(), lane.kind, lane.rank)).or_default().push(index);
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn built_programs_are_proved_and_need_every_wait_and_record((ranks, cuts) in world(), raws in raws(60)) {
        let program = build(&Arc::new(contract(ranks, &cuts)), &raws);
        let proof = verify(&program);
        prop_assert!(proof.is_ok(), "{}", proof.unwrap_err());
        for (index, entry) in program.commands.iter().enumerate() {
            if matches!(entry.cmd, Cmd::Wait(_) | Cmd::Record(_)) {
                let less = without(&program, index);
                prop_assert!(verify(&less).is_err(), "entry {index} {:?} can be left out of {program:#?}", entry.cmd);
            }
        }
    }

    #[test]
    fn collectives_swapped_on_one_rank_are_refused((_, cuts) in world(), raws in raws(80)) {
        let program = build(&Arc::new(contract(3, &cuts)), &raws);
        for turns in collectives(&program).values() {
            for pair in turns.windows(2) {
                let mut swapped = program.clone();
                swapped.commands.swap(pair[0], pair[1]);
                prop_assert!(verify(&swapped).is_err());
                // With each command's memory left in its place, the order alone is wrong.
                let mut renamed = program.clone();
                let tag = |i: usize| match &program.commands[i].cmd {
                    Cmd::Collective(c) => c.tag,
                    _ => unreachable!(),
                };
                for (at, from) in [(pair[0], pair[1]), (pair[1], pair[0])] {
                    if let Cmd::Collective(c) = &mut renamed.commands[at].cmd {
                        c.tag = tag(from);
                    }
                }
                let refused = verify(&renamed);
                let by_order = matches!(refused, Err(VerifyError::CollectiveOrder { .. }));
                prop_assert!(by_order, "{:?}", refused);
            }
        }
    }

    #[test]
    fn every_legal_order_gives_the_bytes_of_program_order(
        (ranks, cuts) in world(),
        parts in proptest::collection::vec(raws(40), 1..4),
        choices in proptest::collection::vec(any::<u16>(), 1..200),
        stubborn in any::<bool>(),
    ) {
        let contract = Arc::new(contract(ranks, &cuts));
        let programs: Vec<ToyProgram> = parts.iter().map(|p: &Vec<Raw>| build(&contract, p)).collect();
        let mut expected = fresh(&contract);
        run_in_order(&programs, &mut expected);
        let mut memory = fresh(&contract);
        let mut step = 0;
        let finished = run(&programs, &mut memory, |ready| {
            step += 1;
            // Stubborn: one lane runs as far as it can, which reorders most.
            let at = if stubborn { step / 16 } else { step };
            usize::from(choices[at % choices.len()]) % ready
        });
        prop_assert!(finished, "lanes wait for one another");
        prop_assert_eq!(memory, expected);
    }
}
