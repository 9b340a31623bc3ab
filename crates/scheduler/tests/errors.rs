//! What is refused, by whom, and in which words.

mod support;

use megatrain_base::{Access, Rank, RegionId, Span};
use megatrain_scheduler::{
    BuildError, Builder, Cmd, Collective, Contract, Entry, EventId, LaneId, LaneKind, Program, Space, verify,
};
use std::sync::Arc;
use support::{Toy, ToyProgram, rank};

const HOST: RegionId = RegionId(0);
const DEVICE: RegionId = RegionId(1);
const OTHER: RegionId = RegionId(2);
const LOOSE: RegionId = RegionId(3);
const FILE: RegionId = RegionId(4);
const H2D: LaneId = LaneId(0);
const COMPUTE: LaneId = LaneId(1);
const D2H: LaneId = LaneId(2);
const UPDATE: LaneId = LaneId(3);
const IO: LaneId = LaneId(4);
const COMPUTE1: LaneId = LaneId(5);

fn at(region: RegionId, start: u64, end: u64) -> Span {
    Span::new(region, start, end - start)
}

fn contract() -> Contract {
    let mut c = Contract::default();
    c.region("weights", Space::Host, 64, true);
    c.region("slot", Space::Device(rank(0)), 64, false);
    c.region("slot of 1", Space::Device(rank(1)), 64, false);
    c.region("loose", Space::Device(rank(0)), 64, true);
    c.region("checkpoint", Space::File, 64, true);
    for kind in [LaneKind::H2d, LaneKind::Compute, LaneKind::D2h, LaneKind::Update, LaneKind::Io] {
        c.lane(rank(0), kind);
    }
    c.lane(rank(1), LaneKind::Compute);
    c.boundary("updated", vec![at(HOST, 0, 64)]);
    c.boundary("slot_free", vec![at(DEVICE, 0, 64)]);
    c.boundary("others", vec![at(OTHER, 0, 64), at(FILE, 0, 64)]);
    c
}

fn toy(spans: &[(Span, Access)]) -> Toy {
    Toy { seed: 1, spans: spans.to_vec() }
}

fn collective(group: &[Rank], tag: u32, span: Span) -> Collective {
    Collective { kind: "all_reduce", group: group.into(), tag, accesses: vec![(span, Access::Write)] }
}

fn built(add: impl FnOnce(&mut Builder<Toy, Toy>)) -> Result<ToyProgram, BuildError> {
    let mut builder = Builder::new("test", Arc::new(contract()));
    add(&mut builder);
    builder.finish()
}

/// A weight is copied up, used, copied back and updated.
fn round_trip() -> ToyProgram {
    built(|b| {
        b.copy(H2D, at(HOST, 0, 32), at(DEVICE, 0, 32));
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 32), Access::Read), (at(DEVICE, 32, 64), Access::Write)]));
        b.copy(D2H, at(DEVICE, 32, 64), at(HOST, 32, 64));
        b.host(UPDATE, toy(&[(at(HOST, 32, 64), Access::Read), (at(HOST, 0, 32), Access::Update)]));
    })
    .unwrap()
}

