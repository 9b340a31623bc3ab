//! Programs damaged by hand: a missing wait, a missing copy, a recycled buffer, a task that forgets to write.

use crate::tiny::{DATA, Kind, Task, Tasks, Tiny, UPDATE, expected};
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_exec::{ExecError, Reason};
use megatrain_ops::Op;
use megatrain_scheduler::{Cmd, LaneId, Program};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Tinys = Program<Op, Task>;

fn without(program: &Tinys, index: usize) -> Arc<Tinys> {
    let mut damaged = program.clone();
    damaged.commands.remove(index);
    Arc::new(damaged)
}

fn indices(program: &Tinys, of: impl Fn(&Cmd<Op, Task>) -> bool) -> Vec<usize> {
    (0..program.commands.len()).filter(|&i| of(&program.commands[i].cmd)).collect()
}

/// Every wait that the builder left is needed, so some order without it must give other bits.
#[test]
fn shuffle_shows_every_single_missing_wait() {
    let tiny = Tiny::new();
    let [program, evaluate, touch] = [Kind::Train, Kind::Evaluate, Kind::Touch].map(|kind| tiny.program(kind));
    let kinds = [Kind::Touch, Kind::Train, Kind::Evaluate, Kind::Train, Kind::Train, Kind::Touch, Kind::Train];
    let good = expected(&kinds);
    let waits = indices(&program, |cmd| matches!(cmd, Cmd::Wait(_)));
    assert!(waits.len() > 20, "{} waits", waits.len());
    for wait in waits {
        let damaged = without(&program, wait);
        let sequence = kinds.map(|kind| match kind {
            Kind::Train => damaged.clone(),
            Kind::Evaluate => evaluate.clone(),
            Kind::Touch => touch.clone(),
        });
        let shows = |seed| {
            let options = ExecutorOptions { mode: Mode::Shuffle(seed), threads: 1, ..Default::default() };
            tiny.outcome(&sequence, options) != Ok(good.clone())
        };
        assert!((0..300).any(shows), "nothing shows that command {wait} is missing: {:?}", program.commands[wait]);
    }
}

#[test]
fn threads_report_a_race_with_both_commands_and_run_neither_on_the_others_bytes() {
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { threads: 2, ..Default::default() });
    let one = |lane: LaneId, task| {
        let mut b = tiny.builder(if lane == UPDATE { "holder" } else { "intruder" });
        b.host(lane, task);
        b.finish().unwrap()
    };
    let tasks = Arc::new(Tasks::default());
    let holder = Arc::new(one(UPDATE, Task::Hold { touch: tiny.state }));
    let mut intruder = one(DATA, Task::Open { touch: tiny.state });
    let waits = indices(&intruder, |cmd| matches!(cmd, Cmd::Wait(_)));
    assert_eq!(waits.len(), 1);
    intruder.commands.remove(waits[0]);
    let holder = executor.run(holder, tasks.clone()).unwrap();
    // Lanes start at their own pace; give the holder time to hold.
    std::thread::sleep(Duration::from_millis(100));
    let intruder = executor.run(Arc::new(intruder), tasks.clone()).unwrap();
    let error = intruder.wait().unwrap_err();
    tasks.gate.open();
    let ExecError::Failed { reason: Reason::Race(race), place, .. } = &error else { panic!("{error}") };
    assert_eq!((place.name, race.other.name), ("open", "hold"));
    let text = error.to_string();
    for part in ["program `intruder`", "`open`", "(0.0/data)", "races for r0[768..832]", "`hold`", "`holder`"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    // The holder had begun before the failure and is whole.
    holder.wait().unwrap();
}

