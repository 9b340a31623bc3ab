//! The stream timeline of a step, small enough for a page.

use megatrain_scheduler::timeline::Slice;
use megatrain_scheduler::{LaneId, Timeline};
use serde_json::{Value, json};

/// Slices on the page at most: 400 KB, and more than a screen is wide at any zoom that shows names.
const MAX_SLICES: usize = 12_000;

/// Phases in the order of their numbers on the page.
const PHASES: [&str; 5] = ["Input", "Forward", "Loss", "Backward", "Update"];

/// A bar: a command, or several neighbours of one lane drawn as one.
#[derive(Clone, Copy)]
struct Bar<'a> {
    first: &'a Slice,
    end_us: f64,
    commands: u32,
    /// Time in commands; less than the bar's length where there were gaps.
    busy_us: f64,
}

/// For the page. Each bar is eight numbers: lane, phase, name, unit, micro-batch (-1 for none), start and length in µs
/// from the first start, number of commands.
pub fn to_json(timeline: &Timeline, step: u64) -> Value {
    let start_us = timeline.slices.iter().map(|s| s.start_us).fold(f64::INFINITY, f64::min);
    let (bars, gap_us) = bars(timeline, MAX_SLICES);
    let mut names: Vec<&str> = Vec::new();
    let mut numbers = Vec::with_capacity(8 * bars.len());
    let tenths = |us: f64| (us * 10.0).round() / 10.0;
    for bar in &bars {
        let Slice { lane, label, name, .. } = bar.first;
        let name = names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        let number = |x: Option<u32>| x.map_or(-1.0, f64::from);
        numbers.extend([
            f64::from(lane.0),
            f64::from(label.phase as u8),
            name as f64,
            number(label.unit.map(|unit| unit.0)),
            number(label.micro),
            tenths(bar.first.start_us - start_us),
            tenths(bar.end_us - bar.first.start_us),
            f64::from(bar.commands),
        ]);
    }
    let one_rank = timeline.lanes.iter().all(|lane| lane.rank == timeline.lanes[0].rank);
    let lane = |lane: &megatrain_scheduler::Lane| if one_rank { lane.kind.to_string() } else { lane.to_string() };
    json!({
        "step": step,
        "length_us": tenths(timeline.length_us()),
        "lanes": timeline.lanes.iter().map(lane).collect::<Vec<_>>(),
        "phases": PHASES,
        "names": names,
        "commands": timeline.slices.len(),
        "merged_gap_us": tenths(gap_us),
        "bars": numbers.into_iter().map(compact).collect::<Vec<_>>(),
    })
}

/// Whole numbers without `.0`.
fn compact(x: f64) -> Value {
    if x.fract() == 0.0 { Value::from(x as i64) } else { Value::from(x) }
}

/// At most so many bars: commands as they are, or where there are too many, neighbours of one lane with the same label in
/// one, over gaps that widen until the number is met. Also returns the widest gap.
fn bars(timeline: &Timeline, max: usize) -> (Vec<Bar<'_>>, f64) {
    let mut slices: Vec<&Slice> = timeline.slices.iter().collect();
    slices.sort_by(|a, b| a.lane.cmp(&b.lane).then(a.start_us.total_cmp(&b.start_us)));
    if slices.len() <= max {
        return (merge(&slices, |_, _| false, 0.0), 0.0);
    }
    type Alike = fn(&Slice, &Slice) -> bool;
    let alikes: [Alike; 3] = [
        |a, b| a.label == b.label,
        |a, b| (a.label.phase, a.label.unit) == (b.label.phase, b.label.unit),
        |a, b| a.label.phase == b.label.phase,
    ];
    let length = timeline.length_us();
    // As fine as a screen of 4000 pixels first, then coarser.
    for shift in [12, 9, 6] {
        let gap = length / f64::from(1 << shift);
        for alike in alikes {
            let bars = merge(&slices, alike, gap);
            if bars.len() <= max {
                return (bars, gap);
            }
        }
    }
    // Phases that alternate thousands of times in a lane: whatever lies close together.
    let mut gap = length / 4096.0;
    loop {
        let bars = merge(&slices, |_, _| true, gap);
        if bars.len() <= max || gap >= length {
            return (bars, gap);
        }
        gap *= 2.0;
    }
}