#[test]
fn wrong_commands_are_refused_by_builder_and_verifier_in_the_same_words() {
    use Access::{Read, Update, Write};
    let copy = |src, dst| Cmd::Copy { src, dst };
    let (r0, r1) = (rank(0), rank(1));
    let cases: Vec<(LaneId, Cmd<Toy, Toy>, &str)> = vec![
        (LaneId(9), Cmd::Launch(toy(&[])), "lane 9 does not exist; the contract has 6"),
        (COMPUTE, Cmd::Launch(toy(&[(at(RegionId(7), 0, 1), Read)])), "touches r7, but the contract has 5 regions"),
        (H2D, copy(at(HOST, 0, 65), at(DEVICE, 0, 65)), "touches bytes 0..65 of `weights`, which has 64 bytes"),
        (
            COMPUTE,
            Cmd::Launch(toy(&[(Span::new(DEVICE, u64::MAX - 1, 1), Read)])),
            "touches bytes 18446744073709551614..18446744073709551615 of `slot`, which has 64 bytes",
        ),
        (H2D, copy(at(HOST, 0, 8), at(DEVICE, 0, 9)), "copies 8 bytes to a range of 9 bytes"),
        (
            H2D,
            copy(at(DEVICE, 0, 8), at(HOST, 0, 8)),
            "copies from device memory of rank 0.0 to host memory on a lane of kind h2d, which copies from the host to the device of its rank",
        ),
        (
            H2D,
            copy(at(HOST, 0, 8), at(OTHER, 0, 8)),
            "copies from host memory to device memory of rank 0.1 on a lane of kind h2d, which copies from the host to the device of its rank",
        ),
        (
            IO,
            copy(at(HOST, 0, 8), at(HOST, 8, 16)),
            "copies from host memory to host memory on a lane of kind io, which copies between host and file",
        ),
        (H2D, Cmd::Launch(toy(&[])), "an op on a lane of kind h2d; it belongs on compute lanes"),
        (
            COMPUTE,
            Cmd::Host(toy(&[])),
            "a host task on a lane of kind compute; it belongs on update, data and io lanes",
        ),
        (
            UPDATE,
            Cmd::Collective(collective(&[r0, r1], 1, at(DEVICE, 0, 1))),
            "a collective on a lane of kind update; it belongs on h2d, compute and d2h lanes",
        ),
        (
            COMPUTE,
            Cmd::Launch(toy(&[(at(HOST, 0, 8), Read)])),
            "an op of rank 0.0 touches bytes 0..8 of `weights`, which lies in host memory",
        ),
        (
            UPDATE,
            Cmd::Host(toy(&[(at(DEVICE, 0, 8), Write)])),
            "a host task of rank 0.0 touches bytes 0..8 of `slot`, which lies in device memory of rank 0.0",
        ),
        (
            UPDATE,
            Cmd::Host(toy(&[(at(HOST, 0, 8), Read), (at(HOST, 6, 9), Update)])),
            "two operands of the command share bytes 6..8 of `weights` and one of them is written",
        ),
        (
            COMPUTE,
            Cmd::Launch(toy(&[(at(LOOSE, 0, 8), Read)])),
            "touches bytes 0..8 of `loose`, which no boundary guards; add them to a boundary of the contract",
        ),
        (
            COMPUTE,
            Cmd::Launch(toy(&[(at(DEVICE, 4, 8), Update)])),
            "reads bytes 4..8 of `slot`, which nothing has written in this program and which are not defined at entry",
        ),
        (
            COMPUTE,
            Cmd::Collective(collective(&[r1], 3, at(DEVICE, 0, 1))),
            "collective with tag 3 is issued by rank 0.0, which is not in its group",
        ),
        (
            COMPUTE,
            Cmd::Collective(collective(&[r0, r1, r0], 3, at(DEVICE, 0, 1))),
            "the group of the collective with tag 3 lists rank 0.0 twice",
        ),
    ];
    for (lane, cmd, expected) in cases {
        let refused = built(|b| match cmd.clone() {
            Cmd::Copy { src, dst } => b.copy(lane, src, dst),
            Cmd::Launch(op) => b.launch(lane, op),
            Cmd::Host(task) => b.host(lane, task),
            Cmd::Collective(c) => b.collective(lane, c),
            Cmd::Record(_) | Cmd::Wait(_) => unreachable!(),
        })
        .expect_err(expected)
        .to_string();
        assert!(refused.starts_with("command 0 `") && refused.ends_with(expected), "{refused}\n{expected}");

        // Written by hand, behind waits for everything, it is refused for the same reason.
        let contract = Arc::new(contract());
        let label = Default::default();
        let waits = (0..if lane.0 < 6 { 3 } else { 0 }).map(|e| Cmd::Wait(EventId(e)));
        let commands = waits.chain([cmd]).map(|cmd| Entry { lane, label, cmd }).collect();
        let program = Program { name: String::new(), contract, events: 3, commands };
        let refused = verify(&program).expect_err(expected).to_string();
        assert!(refused.ends_with(expected), "{refused}\n{expected}");
    }
}