#[test]
fn poison_shows_every_missing_copy_and_stale_bytes_would_have_hidden_one() {
    let tiny = Tiny::new();
    let evaluate = tiny.program(Kind::Evaluate);
    let good = expected(&[Kind::Evaluate]);
    let run = |program: &Arc<Tinys>, mode, poison| {
        let options = ExecutorOptions { mode, poison, threads: 1, ..Default::default() };
        let executor = tiny.executor(options);
        for (program, step) in [(&evaluate, 0), (program, 0)] {
            let tasks = Arc::new(Tasks { step, ..Tasks::default() });
            executor.run(program.clone(), tasks).unwrap().wait().unwrap();
        }
        tiny.bits(&executor)
    };
    let twice = run(&evaluate, Mode::Inline, true);
    assert_ne!(twice, good);
    let mut hidden = 0;
    for copy in indices(&evaluate, |cmd| matches!(cmd, Cmd::Copy { .. })) {
        let damaged = without(&evaluate, copy);
        for mode in [Mode::Inline, Mode::Threads, Mode::Shuffle(copy as u64)] {
            let bits = run(&damaged, mode, true);
            assert_ne!(bits, twice, "missing copy {copy} in {mode:?}");
            // A slot that is used twice holds the other unit's weights, anything else is poison.
            let nan = bits.iter().any(|&b| f32::from_bits(b).is_nan());
            assert!(nan || copy == refill(&tiny, &evaluate), "missing copy {copy} in {mode:?}");
        }
        hidden += (run(&damaged, Mode::Inline, false) == twice) as usize;
    }
    assert!(hidden > 0, "without poison, what the last program left in a buffer passes for the copy");
}

/// The copy of unit 2 to the slot where unit 0 was.
fn refill(tiny: &Tiny, program: &Tinys) -> usize {
    let refill = indices(program, |cmd| matches!(cmd, Cmd::Copy { src, .. } if *src == tiny.weights[2].span));
    assert_eq!(refill.len(), 1);
    refill[0]
}

#[test]
fn a_recycled_slot_holds_the_other_units_weights_when_its_copy_is_missing() {
    let tiny = Tiny::new();
    let program = tiny.program(Kind::Evaluate);
    let damaged = without(&program, refill(&tiny, &program));
    for mode in [Mode::Inline, Mode::Threads, Mode::Shuffle(3)] {
        let options = ExecutorOptions { mode, threads: 1, poison: true, ..Default::default() };
        let executor = tiny.executor(options);
        tiny.issue(&executor, std::slice::from_ref(&damaged)).remove(0).wait().unwrap();
        let slot: Vec<f32> = executor.read(&tiny.slots[0]).unwrap();
        assert_eq!(slot, executor.read::<f32>(&tiny.weights[0]).unwrap(), "{mode:?}");
        assert_ne!(tiny.bits(&executor), expected(&[Kind::Evaluate]), "{mode:?}");
    }
}

#[test]
fn poison_shows_a_task_that_does_not_write_what_it_declares() {
    let tiny = Tiny::new();
    let mut b = tiny.builder("forgetful");
    b.host(UPDATE, Task::Forgets { touch: tiny.weights[1] });
    let program = Arc::new(b.finish().unwrap());
    for (poison, shows) in [(false, false), (true, true)] {
        let executor = tiny.executor(ExecutorOptions { poison, threads: 1, ..Default::default() });
        tiny.issue(&executor, std::slice::from_ref(&program)).remove(0).wait().unwrap();
        let weights: Vec<f32> = executor.read(&tiny.weights[1]).unwrap();
        assert_eq!(weights.iter().all(|w| w.is_nan()), shows);
    }
}

#[test]
fn two_hundred_programs_in_flight_lose_no_wake_up() {
    // A long chain over all lanes, many times: a lost wake-up would hang here.
    let tiny = Tiny::new();
    let executor = tiny.executor(ExecutorOptions { threads: 2, ..Default::default() });
    let start = Instant::now();
    let programs = vec![tiny.program(Kind::Train); 200];
    tiny.issue(&executor, &programs).into_iter().for_each(|t| _ = t.wait().unwrap());
    assert_eq!(tiny.bits(&executor), expected(&[Kind::Train; 200]));
    assert!(start.elapsed() < Duration::from_secs(60));
}
