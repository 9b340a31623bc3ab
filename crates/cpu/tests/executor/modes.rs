//! Every mode, thread count, seed and speed of lanes gives the bits that plain integer arithmetic gives.

use crate::tiny::{DATA, Kind, LANES, Task, Tasks, Tiny, UNITS, UPDATE, expected};
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_exec::Delay;
use megatrain_scheduler::{Cmd, LaneId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SEQUENCE: [Kind; 6] = [Kind::Train, Kind::Evaluate, Kind::Train, Kind::Train, Kind::Touch, Kind::Evaluate];

fn check(options: ExecutorOptions) {
    let tiny = Tiny::new();
    let programs = SEQUENCE.map(|kind| tiny.program(kind));
    let executor = tiny.executor(options.clone());
    for ticket in tiny.issue(&executor, &programs) {
        ticket.wait().unwrap();
    }
    assert_eq!(tiny.bits(&executor), expected(&SEQUENCE), "{options:?}");
}

#[test]
fn inline_computes_what_the_program_says() {
    for threads in 0..=3 {
        check(ExecutorOptions { mode: Mode::Inline, threads, poison: true, ..Default::default() });
    }
}

#[test]
fn threads_give_the_same_bits_whatever_their_number() {
    for round in 0..20 {
        check(ExecutorOptions { threads: 1 + round % 3, poison: round % 2 == 0, ..Default::default() });
    }
}

#[test]
fn a_hundred_shuffles_give_the_same_bits() {
    for seed in 0..100 {
        check(ExecutorOptions { mode: Mode::Shuffle(seed), threads: 1, poison: seed % 2 == 0, ..Default::default() });
    }
}

#[test]
fn slow_lanes_change_no_bit() {
    for slow in 0..LANES as u16 {
        let delay = Delay::new(move |lane| Duration::from_micros(if lane == LaneId(slow) { 700 } else { 0 }));
        check(ExecutorOptions { threads: 2, delay: Some(delay), ..Default::default() });
    }
}

#[test]
fn the_next_program_starts_while_the_last_update_of_the_former_runs() {
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { threads: 2, ..Default::default() });
    let one = |lane, task| {
        let mut b = tiny.builder("one task");
        b.host(lane, task);
        Arc::new(b.finish().unwrap())
    };
    let tasks = Arc::new(Tasks::default());
    // The first program ends when the second has begun: only overlap opens the gate.
    let first = executor.run(one(UPDATE, Task::Hold { touch: tiny.weights[0] }), tasks.clone()).unwrap();
    let second = executor.run(one(DATA, Task::Open { touch: tiny.state }), tasks).unwrap();
    first.wait().unwrap();
    second.wait().unwrap();
}

#[test]
fn tickets_and_executors_may_be_dropped_without_waiting() {
    let tiny = Tiny::new();
    for mode in [Mode::Inline, Mode::Threads, Mode::Shuffle(1)] {
        let options = ExecutorOptions { mode, threads: 1, ..Default::default() };
        let executor = tiny.executor(options.clone());
        tiny.issue(&executor, &[tiny.program(Kind::Train), tiny.program(Kind::Train)]).clear();
        assert_eq!(tiny.bits(&executor), expected(&[Kind::Train; 2]), "{mode:?}: a dropped ticket cancels nothing");

        let executor = tiny.executor(options);
        let tasks = Tasks::default();
        let ticket = executor.run(tiny.program(Kind::Train), Arc::new(tasks.clone())).unwrap();
        drop(executor);
        assert_eq!(tasks.started.load(Ordering::SeqCst), UNITS + 3, "{mode:?}: dropping finishes what was issued");
        ticket.wait().unwrap();
    }
}

#[test]
fn a_trace_shows_every_command_once_in_an_order_that_the_events_allow() {
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { trace: true, threads: 2, ..Default::default() });
    let program = tiny.program(Kind::Train);
    let [ticket] = <[_; 1]>::try_from(tiny.issue(&executor, std::slice::from_ref(&program))).unwrap();
    let report = ticket.wait().unwrap();
    let timeline = report.timeline.unwrap();
    assert_eq!(timeline.lanes, tiny.contract.lanes);
    let mut busy = vec![0.0; LANES];
    for (lane, busy) in busy.iter_mut().enumerate() {
        let commands = program.commands.iter().filter(|e| e.lane.0 as usize == lane);
        let work = commands.filter(|e| !matches!(e.cmd, Cmd::Record(_) | Cmd::Wait(_)));
        let expected: Vec<_> = work.map(|e| (e.cmd.name(), e.label)).collect();
        let slices: Vec<_> = timeline.slices.iter().filter(|s| s.lane.0 as usize == lane).collect();
        assert_eq!(slices.iter().map(|s| (s.name, s.label)).collect::<Vec<_>>(), expected);
        assert!(slices.iter().all(|s| s.start_us <= s.end_us));
        assert!(slices.windows(2).all(|w| w[0].end_us <= w[1].start_us));
        *busy = slices.iter().map(|s| s.end_us - s.start_us).sum::<f64>() / 1e6;
    }
    let named = |name| timeline.slices.iter().filter(move |s| s.name == name);
    assert!(named("fill").next().unwrap().end_us <= named("copy").next().unwrap().start_us);
    assert!(named("update").all(|s| s.start_us >= named("add").next().unwrap().end_us));
    for (lane, (&reported, summed)) in report.lane_busy_seconds.iter().zip(busy).enumerate() {
        assert!((reported - summed).abs() < 1e-9, "lane {lane}: {reported} against {summed}");
        assert!(reported <= report.seconds);
    }
    let plain = tiny.executor(ExecutorOptions { threads: 1, ..Default::default() });
    let [ticket] = <[_; 1]>::try_from(tiny.issue(&plain, &[program])).unwrap();
    assert!(ticket.wait().unwrap().timeline.is_none());
}
