//! What a command costs by itself, and how commands that share something slow one another down.

use crate::profile::MachineProfile;
use crate::{Cmd, Contract, Entry, LaneKind};
use megatrain_base::Command;

/// A share of a resource, in GB/s, that a command takes when nothing slows it down.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Demand {
    /// Host memory.
    Host(f64),
    /// Files.
    File(f64),
    /// A rank's link, by the number of the rank's first lane.
    Link(usize, f64),
}

/// A command on its own.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Alone {
    /// How long it takes.
    pub us: f64,
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
    let crossing = |gb_s: f64| {
        let us = bytes_us(work.bytes, gb_s) + profile.launch_us;
        let link = contract.lanes.iter().position(|l| l.rank == lane.rank).unwrap_or(0);
        let rate = rate(work.bytes, us);
        Alone { us, demands: vec![Demand::Link(link, rate), Demand::Host(rate)] }
    };
    let device = |us: f64| Alone { us: us + profile.launch_us, demands: Vec::new() };
    let host = |bytes: f64, us: f64| Alone { us, demands: vec![Demand::Host(rate(bytes, us))] };
    match (&entry.cmd, lane.kind) {
        (Cmd::Copy { .. }, LaneKind::H2d) => crossing(profile.h2d_gb_s),
        (Cmd::Copy { .. }, LaneKind::D2h) => crossing(profile.d2h_gb_s),
        (Cmd::Copy { .. }, LaneKind::Compute) => device(bytes_us(2.0 * work.bytes, profile.device_gb_s)),
        (Cmd::Copy { .. }, LaneKind::Update | LaneKind::Data) => {
            host(2.0 * work.bytes, bytes_us(2.0 * work.bytes, profile.host_gb_s))
        }
        (Cmd::Copy { .. }, LaneKind::Io) => {
            let us = bytes_us(work.bytes, profile.file_gb_s);
            let rate = rate(work.bytes, us);
            Alone { us, demands: vec![Demand::File(rate), Demand::Host(rate)] }
        }
        (Cmd::Collective(_), _) => device(bytes_us(work.bytes, profile.peer_gb_s)),
        (Cmd::Host(_), _) => {
            let memory = bytes_us(work.bytes, profile.host_gb_s);
            host(work.bytes, memory.max(flops_us(work.flops, profile.host_tflops)))
        }
        (Cmd::Launch(_), _) => {
            let arithmetic = flops_us(work.flops, profile.compute_tflops.at(work.flops));
            device(arithmetic.max(bytes_us(work.bytes, profile.device_gb_s)))
        }
        (Cmd::Record(_) | Cmd::Wait(_), _) => Alone { us: 0.0, demands: Vec::new() },
    }
}

/// Speed of each running command, 1 at most: `demands` has an entry a lane, empty where nothing shared runs. Where the
/// sum of a resource's demands exceeds it, all of them get the same fraction; a command goes at its worst fraction.
pub(crate) fn speeds<'a>(profile: &MachineProfile, demands: impl Iterator<Item = &'a [Demand]> + Clone) -> Vec<f64> {
    let (mut host, mut file, mut links) = (0.0, 0.0, Vec::<f64>::new());
    for demand in demands.clone().flatten() {
        match *demand {
            Demand::Host(rate) => host += rate,
            Demand::File(rate) => file += rate,
            Demand::Link(link, rate) => {
                if links.len() <= link {
                    links.resize(link + 1, 0.0);
                }
                links[link] += rate;
            }
        }
    }
    // A demand of nothing gives infinity here, which is no limit.
    let fraction = |demand: &Demand| match *demand {
        Demand::Host(_) => profile.host_gb_s / host,
        Demand::File(_) => profile.file_gb_s / file,
        Demand::Link(link, _) => profile.both_ways_gb_s / links[link],
    };
    demands.map(|of_lane| of_lane.iter().map(fraction).fold(1.0, f64::min)).collect()
}