#[test]
fn the_first_fault_counts_and_is_named_by_number_and_label() {
    let refused = built(|b| {
        b.copy(H2D, at(HOST, 0, 8), at(DEVICE, 0, 8));
        b.label(megatrain_scheduler::Label { micro: Some(3), ..Default::default() });
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 9), Access::Read)]));
        b.launch(COMPUTE, toy(&[(at(HOST, 0, 9), Access::Read)]));
    });
    assert_eq!(
        refused.unwrap_err().to_string(),
        "command 1 `toy` (Input micro-batch 3, lane 0.0/compute) reads bytes 8..9 of `slot`, which nothing has written \
         in this program and which are not defined at entry"
    );
}

#[test]
fn contradictory_contracts_are_refused_by_both() {
    let cases: [(Vec<Span>, &str); 3] = [
        (vec![at(RegionId(5), 0, 1)], "boundary `extra` guards r5, but the contract has 5 regions"),
        (vec![at(LOOSE, 60, 65)], "boundary `extra` guards bytes 60..65 of `loose`, which has 64 bytes"),
        (
            vec![at(LOOSE, 0, 8), at(HOST, 10, 12)],
            "boundaries `updated` and `extra` both guard bytes 10..12 of `weights`; every byte needs exactly one guard",
        ),
    ];
    for (guards, expected) in cases {
        let mut contract = contract();
        contract.boundary("extra", guards);
        let contract = Arc::new(contract);
        let builder: Builder<Toy, Toy> = Builder::new("test", contract.clone());
        assert_eq!(builder.finish().unwrap_err().to_string(), expected);
        let program: ToyProgram = Program { name: String::new(), contract, events: 4, commands: Vec::new() };
        assert_eq!(verify(&program).unwrap_err().to_string(), expected);
    }
}

#[test]
fn the_round_trip_has_the_events_one_would_write_by_hand() {
    let listing = round_trip().to_string();
    let lines: Vec<String> =
        listing.lines().skip(1).map(|l| l.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "0.0/h2d wait updated",
            "0.0/h2d wait slot_free",
            "0.0/h2d copy weights[0..32] -> slot[0..32] (Input)",
            "0.0/h2d record e0",
            "0.0/compute wait e0",
            "0.0/compute toy reads slot[0..32] writes slot[32..64] (Input)",
            "0.0/compute record e1",
            "0.0/d2h wait e1",
            "0.0/d2h copy slot[32..64] -> weights[32..64] (Input)",
            "0.0/d2h record e2",
            // The slot's last reads: compute and d2h; d2h comes behind compute.
            "0.0/d2h record slot_free",
            "0.0/update wait e2",
            "0.0/update toy reads weights[32..64] updates weights[0..32] (Input)",
            "0.0/update record updated",
        ]
    );
}