fn merge<'a>(slices: &[&'a Slice], alike: impl Fn(&Slice, &Slice) -> bool, gap_us: f64) -> Vec<Bar<'a>> {
    let mut bars: Vec<Bar<'a>> = Vec::new();
    let mut lane: Option<LaneId> = None;
    for &slice in slices {
        match bars.last_mut() {
            Some(bar)
                if lane == Some(slice.lane) && slice.start_us - bar.end_us <= gap_us && alike(bar.first, slice) =>
            {
                bar.end_us = bar.end_us.max(slice.end_us);
                bar.commands += 1;
                bar.busy_us += slice.end_us - slice.start_us;
            }
            _ => bars.push(Bar {
                first: slice,
                end_us: slice.end_us,
                commands: 1,
                busy_us: slice.end_us - slice.start_us,
            }),
        }
        lane = Some(slice.lane);
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_base::{Rank, UnitId, Work};
    use megatrain_scheduler::{Label, Lane, LaneKind, Phase};

    fn timeline(count: usize, label: impl Fn(usize) -> Label) -> Timeline {
        let lanes = [LaneKind::Compute, LaneKind::Update].map(|kind| Lane { rank: Rank::default(), kind });
        let slice = |i: usize| Slice {
            lane: LaneId(i as u16 % 2),
            label: label(i),
            name: if i.is_multiple_of(3) { "matmul" } else { "norm" },
            start_us: 100.0 + i as f64,
            end_us: 100.5 + i as f64,
            work: Work::default(),
        };
        Timeline { lanes: lanes.to_vec(), slices: (0..count).map(slice).collect() }
    }

    #[test]
    fn a_short_step_is_shown_as_it_was() {
        let label = |i: usize| Label { phase: Phase::Backward, unit: Some(UnitId(7)), micro: (i == 1).then_some(2) };
        let json = to_json(&timeline(3, label), 9);
        assert_eq!(
            json["bars"],
            json!([
                0, 3, 0, 7, -1, 0, 0.5, 1, //
                0, 3, 1, 7, -1, 2, 0.5, 1, //
                1, 3, 1, 7, 2, 1, 0.5, 1
            ])
        );
        assert_eq!((&json["lanes"], &json["names"]), (&json!(["compute", "update"]), &json!(["matmul", "norm"])));
        assert_eq!((&json["step"], &json["length_us"]), (&json!(9), &json!(2.5)));
    }

    #[test]
    fn phases_have_their_numbers() {
        let phases = [Phase::Input, Phase::Forward, Phase::Loss, Phase::Backward, Phase::Update];
        let named: Vec<String> = phases.iter().map(|phase| format!("{phase:?}")).collect();
        assert_eq!(named, PHASES);
        assert_eq!(phases.map(|phase| phase as usize), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn long_steps_are_drawn_in_fewer_bars_that_keep_every_command() {
        let alternating = |i: usize| Label {
            phase: if i % 4 < 2 { Phase::Forward } else { Phase::Backward },
            unit: Some(UnitId(i as u32)),
            micro: None,
        };
        let blocks = |i: usize| Label { phase: Phase::Forward, unit: Some(UnitId(i as u32 / 1000)), micro: None };
        for timeline in [timeline(50_000, alternating), timeline(50_000, blocks)] {
            let (bars, _) = bars(&timeline, 500);
            assert!(bars.len() <= 500, "{}", bars.len());
            assert_eq!(bars.iter().map(|bar| bar.commands).sum::<u32>(), 50_000);
            let busy: f64 = bars.iter().map(|bar| bar.busy_us).sum();
            assert!((busy - 25_000.0).abs() < 1e-6);
        }
    }
}
