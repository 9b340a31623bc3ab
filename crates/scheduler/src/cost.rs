//! What a command costs by itself, and how commands that share something slow one another down.

use crate::profile::MachineProfile;
use crate::{Cmd, Contract, Entry, LaneKind};
use megatrain_base::Command;
use std::fmt;

/// What a command is limited by when it runs alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Resource {
    /// The device's arithmetic.
    DeviceArithmetic,
    /// The device's memory.
    DeviceMemory,
    /// The link, host to device.
    LinkUp,
    /// The link, device to host.
    LinkDown,
    /// The host's arithmetic.
    HostArithmetic,
    /// The host's cores and memory.
    HostMemory,
    /// Files.
    Files,
    /// What connects the ranks.
    Peers,
    /// Getting a command started.
    Launch,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::DeviceArithmetic => "device arithmetic",
            Resource::DeviceMemory => "device memory",
            Resource::LinkUp => "link up",
            Resource::LinkDown => "link down",
            Resource::HostArithmetic => "host arithmetic",
            Resource::HostMemory => "host cores and memory",
            Resource::Files => "files",
            Resource::Peers => "link between ranks",
            Resource::Launch => "launches",
        })
    }
}

/// What a command takes of something shared when nothing slows it down; rates in GB/s.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Demand {
    /// The host's cores, as a share of all of them, and the host memory that these move.
    Cores(f64, f64),
    /// Files.
    File(f64),
    /// A rank's link, by the number of the rank's first lane; as much of host memory.
    Link(usize, f64),
}

/// A command on its own.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Alone {
    /// How long it takes.
    pub us: f64,
    /// What it spends that time on.
    pub limit: Resource,
    /// What it asks of shared resources meanwhile.
    pub demands: Vec<Demand>,
}

/// How long a command takes alone: as long as its slower part, arithmetic or memory, and a launch on device lanes.
pub(crate) fn alone<O: Command, T: Command>(
    contract: &Contract,
    profile: &MachineProfile,
    entry: &Entry<O, T>,
) -> Alone {
    let lane = contract.lanes[entry.lane.0 as usize];
    let work = entry.cmd.work();
    // Bytes over GB/s are ns; flops over TFLOP/s are ps.
    let bytes_us = |bytes: f64, gb_s: f64| bytes / gb_s / 1e3;
    let flops_us = |flops: f64, tflops: f64| if flops > 0.0 { flops / tflops / 1e6 } else { 0.0 };
    let rate = |bytes: f64, us: f64| if us > 0.0 { bytes / us / 1e3 } else { 0.0 };
    let device = |us: f64, limit: Resource, cores: f64| Alone {
        us: us + profile.launch_us,
        limit: if us > profile.launch_us { limit } else { Resource::Launch },
        demands: if profile.device_is_host { vec![Demand::Cores(cores, 0.0)] } else { Vec::new() },
    };
    let crossing = |gb_s: f64, limit: Resource| {
        // Where the device is the host, a copy over the link is a host's copy by another name.
        let mut copy = device(bytes_us(work.bytes, gb_s), limit, profile.task("copy").cores);
        let link = contract.lanes.iter().position(|l| l.rank == lane.rank).unwrap_or(0);
        copy.demands.push(Demand::Link(link, rate(work.bytes, copy.us)));
        copy
    };
    let task = |name: &str, bytes: f64, flops: f64| {
        let own = profile.task(name);
        let (memory, arithmetic) = (bytes_us(bytes, own.gb_s), flops_us(flops, profile.host_tflops));
        let us = memory.max(arithmetic);
        let limit = if arithmetic > memory { Resource::HostArithmetic } else { Resource::HostMemory };
        Alone { us, limit, demands: vec![Demand::Cores(own.cores, rate(bytes, us))] }
    };
    match (&entry.cmd, lane.kind) {
        (Cmd::Copy { .. }, LaneKind::H2d) => crossing(profile.h2d_gb_s, Resource::LinkUp),
        (Cmd::Copy { .. }, LaneKind::D2h) => crossing(profile.d2h_gb_s, Resource::LinkDown),
        (Cmd::Copy { .. }, LaneKind::Compute) => {
            device(bytes_us(2.0 * work.bytes, profile.device_gb_s), Resource::DeviceMemory, 1.0)
        }
        (Cmd::Copy { .. }, LaneKind::Update | LaneKind::Data) => task("copy", 2.0 * work.bytes, 0.0),
        (Cmd::Copy { .. }, LaneKind::Io) => {
            let us = bytes_us(work.bytes, profile.file_gb_s);
            let rate = rate(work.bytes, us);
            Alone { us, limit: Resource::Files, demands: vec![Demand::File(rate), Demand::Cores(0.0, rate)] }
        }
        (Cmd::Collective(_), _) => device(bytes_us(work.bytes, profile.peer_gb_s), Resource::Peers, 1.0),
        (Cmd::Host(host), _) => task(host.name(), work.bytes, work.flops),
        (Cmd::Launch(op), _) => {
            let (arithmetic, gb_s) = match profile.ops.get(op.name()) {
                None => (flops_us(work.flops, profile.compute_tflops.at(work.flops)), None),
                Some(own) => {
                    let tflops = own.tflops.as_ref().map(|rate| rate.at(work.flops / work.bytes.max(1.0)));
                    (tflops.map_or(0.0, |tflops| flops_us(work.flops, tflops)), own.gb_s)
                }
            };
            let memory = bytes_us(work.bytes, gb_s.unwrap_or(profile.device_gb_s));
            let limit = if arithmetic > memory { Resource::DeviceArithmetic } else { Resource::DeviceMemory };
            device(arithmetic.max(memory), limit, 1.0)
        }
        (Cmd::Record(_) | Cmd::Wait(_), _) => Alone { us: 0.0, limit: Resource::Launch, demands: Vec::new() },
    }
}