#[test]
fn broken_orders_are_refused_and_both_commands_named() {
    let remove = |index: usize| {
        let mut program = round_trip();
        program.commands.remove(index);
        program
    };
    let edit = |change: &dyn Fn(&mut ToyProgram)| {
        let mut program = round_trip();
        change(&mut program);
        program
    };
    let cases = [
        (
            remove(4),
            "race on bytes 0..32 of `slot`: command 4 `toy` (Input, lane 0.0/compute) (reads) is not ordered behind \
             command 2 `copy` (Input, lane 0.0/h2d) (writes)",
        ),
        (
            remove(0),
            "command 1 `copy` (Input, lane 0.0/h2d) touches bytes 0..32 of `weights` without having waited for \
             boundary `updated`",
        ),
        (
            remove(3),
            "command 3 `wait` (Input, lane 0.0/compute) waits on event 3, which is recorded only later in program order or never",
        ),
        (
            remove(10),
            "boundary `slot_free` is not recorded again although command 2 `copy` (Input, lane 0.0/h2d) touched bytes \
             0..32 of `slot`",
        ),
        (
            edit(&|p| {
                let record = p.commands.remove(10);
                p.commands.insert(8, record);
            }),
            "command 8 `record` (Input, lane 0.0/d2h) records boundary `slot_free` again, but is not ordered behind \
             command 9 `copy` (Input, lane 0.0/d2h), which touches bytes 32..64 of `slot`",
        ),
        (
            edit(&|p| {
                let record = Entry { cmd: Cmd::Record(EventId(2)), ..p.commands[10].clone() };
                p.commands.insert(11, record);
            }),
            "command 11 `record` (Input, lane 0.0/d2h) records boundary `others`, none of whose bytes the program touches",
        ),
        (
            edit(&|p| p.commands[10].cmd = Cmd::Record(EventId(5))),
            "event 5 is recorded twice: by command 9 `record` (Input, lane 0.0/d2h) and by command 10 `record` (Input, \
             lane 0.0/d2h)",
        ),
        (
            edit(&|p| p.commands[11].cmd = Cmd::Wait(EventId(17))),
            "command 11 `wait` (Input, lane 0.0/update) names event 17, but the program has 6",
        ),
        (edit(&|p| p.events += 1), "event 6 of the program is never recorded"),
    ];
    for (program, expected) in cases {
        let refused = verify(&program).unwrap_err().to_string();
        assert_eq!(refused, expected, "{program}");
    }
}

#[test]
fn collectives_without_partner_order_or_hope_are_refused() {
    let (r0, r1) = (rank(0), rank(1));
    let own = |tag: u32, span| collective(&[r0, r1], tag, span);
    let program = |add: &dyn Fn(&mut Builder<Toy, Toy>)| built(add).unwrap();
    let (a, b) = (at(DEVICE, 0, 8), at(OTHER, 0, 8));
    assert!(
        verify(&program(&|p| {
            p.collective(COMPUTE, own(1, a));
            p.collective(COMPUTE1, own(1, b));
        }))
        .is_ok()
    );
    let cases: [(ToyProgram, &str); 5] = [
        (
            program(&|p| p.collective(COMPUTE, own(1, a))),
            "command 1 `all_reduce` (Input, lane 0.0/compute) with tag 1 waits for rank 0.1 for ever: that rank issues \
             no such collective on a lane of this kind",
        ),
        (
            program(&|p| {
                p.collective(COMPUTE, own(1, a));
                p.collective(COMPUTE, own(2, a));
                p.collective(COMPUTE1, own(2, b));
                p.collective(COMPUTE1, own(1, b));
            }),
            "collective 0 of the group differs between ranks",
        ),
        (
            program(&|p| {
                p.collective(COMPUTE, own(1, a));
                p.collective(COMPUTE, own(1, a));
            }),
            "tag 1 is used twice by one rank",
        ),
        (
            // Two groups over the same ranks, issued crosswise: each lane waits for the other.
            program(&|p| {
                p.collective(COMPUTE, collective(&[r0, r1], 1, a));
                p.collective(COMPUTE, collective(&[r1, r0], 2, a));
                p.collective(COMPUTE1, collective(&[r1, r0], 2, b));
                p.collective(COMPUTE1, collective(&[r0, r1], 1, b));
            }),
            "deadlock: command 1 `all_reduce` (Input, lane 0.0/compute) can never run",
        ),
        (
            program(&|p| {
                p.collective(COMPUTE, own(1, a));
                p.launch(COMPUTE, toy(&[(a, Access::Read)]));
                p.collective(COMPUTE1, own(2, b));
            }),
            "collective 0 of the group differs between ranks",
        ),
    ];
    for (program, expected) in cases {
        let refused = verify(&program).unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{refused}\n{expected}");
    }
    let mut contract = contract();
    contract.lane(r0, LaneKind::Compute);
    let mut builder: Builder<Toy, Toy> = Builder::new("test", Arc::new(contract));
    builder.collective(COMPUTE, collective(&[r0], 1, a));
    let refused = verify(&builder.finish().unwrap()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "command 1 `all_reduce` (Input, lane 0.0/compute) is a collective, but rank 0.0 has a second compute lane; \
         collectives need the only one"
    );
}
