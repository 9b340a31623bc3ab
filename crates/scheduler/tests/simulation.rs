//! Simulated times against sums done by hand, and traffic against bytes counted by hand.

mod support;

use megatrain_base::{Access, Rank, RegionId, Span};
use megatrain_scheduler::{
    Builder, Collective, ComputeRate, Contract, LaneId, LaneKind, LinkTraffic, MachineProfile, Space, simulate,
    simulate::{Behind, SimulateError},
    simulate_sequence, steady_step_us, traffic, traffic_where, verify,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{Toy, ToyProgram, rank};

const MB: u64 = 1_000_000;

/// Copies 10 GB/s either way, 15 together; host memory 40 GB/s; kernels and tasks are toys of 1 MFLOP.
fn profile() -> MachineProfile {
    MachineProfile {
        name: "test".into(),
        h2d_gb_s: 10.0,
        d2h_gb_s: 10.0,
        both_ways_gb_s: 15.0,
        compute_tflops: ComputeRate::Flat(0.01),
        device_gb_s: 1000.0,
        host_tflops: 1.0,
        host_gb_s: 40.0,
        file_gb_s: 1.0,
        peer_gb_s: 100.0,
        launch_us: 0.0,
        event_us: 5.0,
    }
}

const H2D: LaneId = LaneId(0);
const COMPUTE: LaneId = LaneId(1);
const D2H: LaneId = LaneId(2);
const UPDATE: LaneId = LaneId(3);
const DATA: LaneId = LaneId(4);
const IO: LaneId = LaneId(5);
const COMPUTE1: LaneId = LaneId(6);
const HOST: RegionId = RegionId(0);
const DEVICE: RegionId = RegionId(1);
const FILE: RegionId = RegionId(2);
const OTHER: RegionId = RegionId(3);

fn at(region: RegionId, start_mb: u64, len_mb: u64) -> Span {
    Span::new(region, start_mb * MB, len_mb * MB)
}

/// Every MB has a boundary of its own, so that programs meet only where they must.
fn contract() -> Arc<Contract> {
    let mut c = Contract::default();
    c.region("host", Space::Host, 16 * MB, true);
    c.region("device", Space::Device(rank(0)), 16 * MB, true);
    c.region("file", Space::File, 16 * MB, true);
    c.region("other", Space::Device(rank(1)), 16 * MB, true);
    use LaneKind as K;
    for kind in [K::H2d, K::Compute, K::D2h, K::Update, K::Data, K::Io] {
        c.lane(rank(0), kind);
    }
    c.lane(rank(1), K::Compute);
    for region in [HOST, DEVICE, FILE, OTHER] {
        for mb in 0..16 {
            c.boundary(format!("{region}.{mb}"), vec![at(region, mb, 1)]);
        }
    }
    Arc::new(c)
}

fn built(add: impl FnOnce(&mut Builder<Toy, Toy>)) -> ToyProgram {
    let mut builder = Builder::new("test", contract());
    add(&mut builder);
    let program = builder.finish().unwrap();
    verify(&program).unwrap();
    program
}

fn toy(spans: &[(Span, Access)]) -> Toy {
    Toy { seed: 0, spans: spans.to_vec() }
}

#[track_caller]
fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{got} instead of {expected}");
}

#[test]
fn a_chain_over_lanes_adds_up_and_is_the_critical_path() {
    let program = built(|b| {
        b.copy(H2D, at(HOST, 0, 1), at(DEVICE, 0, 1)); // 1 MB at 10 GB/s: 100 us
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 1), Access::Update)])); // 1 MFLOP at 0.01 TFLOP/s: 100 us
        b.copy(D2H, at(DEVICE, 0, 1), at(HOST, 1, 1)); // 100 us
        b.host(DATA, toy(&[])); // beside it: 1 MFLOP at 1 TFLOP/s, 1 us
    });
    let simulation = simulate(&program, &profile()).unwrap();
    close(simulation.step_us, 3.0 * 100.0 + 2.0 * 5.0);
    let path: Vec<(&str, f64)> = simulation
        .critical
        .iter()
        .map(|step| &simulation.timeline.slices[step.slice])
        .map(|slice| (slice.name, slice.start_us))
        .collect();
    assert_eq!(path, [("copy", 0.0), ("toy", 105.0), ("copy", 210.0)]);
    assert_eq!(simulation.critical[0].behind, Behind::Start);
    assert!(simulation.critical[1..].iter().all(|step| matches!(step.behind, Behind::Event(_))));
    close(simulation.lanes[COMPUTE.0 as usize].share, 100.0 / 310.0);
    close(simulation.lanes[DATA.0 as usize].busy_us, 1.0);
}

#[test]
fn launches_cost_on_device_lanes_only() {
    let program = built(|b| {
        b.launch(COMPUTE, toy(&[]));
        b.launch(COMPUTE, toy(&[]));
        b.host(UPDATE, toy(&[]));
    });
    let simulation = simulate(&program, &MachineProfile { launch_us: 7.0, ..profile() }).unwrap();
    close(simulation.step_us, 2.0 * (100.0 + 7.0));
    close(simulation.lanes[UPDATE.0 as usize].busy_us, 1.0);
    assert_eq!(simulation.critical[1].behind, Behind::Lane);
}

#[test]
fn both_directions_share_the_link_while_both_run() {
    let program = built(|b| {
        b.copy(H2D, at(HOST, 0, 3), at(DEVICE, 0, 3));
        b.copy(D2H, at(DEVICE, 4, 1), at(HOST, 4, 1));
    });
    let simulation = simulate(&program, &profile()).unwrap();
    // Together 7.5 GB/s each: 1 MB down takes 133.3 us, in which 1 MB goes up; the other 2 MB at 10 GB/s.
    close(simulation.timeline.slices[1].end_us, 1e3 / 7.5);
    close(simulation.step_us, 1e3 / 7.5 + 200.0);
}

