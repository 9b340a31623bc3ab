//! [`Timeline`]: what ran when, from a run or a simulation; export to the trace format that Chrome and Perfetto read.

use crate::{Label, Lane, LaneId};
use megatrain_base::Work;
use serde_json::{Value, json};
use std::fmt;

/// One command that ran.
#[derive(Clone, PartialEq, Debug)]
pub struct Slice {
    /// Its lane.
    pub lane: LaneId,
    /// Whose work it is.
    pub label: Label,
    /// Its name.
    pub name: &'static str,
    /// Start, in µs since the timeline's start.
    pub start_us: f64,
    /// End, in µs since the timeline's start.
    pub end_us: f64,
    /// What it cost; for copies `bytes` is their length.
    pub work: Work,
}

/// What ran when. Slices of one lane do not overlap.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Timeline {
    /// The lanes; index = [`LaneId`].
    pub lanes: Vec<Lane>,
    /// In the order in which they were noted.
    pub slices: Vec<Slice>,
}

/// How busy a lane was.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LaneBusy {
    /// The lane.
    pub lane: LaneId,
    /// What it is.
    pub what: Lane,
    /// Commands it ran.
    pub commands: usize,
    /// Time in commands, µs.
    pub busy_us: f64,
    /// Of the whole timeline: 0 to 1.
    pub share: f64,
    /// Work it did.
    pub work: Work,
}

impl Timeline {
    /// From the first start to the last end, µs; 0 for an empty timeline.
    pub fn length_us(&self) -> f64 {
        let start = self.slices.iter().map(|s| s.start_us).fold(f64::INFINITY, f64::min);
        let end = self.slices.iter().map(|s| s.end_us).fold(f64::NEG_INFINITY, f64::max);
        (end - start).max(0.0)
    }

    /// How busy each lane was, in lane order.
    pub fn busy(&self) -> Vec<LaneBusy> {
        let length = self.length_us();
        let lane = |(lane, what): (u16, &Lane)| LaneBusy {
            lane: LaneId(lane),
            what: *what,
            commands: 0,
            busy_us: 0.0,
            share: 0.0,
            work: Work::default(),
        };
        let mut out: Vec<LaneBusy> = (0..).zip(&self.lanes).map(lane).collect();
        for slice in &self.slices {
            let Some(lane) = out.get_mut(slice.lane.0 as usize) else { continue };
            lane.commands += 1;
            lane.busy_us += slice.end_us - slice.start_us;
            lane.work.flops += slice.work.flops;
            lane.work.bytes += slice.work.bytes;
        }
        for lane in out.iter_mut().filter(|_| length > 0.0) {
            lane.share = lane.busy_us / length;
        }
        out
    }

    /// The trace as JSON text: a process for the host and for each rank's device, a track for each lane, and per slice
    /// its phase, unit, micro-batch, bytes and flops. Open it in `chrome://tracing` or ui.perfetto.dev.
    pub fn to_chrome_json(&self) -> String {
        let mut events = Vec::with_capacity(self.slices.len() + 4 * self.lanes.len());
        let mut named = Vec::new();
        for (tid, lane) in self.lanes.iter().enumerate() {
            let pid = pid(*lane);
            if !named.contains(&pid) {
                named.push(pid);
                let name = if lane.kind.on_host() {
                    format!("host of node {}", lane.rank.node)
                } else {
                    format!("device of rank {}", lane.rank)
                };
                events.push(meta("process_name", pid, tid, json!({ "name": name })));
            }
            events.push(meta("thread_name", pid, tid, json!({ "name": lane.to_string() })));
            events.push(meta("thread_sort_index", pid, tid, json!({ "sort_index": tid })));
        }
        for slice in &self.slices {
            let lane = slice.lane.0 as usize;
            let mut args = json!({ "phase": format!("{:?}", slice.label.phase) });
            if let Some(unit) = slice.label.unit {
                args["unit"] = unit.0.into();
            }
            if let Some(micro) = slice.label.micro {
                args["micro"] = micro.into();
            }
            args["bytes"] = slice.work.bytes.into();
            args["flops"] = slice.work.flops.into();
            events.push(json!({
                "ph": "X", "name": slice.name, "cat": format!("{:?}", slice.label.phase),
                "pid": self.lanes.get(lane).map_or(0, |l| pid(*l)), "tid": lane,
                "ts": slice.start_us, "dur": slice.end_us - slice.start_us, "args": args,
            }));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
    }
}

impl fmt::Display for Timeline {
    /// A line a lane: busy time and share, commands, rates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.length_us() / 1e3)?;
        for lane in self.busy().iter().filter(|l| l.commands > 0) {
            write!(
                f,
                "\n{:<14} {:>5.1}% busy, {:>10.3} ms in {} commands",
                lane.what.to_string(),
                lane.share * 100.0,
                lane.busy_us / 1e3,
                lane.commands
            )?;
            if lane.busy_us > 0.0 {
                write!(f, ", {:.2} GB/s", lane.work.bytes / lane.busy_us / 1e3)?;
                if lane.work.flops > 0.0 {
                    write!(f, ", {:.3} TFLOP/s", lane.work.flops / lane.busy_us / 1e6)?;
                }
            }
        }
        Ok(())
    }
}

