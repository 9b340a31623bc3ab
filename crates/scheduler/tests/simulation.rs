//! Simulated times against sums done by hand, and traffic against bytes counted by hand.

mod support;

use megatrain_base::{Access, Rank, RegionId, Span};
use megatrain_scheduler::{
    Builder, Collective, ComputeRate, Contract, LaneId, LaneKind, LinkTraffic, MachineProfile, OpRate, Resource,
    Simulation, Space, TaskRate, simulate,
    simulate::{Behind, SimulateError},
    simulate_sequence, steady, steady_step_us, traffic, traffic_where, verify,
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
        ops: BTreeMap::new(),
        host_tflops: 1.0,
        host_gb_s: 40.0,
        host_cores_gb_s: None,
        tasks: BTreeMap::new(),
        file_gb_s: 1.0,
        peer_gb_s: 100.0,
        launch_us: 0.0,
        event_us: 5.0,
        hop_us: None,
        device_is_host: false,
    }
}

fn toy_task(gb_s: f64, cores: f64) -> BTreeMap<String, TaskRate> {
    BTreeMap::from([("toy".to_owned(), TaskRate { gb_s, cores })])
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

/// When the first command of a lane ended.
fn end_us(simulation: &Simulation, lane: LaneId) -> f64 {
    simulation.timeline.slices.iter().find(|s| s.lane == lane).unwrap().end_us
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
fn host_memory_serves_the_link_first_and_tasks_with_the_rest() {
    let program = built(|b| {
        b.host(UPDATE, toy(&[(at(HOST, 0, 4), Access::Write)]));
        b.copy(H2D, at(HOST, 8, 1), at(DEVICE, 0, 1));
    });
    let simulation = simulate(&program, &profile()).unwrap();
    // The copy takes its 100 us. The task, at 30 of 40 GB/s, has then done 75 of its 100 us.
    close(end_us(&simulation, H2D), 100.0);
    close(end_us(&simulation, UPDATE), 125.0);
    // A link that could take all of it leaves the cores a quarter: 30 and 10 GB/s. The copy's MB takes a 30th of a ms, in
    // which the task does a third of a MB.
    let greedy = MachineProfile { h2d_gb_s: 40.0, both_ways_gb_s: 40.0, ..profile() };
    let simulation = simulate(&program, &greedy).unwrap();
    close(end_us(&simulation, H2D), 1e3 / 30.0);
    close(end_us(&simulation, UPDATE), 1e3 / 30.0 + (4.0 - 1.0 / 3.0) * 1e3 / 40.0);
}

#[test]
fn cores_are_a_limit_of_their_own_beside_memory() {
    let program = built(|b| {
        b.host(UPDATE, toy(&[(at(HOST, 0, 4), Access::Write)]));
        b.copy(H2D, at(HOST, 8, 1), at(DEVICE, 0, 1));
    });
    let simulation = simulate(&program, &MachineProfile { host_cores_gb_s: Some(25.0), ..profile() }).unwrap();
    close(end_us(&simulation, H2D), 100.0);
    close(end_us(&simulation, UPDATE), 160.0);
}

#[test]
fn host_lanes_share_the_cores() {
    let program = built(|b| {
        b.host(UPDATE, toy(&[(at(HOST, 0, 4), Access::Write)]));
        b.host(DATA, toy(&[(at(HOST, 4, 4), Access::Write)]));
    });
    // Memory would serve both at once. Alone each takes 160 us; together they get half of the cores each.
    let roomy = MachineProfile { host_cores_gb_s: Some(25.0), host_gb_s: 1e3, ..profile() };
    close(simulate(&program, &roomy).unwrap().step_us, 320.0);
    // Tasks that use half of the cores fit beside each other; of three quarters, both get two thirds.
    for (cores, us) in [(0.5, 160.0), (0.75, 240.0)] {
        close(
            simulate(&program, &MachineProfile { tasks: toy_task(25.0, cores), ..roomy.clone() }).unwrap().step_us,
            us,
        );
    }
    // What the cores cannot ask for, memory need not serve: 25 + 10 GB/s fit in 35.
    let program = built(|b| {
        b.host(UPDATE, toy(&[(at(HOST, 0, 4), Access::Write)]));
        b.host(DATA, toy(&[(at(HOST, 4, 4), Access::Write)]));
        b.copy(H2D, at(HOST, 8, 4), at(DEVICE, 0, 4));
    });
    close(simulate(&program, &MachineProfile { host_gb_s: 35.0, ..roomy }).unwrap().ends_us[0], 400.0);
}

#[test]
fn ops_and_tasks_have_rates_of_their_own() {
    let program = built(|b| {
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 1), Access::Write)]));
        b.host(UPDATE, toy(&[(at(HOST, 0, 4), Access::Write)]));
    });
    let run = |tflops: Option<ComputeRate>, gb_s: Option<f64>| {
        let ops = BTreeMap::from([("toy".to_owned(), OpRate { tflops, gb_s })]);
        let simulation = simulate(&program, &MachineProfile { ops, tasks: toy_task(20.0, 1.0), ..profile() }).unwrap();
        close(simulation.timeline.slices[1].end_us, 200.0);
        (simulation.timeline.slices[0].end_us, simulation.limits[0])
    };
    // 1 MB, 1 MFLOP: 1 flop a byte, a tenth of the way (in logarithms) from 0.1 to 1000.
    let curve = || Some(ComputeRate::Curve(vec![(0.1, 0.01), (1e9, 0.11)]));
    for (tflops, gb_s, us, limit) in [
        (None, Some(5.0), 200.0, Resource::DeviceMemory),
        (None, None, 1.0, Resource::DeviceMemory),
        (Some(ComputeRate::Flat(0.002)), Some(5.0), 500.0, Resource::DeviceArithmetic),
        (curve(), None, 50.0, Resource::DeviceArithmetic),
    ] {
        let (got_us, got_limit) = run(tflops, gb_s);
        close(got_us, us);
        assert_eq!(got_limit, limit);
    }
}