#[test]
fn host_memory_is_shared_by_tasks_and_copies() {
    let program = built(|b| {
        b.host(UPDATE, toy(&[(at(HOST, 0, 4), Access::Write)]));
        b.copy(H2D, at(HOST, 8, 1), at(DEVICE, 0, 1));
    });
    let simulation = simulate(&program, &profile()).unwrap();
    // Asked 40 + 10 of 40 GB/s: both at 4/5. The copy takes 125 us; the task has then done 100 of its 100 us.
    close(simulation.timeline.slices[0].end_us, 125.0);
    close(simulation.timeline.slices[1].end_us, 125.0);
}

#[test]
fn collectives_start_when_the_last_member_comes() {
    let group: Arc<[Rank]> = [rank(0), rank(1)].into();
    let part =
        |tag, span| Collective { kind: "sum", group: group.clone(), tag, accesses: vec![(span, Access::Update)] };
    let program = built(|b| {
        b.launch(COMPUTE, toy(&[]));
        b.collective(COMPUTE, part(1, at(DEVICE, 0, 1)));
        b.collective(COMPUTE1, part(1, at(OTHER, 0, 1)));
        b.launch(COMPUTE1, toy(&[]));
    });
    let simulation = simulate(&program, &profile()).unwrap();
    close(simulation.step_us, 100.0 + 10.0 + 100.0);
    let lanes: Vec<LaneId> =
        simulation.critical.iter().map(|step| simulation.timeline.slices[step.slice].lane).collect();
    assert_eq!(lanes, [COMPUTE, COMPUTE1, COMPUTE1]);
    assert_eq!(simulation.critical[1].behind, Behind::Collective);
}

#[test]
fn a_repeated_program_overlaps_with_itself() {
    let program = built(|b| {
        b.copy(H2D, at(HOST, 0, 1), at(DEVICE, 0, 1));
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 1), Access::Read), (at(DEVICE, 1, 1), Access::Write)]));
        b.copy(D2H, at(DEVICE, 1, 1), at(HOST, 1, 1));
        b.host(UPDATE, toy(&[(at(HOST, 1, 1), Access::Read), (at(HOST, 2, 3), Access::Update)]));
    });
    // Nothing shared is short: every command takes 100 us.
    let profile = MachineProfile { both_ways_gb_s: 20.0, host_gb_s: 1e3, host_tflops: 0.01, ..profile() };
    let simulation = simulate_sequence(&[&program, &program], &profile).unwrap();
    let once = simulate(&program, &profile).unwrap().step_us;
    close(once, 4.0 * 100.0 + 3.0 * 5.0);
    close(simulation.ends_us[0], once);
    // The slot is free, and the next copy starts, when the kernel has read it: 205 us and a hop.
    let second_copy = simulation.timeline.slices.iter().filter(|s| s.lane == H2D).nth(1).unwrap();
    close(second_copy.start_us, 205.0 + 5.0);
    // Copy, hop, kernel, hop: the slot's round, which nothing else holds up.
    close(steady_step_us(&program, &profile).unwrap(), 2.0 * (100.0 + 5.0));
}

#[test]
fn impossible_profiles_and_unverified_programs_are_refused() {
    let mut program = built(|b| {
        b.copy(H2D, at(HOST, 0, 1), at(DEVICE, 0, 1));
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 1), Access::Read)]));
    });
    let slow = MachineProfile { h2d_gb_s: f64::NAN, ..profile() };
    assert!(matches!(simulate(&program, &slow), Err(SimulateError::Profile(_))));
    let record = program.commands.iter().position(|e| e.cmd.name() == "record").unwrap();
    program.commands.remove(record);
    let refused = simulate(&program, &profile()).unwrap_err().to_string();
    assert!(refused.contains("wait") && refused.ends_with("can never start; verify the program first"), "{refused}");
    let empty: [&ToyProgram; 0] = [];
    close(simulate_sequence(&empty, &profile()).unwrap().step_us, 0.0);
}

#[test]
fn traffic_counts_each_link_and_the_host() {
    let program = built(|b| {
        b.label(megatrain_scheduler::Label { micro: Some(1), ..Default::default() });
        b.copy(H2D, at(HOST, 0, 3), at(DEVICE, 0, 3));
        b.label(megatrain_scheduler::Label::default());
        b.copy(H2D, at(HOST, 3, 1), at(DEVICE, 3, 1));
        b.copy(D2H, at(DEVICE, 0, 2), at(HOST, 4, 2));
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 2), Access::Update)]));
        b.host(UPDATE, toy(&[(at(HOST, 4, 2), Access::Read), (at(HOST, 0, 1), Access::Update)]));
        b.copy(IO, at(HOST, 0, 5), at(FILE, 0, 5));
        b.host(IO, toy(&[(at(FILE, 0, 7), Access::Read), (at(HOST, 8, 7), Access::Write)]));
        b.copy(DATA, at(HOST, 8, 1), at(HOST, 10, 1));
    });
    let all = traffic(&program);
    let link = LinkTraffic { h2d_bytes: 4 * MB, d2h_bytes: 2 * MB };
    assert_eq!(all.links, BTreeMap::from([(rank(0), link)]));
    assert_eq!(all.host_read_bytes, (2 + 1 + 5 + 1) * MB);
    assert_eq!(all.host_written_bytes, (1 + 7 + 1) * MB);
    assert_eq!((all.file_read_bytes, all.file_written_bytes), (7 * MB, 5 * MB));
    assert_eq!(traffic_where(&program, |e| e.label.micro == Some(1)).h2d_bytes(), 3 * MB);
}
