//! Lanes that are late, memory that is poisoned, programs that overlap: results stay the same bits.

use megatrain_base::DType;
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_exec::Delay;
use megatrain_planner::{Settings, UpdatePolicy};
use megatrain_scheduler::LaneId;
use megatrain_tests::batch::random_steps;
use megatrain_tests::rig::{Optim, Rig};
use megatrain_tests::small;
use std::time::Duration;

/// deepspeedai/DeepSpeed#5545, #8061, pull 7965, meta-pytorch/torchtune#1867, #2683: a late lane finds its bytes as they
/// were, whichever lane it is; what was freed is not written over before it was read.
#[test]
fn a_slow_lane_changes_no_bit() {
    let source = small::family("qwen3", 3);
    let steps = random_steps(&[2, 2, 2], 12, source.model.config.vocab, 4);
    for (dtype, update, spill, group) in [
        (DType::F32, UpdatePolicy::AfterNorm, true, 2),
        (DType::Bf16, UpdatePolicy::Eager, true, 1),
        (DType::Bf16, UpdatePolicy::AfterNorm, false, 1),
    ] {
        let settings = Settings { update, spill, group: Some(group), ..Settings::new(dtype, 12, 2) };
        let train = |executor: ExecutorOptions| {
            let executor = ExecutorOptions { threads: 2, ..executor };
            Rig::new(&source, settings.clone(), executor).train(&steps, Optim::lr(1e-2))
        };
        let inline = train(ExecutorOptions { mode: Mode::Inline, ..ExecutorOptions::default() });
        let lanes = Rig::new(&source, settings.clone(), ExecutorOptions::default()).plan().contract().lanes.len();
        for slow in 0..lanes as u16 {
            for poison in [false, true] {
                let delay = Delay::new(move |lane| Duration::from_micros(if lane == LaneId(slow) { 100 } else { 0 }));
                let delay = Some(delay);
                let outcome =
                    train(ExecutorOptions { mode: Mode::Threads, poison, delay, ..ExecutorOptions::default() });
                let difference = outcome.difference(&inline);
                assert_eq!(difference, None, "{dtype} {update:?}, lane {slow} slow, poison {poison}");
            }
        }
    }
}

/// paiml/entrenar#257: nothing is read that was not written, in the first step or a later one, and every tensor learns.
#[test]
fn poisoned_memory_changes_no_bit_and_every_tensor_is_trained() {
    for family in ["llama3", "llama_tied", "mistral", "qwen2", "qwen3"] {
        let source = small::family(family, 2);
        let steps = random_steps(&[3, 1, 2], 12, source.model.config.vocab, 4);
        for (dtype, spill) in [(DType::F32, false), (DType::Bf16, true)] {
            let train = |poison| {
                let executor = ExecutorOptions { mode: Mode::Inline, poison, threads: 1, ..ExecutorOptions::default() };
                let settings = Settings { spill, group: Some(2), ..Settings::new(dtype, 12, 3) };
                let rig = Rig::new(&source, settings, executor);
                (rig.state(), rig.train(&steps, Optim::lr(1e-2)))
            };
            let ((start, clean), (_, poisoned)) = (train(false), train(true));
            assert_eq!(poisoned.difference(&clean), None, "{family} {dtype}");
            for ((name, [before, ..]), (_, [after, ..])) in start.tensors.iter().zip(&poisoned.state.tensors) {
                assert_ne!(before, after, "{family} {dtype}: {name} was not trained");
                let finite = after.iter().all(|&bits| f32::from_bits(bits).is_finite());
                assert!(finite, "{family} {dtype}: {name}");
            }
        }
    }
}