/// Even: a node's host; odd: a rank's device.
fn pid(lane: Lane) -> u64 {
    let rank = (u64::from(lane.rank.node) << 16) | u64::from(lane.rank.local);
    if lane.kind.on_host() { u64::from(lane.rank.node) << 17 } else { (rank << 1) | 1 }
}

fn meta(name: &str, pid: u64, tid: usize, args: Value) -> Value {
    json!({ "ph": "M", "name": name, "pid": pid, "tid": tid, "args": args })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LaneKind, Phase};
    use megatrain_base::{Rank, UnitId};

    fn sample() -> Timeline {
        let lanes = vec![
            Lane { rank: Rank::default(), kind: LaneKind::Compute },
            Lane { rank: Rank::default(), kind: LaneKind::Update },
        ];
        let label = Label { phase: Phase::Backward, unit: Some(UnitId(7)), micro: None };
        let slice = |lane, start_us, end_us| Slice {
            lane: LaneId(lane),
            label,
            name: "matmul",
            start_us,
            end_us,
            work: Work { flops: 8.0, bytes: 16.0 },
        };
        Timeline { lanes, slices: vec![slice(0, 10.0, 14.0), slice(0, 14.0, 15.0), slice(1, 12.0, 20.0)] }
    }

    #[test]
    fn busy_shares_are_of_the_whole_length() {
        let busy = sample().busy();
        assert_eq!((busy[0].commands, busy[0].busy_us, busy[0].share), (2, 5.0, 0.5));
        assert_eq!((busy[1].commands, busy[1].busy_us, busy[1].share), (1, 8.0, 0.8));
        assert_eq!((Timeline::default().length_us(), Timeline::default().busy().len()), (0.0, 0));
    }

    #[test]
    fn the_trace_names_processes_and_tracks_and_carries_the_label() {
        let trace: Value = serde_json::from_str(&sample().to_chrome_json()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let named = |kind: &str| -> Vec<&str> {
            events.iter().filter(|e| e["name"] == kind).map(|e| e["args"]["name"].as_str().unwrap()).collect()
        };
        assert_eq!(named("process_name"), ["device of rank 0.0", "host of node 0"]);
        assert_eq!(named("thread_name"), ["0.0/compute", "0.0/update"]);
        let slices: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(slices.len(), 3);
        assert_eq!((slices[2]["ts"].as_f64(), slices[2]["dur"].as_f64()), (Some(12.0), Some(8.0)));
        assert_eq!((&slices[2]["args"]["unit"], &slices[2]["args"]["phase"]), (&json!(7), &json!("Backward")));
        assert!(slices[2]["args"].get("micro").is_none());
        assert_ne!(slices[0]["pid"], slices[2]["pid"]);
    }
}