#[test]
fn a_hop_over_the_host_takes_longer_than_one_on_the_device() {
    let program = built(|b| {
        b.copy(H2D, at(HOST, 0, 1), at(DEVICE, 0, 1));
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 1), Access::Read), (at(DEVICE, 1, 1), Access::Write)]));
        b.copy(D2H, at(DEVICE, 1, 1), at(HOST, 1, 1));
        b.host(UPDATE, toy(&[(at(HOST, 1, 1), Access::Update)]));
        b.copy(H2D, at(HOST, 1, 1), at(DEVICE, 2, 1));
    });
    let simulation = simulate(&program, &MachineProfile { hop_us: Some(20.0), ..profile() }).unwrap();
    // Two hops on the device, two over the host; the task moves its MB there and back... as one: 25 us.
    close(simulation.step_us, 4.0 * 100.0 + 25.0 + 2.0 * 5.0 + 2.0 * 20.0);
}

#[test]
fn a_device_that_is_the_host_shares_its_cores() {
    let program = built(|b| {
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 1), Access::Write)]));
        b.host(UPDATE, toy(&[(at(HOST, 0, 4), Access::Write)]));
        b.copy(H2D, at(HOST, 8, 1), at(DEVICE, 8, 1));
    });
    let one_thread = TaskRate { gb_s: 20.0, cores: 0.5 };
    let tasks = BTreeMap::from([("copy".to_owned(), one_thread)]);
    let host = MachineProfile { device_is_host: true, host_gb_s: 1e3, host_cores_gb_s: Some(40.0), tasks, ..profile() };
    // 100 us of all cores, 100 us of all cores and 100 us of half of them.
    close(simulate(&program, &host).unwrap().step_us, 250.0);
    close(simulate(&program, &MachineProfile { device_is_host: false, ..host }).unwrap().step_us, 100.0);
}

#[test]
fn the_steady_state_names_what_holds_it_up() {
    let program = built(|b| {
        b.copy(H2D, at(HOST, 0, 1), at(DEVICE, 0, 1));
        b.launch(COMPUTE, toy(&[(at(DEVICE, 0, 1), Access::Read), (at(DEVICE, 1, 1), Access::Write)]));
        b.copy(D2H, at(DEVICE, 1, 1), at(HOST, 1, 1));
        b.host(UPDATE, toy(&[(at(HOST, 1, 1), Access::Read), (at(HOST, 2, 11), Access::Update)]));
    });
    // The update of 12 MB at 40 GB/s takes longest, 300 us. Then the next gradient may land, for 100 us, and two hops.
    let slow = MachineProfile { both_ways_gb_s: 20.0, host_gb_s: 1e3, host_cores_gb_s: Some(40.0), ..profile() };
    let steady = steady(&program, &slow).unwrap();
    close(steady.step_us, 410.0);
    let (resources, us): (Vec<_>, Vec<_>) = steady.critical.iter().copied().unzip();
    assert_eq!(resources, [Resource::HostMemory, Resource::LinkDown]);
    close(us[0], 300.0);
    close(us[1], 100.0);
    close(steady.busy_us[UPDATE.0 as usize].1, 300.0);
    close(steady.busy_us[IO.0 as usize].1, 0.0);
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
