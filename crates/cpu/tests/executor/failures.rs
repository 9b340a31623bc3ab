//! The first failure is told in full, stops everything behind it, and hangs or panics nobody.

use crate::tiny::{COMPUTE, H2D, Kind, Task, Tasks, Tiny, UPDATE, label};
use megatrain_base::{DType, Tensor};
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_exec::{ExecError, Reason};
use megatrain_ops::{GatherRows, Op};
use megatrain_scheduler::{Phase, Program};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MODES: [Mode; 4] = [Mode::Inline, Mode::Threads, Mode::Shuffle(1), Mode::Shuffle(2)];

/// A failing task, then a task that depends on it.
fn failing(tiny: &Tiny, task: Task) -> Arc<Program<Op, Task>> {
    let mut b = tiny.builder("failing");
    b.label(label(Phase::Update, 7));
    b.host(UPDATE, task);
    b.host(UPDATE, Task::Accumulate { result: tiny.weights[0], state: tiny.state });
    Arc::new(b.finish().unwrap())
}

fn check(task: impl Fn(&Tiny) -> Task, expected: &[&str], started: usize) {
    for mode in MODES {
        let tiny = Tiny::new();
        let executor = tiny.executor(ExecutorOptions { mode, threads: 2, ..Default::default() });
        let tasks = Tasks { step: 41, ..Tasks::default() };
        let before = executor.run(tiny.program(Kind::Train), Arc::new(Tasks::default())).unwrap();
        before.wait().unwrap();
        let first = executor.run(failing(&tiny, task(&tiny)), Arc::new(tasks.clone())).unwrap();
        let error = first.wait().unwrap_err();
        let text = error.to_string();
        for part in expected.iter().chain(&["program `failing`", "Update unit 7 micro-batch 0", "on lane "]) {
            assert!(text.contains(part), "{mode:?}: {part} in: {text}");
        }
        assert_eq!(tasks.started.load(Ordering::SeqCst), started, "{mode:?}: no host task starts after the failure");
        let refused = executor.run(tiny.program(Kind::Train), Arc::new(tasks.clone())).unwrap_err();
        let ExecError::Stopped { first, .. } = &refused else { panic!("{refused}") };
        assert_eq!(**first, error);
        assert!(refused.to_string().contains("program `train` did not run"), "{refused}");
        assert_eq!(tasks.started.load(Ordering::SeqCst), started, "{mode:?}");
    }
}

#[test]
fn a_task_that_fails_is_reported_with_its_place() {
    check(|t| Task::Fail { touch: t.weights[0] }, &["`fail`", "(0.0/update)", "failed: the disk is full"], 1);
}

#[test]
fn a_task_that_panics_is_reported_the_same_way() {
    check(|t| Task::Panic { touch: t.weights[0] }, &["`panic`", "panicked: index 41 out of range"], 1);
}

#[test]
fn a_kernel_that_panics_is_reported_too() {
    for mode in MODES {
        let tiny = Tiny::new();
        // Floats taken for row numbers: only the kernel notices that they leave the table.
        let at = tiny.slots[1].span;
        let index = Tensor::new(at.region, at.offset_bytes, DType::I32, [4usize]);
        let mut b = tiny.builder("crooked");
        b.copy(H2D, tiny.weights[0].span, tiny.slots[0].span);
        b.copy(H2D, tiny.weights[1].span, tiny.slots[1].span);
        b.label(label(Phase::Forward, 3));
        b.launch(COMPUTE, GatherRows { x: tiny.slots[0], index, y: tiny.slots[0].at(at.region, 2048) }.into());
        let program = b.finish().unwrap();
        let executor = tiny.executor(ExecutorOptions { mode, threads: 1, ..Default::default() });
        let error = tiny.issue(&executor, &[Arc::new(program)]).remove(0).wait().unwrap_err();
        let ExecError::Failed { reason: Reason::Panic(text), place, .. } = &error else { panic!("{error}") };
        assert!(text.contains("is not in 0..4"), "{text}");
        assert_eq!((place.name, place.lane), ("gather_rows", COMPUTE));
    }
}

#[test]
fn programs_issued_before_the_failure_end_too_and_say_why_they_did_not_run() {
    for mode in [Mode::Threads, Mode::Shuffle(5)] {
        let tiny = Tiny::new();
        let executor = tiny.executor(ExecutorOptions { mode, threads: 2, ..Default::default() });
        let tasks = Arc::new(Tasks::default());
        // Nothing can fail before the gate is open, so everything is issued by then.
        let mut b = tiny.builder("gate");
        b.host(UPDATE, Task::Hold { touch: tiny.weights[0] });
        let gate = executor.run(Arc::new(b.finish().unwrap()), tasks.clone()).unwrap();
        if mode != Mode::Threads {
            tasks.gate.open();
        }
        let bad = executor.run(failing(&tiny, Task::Fail { touch: tiny.weights[0] }), tasks.clone());
        let Ok(bad) = bad else { continue };
        let behind = executor.run(tiny.program(Kind::Train), tasks.clone());
        tasks.gate.open();
        gate.wait().unwrap();
        let error = bad.wait().unwrap_err();
        // In shuffle mode the failure may have come before the last program was issued.
        let text = behind.and_then(|ticket| ticket.wait()).unwrap_err().to_string();
        assert!(text.contains("program `train` did not run") && text.contains(&error.to_string()), "{text}");
    }
}

#[test]
fn an_executor_with_failed_and_unfinished_programs_can_be_dropped() {
    for mode in MODES {
        let tiny = Tiny::new();
        let executor = tiny.executor(ExecutorOptions { mode, threads: 1, ..Default::default() });
        let tasks = Arc::new(Tasks::default());
        let ticket = executor.run(failing(&tiny, Task::Panic { touch: tiny.weights[0] }), tasks.clone()).unwrap();
        drop(executor.run(tiny.program(Kind::Train), tasks));
        drop(executor);
        assert!(ticket.is_finished());
        ticket.wait().unwrap_err();
    }
}
