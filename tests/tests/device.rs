//! The executor of devices with streams, on a device that is none: whatever its streams' and host lanes' pace, it computes
//! the bits that the CPU executor does; and it stops in order.

use megatrain_base::DType;
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_cuda::StreamOptions;
use megatrain_exec::Delay;
use megatrain_layers::Activations;
use megatrain_planner::{ActivationChoice, HostTask, Settings, SlotCount, UpdatePolicy};
use megatrain_scheduler::{HostTasks, LaneId, TaskError};
use megatrain_tests::batch::random_steps;
use megatrain_tests::fake::FakeGpu;
use megatrain_tests::rig::{Optim, Outcome, Rig};
use megatrain_tests::small;
use megatrain_trainer::setup::Source;
use std::time::Duration;

const TOKENS: usize = 12;

fn source() -> Source {
    small::family("qwen3", 4)
}

fn settings() -> Vec<(&'static str, Settings)> {
    let base = |dtype| Settings { group: Some(2), ..Settings::new(dtype, TOKENS, 3) };
    let level = |level| ActivationChoice::All(level);
    vec![
        ("f32, everything resident", Settings { slots: SlotCount::All, ..base(DType::F32) }),
        ("bf16, two slots", base(DType::Bf16)),
        (
            "f32, recomputed, spilled",
            Settings { activations: level(Activations::Recompute), spill: true, ..base(DType::F32) },
        ),
        (
            "bf16, kept, spilled, groups of one",
            Settings { activations: level(Activations::Keep), spill: true, group: Some(1), ..base(DType::Bf16) },
        ),
        ("bf16, eager", Settings { update: UpdatePolicy::Eager, ..base(DType::Bf16) }),
    ]
}

fn train(rig: &Rig, source: &Source) -> Outcome {
    rig.train(&random_steps(&[3, 3, 2, 3], TOKENS, source.model.config.vocab, 4), Optim::lr(1e-2))
}

fn on_cpu(source: &Source, settings: &Settings) -> Outcome {
    let executor = ExecutorOptions { mode: Mode::Inline, threads: 1, ..ExecutorOptions::default() };
    train(&Rig::on_cpu(source, settings.clone(), executor), source)
}

#[test]
fn streams_give_the_bits_of_the_cpu_executor_at_any_pace() {
    let source = source();
    for (name, settings) in settings() {
        let reference = on_cpu(&source, &settings);
        for (seed, jitter_us) in [(1, 0), (2, 20), (3, 100), (4, 300)] {
            let options =
                StreamOptions { threads: 2, poison: seed % 2 == 0, trace: seed == 3, ..StreamOptions::default() };
            let rig = Rig::on_backend(&source, settings.clone(), FakeGpu::new(seed, jitter_us), options);
            assert_eq!(train(&rig, &source).difference(&reference), None, "{name}, seed {seed}");
        }
    }
}

/// deepspeedai/DeepSpeed#5545, #8061, pull 7965: any one lane far behind the others.
#[test]
fn a_late_lane_changes_no_bit() {
    let source = source();
    let (name, settings) = settings().swap_remove(3);
    let reference = on_cpu(&source, &settings);
    let lanes = Rig::on_cpu(&source, settings.clone(), ExecutorOptions::default()).plan().contract().lanes.len();
    for late in 0..lanes as u16 {
        let delay = Delay::new(move |lane| Duration::from_micros(if lane == LaneId(late) { 300 } else { 0 }));
        let options = StreamOptions { threads: 1, poison: true, delay: Some(delay), ..StreamOptions::default() };
        let rig = Rig::on_backend(&source, settings.clone(), FakeGpu::new(1, 0), options);
        assert_eq!(train(&rig, &source).difference(&reference), None, "{name}, lane {late} late");
    }
}

#[test]
fn reports_name_every_command_once_and_busy_times_add_up() {
    let source = source();
    let (_, settings) = settings().swap_remove(1);
    let micros = random_steps(&[3], TOKENS, source.model.config.vocab, 4).remove(0);
    let run = |trace| {
        let options = StreamOptions { threads: 1, trace, ..StreamOptions::default() };
        let rig = Rig::on_backend(&source, settings.clone(), FakeGpu::new(7, 50), options);
        let program = rig.plan().train(3).unwrap();
        let (_, report) = rig.issue(&micros, Optim::lr(1e-3)).wait().unwrap();
        (program, report)
    };
    let (program, traced) = run(true);
    let timeline = traced.timeline.expect("a trace was asked for");
    let commands = program.commands.iter().filter(|entry| !matches!(entry.cmd.name(), "record" | "wait"));
    assert_eq!(timeline.slices.len(), commands.count());
    for (lane, busy) in traced.lane_busy_seconds.iter().enumerate() {
        let slices = timeline.slices.iter().filter(|slice| slice.lane == LaneId(lane as u16));
        let sum: f64 = slices.map(|slice| (slice.end_us - slice.start_us) / 1e6).sum();
        assert!((sum - busy).abs() < 1e-9 && *busy > 0.0, "lane {lane}: {sum} and {busy}");
        assert!(*busy <= traced.seconds, "lane {lane}");
    }
    let (_, plain) = run(false);
    assert!(plain.timeline.is_none());
    assert!(plain.lane_busy_seconds.iter().all(|&busy| busy > 0.0 && busy <= plain.seconds), "{plain:?}");
}