/// Share of host memory that links leave to the cores, however much they carry.
const LEFT_TO_CORES: f64 = 0.25;

/// Speed of each running command, 1 at most: `demands` has an entry a lane, empty where nothing shared runs. Where the
/// sum of a resource's demands exceeds it, all of them get the same fraction; a command goes at its worst fraction. Host
/// memory serves links first and the cores with what is left: a device's requests do not queue behind the cores'.
pub(crate) fn speeds<'a>(profile: &MachineProfile, demands: impl Iterator<Item = &'a [Demand]> + Clone) -> Vec<f64> {
    // What fits, as a fraction of what is asked.
    let fits = |available: f64, asked: f64| if asked > available { available / asked } else { 1.0 };
    let (mut shares, mut by_cores, mut file, mut links) = (0.0, 0.0, 0.0, Vec::<f64>::new());
    for demand in demands.clone().flatten() {
        match *demand {
            Demand::Cores(share, rate) => {
                shares += share;
                by_cores += rate;
            }
            Demand::File(rate) => file += rate,
            Demand::Link(link, rate) => {
                if links.len() <= link {
                    links.resize(link + 1, 0.0);
                }
                links[link] += rate;
            }
        }
    }
    let cores = fits(1.0, shares);
    by_cores *= cores;
    let by_links: f64 = links.iter().map(|rate| rate.min(profile.both_ways_gb_s)).sum();
    let for_links = profile.host_gb_s - by_cores.min(LEFT_TO_CORES * profile.host_gb_s);
    let for_cores = profile.host_gb_s - by_links.min(for_links);
    let fraction = |demand: &Demand| match *demand {
        Demand::Cores(_, rate) => cores * if rate > 0.0 { fits(for_cores, by_cores) } else { 1.0 },
        Demand::File(_) => fits(profile.file_gb_s, file),
        Demand::Link(link, _) => fits(profile.both_ways_gb_s, links[link]) * fits(for_links, by_links),
    };
    demands.map(|of_lane| of_lane.iter().map(fraction).fold(1.0, f64::min)).collect()
}