#[test]
fn a_failed_host_task_stops_everything_and_is_named() {
    let source = source();
    for (_, settings) in settings() {
        let micros = random_steps(&[3], TOKENS, source.model.config.vocab, 4).remove(0);
        let options = StreamOptions { threads: 1, ..StreamOptions::default() };
        let rig = Rig::on_backend(&source, settings, FakeGpu::new(5, 50), options);
        let error = rig
            .step_changed(&micros, Optim::lr(1e-3), |task, operands, tasks| match task {
                HostTask::CollectLoss { micro: 1, .. } => Err(TaskError("the disk is full".into())),
                _ => tasks.run(task, operands),
            })
            .unwrap_err();
        assert!(error.contains("`collect_loss`") && error.contains("the disk is full"), "{error}");
        let again = rig.step_changed(&micros, Optim::lr(1e-3), |task, operands, tasks| tasks.run(task, operands));
        let again = again.unwrap_err();
        assert!(again.contains("stopped before it") && again.contains("the disk is full"), "{again}");
    }
}

#[test]
fn a_panic_in_a_host_task_is_a_failure_and_hangs_nothing() {
    let source = source();
    let (_, settings) = settings().swap_remove(0);
    let micros = random_steps(&[3], TOKENS, source.model.config.vocab, 4).remove(0);
    let rig = Rig::on_backend(&source, settings, FakeGpu::new(5, 50), StreamOptions::default());
    let error = rig.step_changed(&micros, Optim::lr(1e-3), |task, operands, tasks| match task {
        HostTask::Update { .. } => panic!("an index out of range"),
        _ => tasks.run(task, operands),
    });
    let error = error.unwrap_err();
    assert!(error.contains("`update`") && error.contains("panicked: an index out of range"), "{error}");
}

#[test]
fn a_fault_of_the_device_is_told_and_with_debug_sync_its_command_is_named() {
    let source = source();
    let (_, settings) = settings().swap_remove(1);
    let micros = random_steps(&[3], TOKENS, source.model.config.vocab, 4).remove(0);
    let fails = |debug_sync| {
        let options = StreamOptions { threads: 1, debug_sync, ..StreamOptions::default() };
        let rig = Rig::on_backend(&source, settings.clone(), FakeGpu::new(5, 50).failing_at(40), options);
        let program = rig.plan().train(3).unwrap();
        let launches = program.commands.iter().filter(|entry| matches!(entry.cmd, megatrain_scheduler::Cmd::Launch(_)));
        let culprit =
            launches.clone().nth(40).map(|entry| format!("`{}` ({})", entry.cmd.name(), entry.label)).unwrap();
        let error = format!("{:#}", rig.issue(&micros, Optim::lr(1e-3)).wait().unwrap_err());
        (culprit, error)
    };
    let (culprit, error) = fails(true);
    assert!(error.contains(&culprit) && error.contains("illegal memory access"), "{culprit}: {error}");
    let (_, error) = fails(false);
    assert!(error.contains("--debug-sync") && error.contains("illegal memory access"), "{error}");
}

/// Events are used again after some steps; a step's waits must still mean its own recordings.
#[test]
fn many_steps_in_a_row_stay_right() {
    let source = small::family("qwen2", 2);
    let settings = Settings::new(DType::F32, 8, 1);
    let steps = random_steps(&[1; 60], 8, source.model.config.vocab, 4);
    let cpu = ExecutorOptions { mode: Mode::Inline, threads: 1, ..ExecutorOptions::default() };
    let reference = Rig::on_cpu(&source, settings.clone(), cpu).train(&steps, Optim::lr(1e-2));
    let options = StreamOptions { threads: 1, ..StreamOptions::default() };
    let rig = Rig::on_backend(&source, settings, FakeGpu::new(9, 30), options);
    assert_eq!(rig.train(&steps, Optim::lr(1e-2)).difference(&reference), None);
}
