//! Loss and gradients over several micro-batches: every target counts the same, wherever it stands.

use megatrain_base::DType;
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_data::{Documents, IGNORE, MicroBatch, Random};
use megatrain_optim::{SkipReason, Verdict};
use megatrain_planner::{Settings, UpdatePolicy};
use megatrain_tests::batch::{document, micro, random_document, random_steps};
use megatrain_tests::compare::{assert_near, gradient_roundings, loss_roundings, relative, rounding};
use megatrain_tests::rig::{Optim, Rig};
use megatrain_tests::runs::{Run, lines, run};
use megatrain_tests::small;
use megatrain_trainer::generate::{Generator, Sampling};
use megatrain_trainer::options::{Device, Dtype};
use megatrain_trainer::setup::Source;

const LAYERS: usize = 2;

fn inline() -> ExecutorOptions {
    ExecutorOptions { mode: Mode::Inline, poison: true, threads: 1, ..ExecutorOptions::default() }
}

fn rig(source: &Source, settings: Settings) -> Rig {
    Rig::new(source, settings, inline())
}

/// huggingface/trl#2175, huggingface/transformers#24725
#[test]
fn micro_batches_of_unequal_lengths_are_one_batch() {
    for family in ["qwen2", "qwen3"] {
        let source = small::family(family, LAYERS);
        let (short, long) = (document(vec![3, 9], 0), document(vec![4, 1, 5, 9], 0));
        let merged = [micro(&[short.clone(), long.clone()], 8)];
        let apart = [micro(&[short], 8), micro(&[long], 8)];
        let one = rig(&source, Settings::new(DType::F32, 8, 1));
        let whole = one.step(&merged, Optim::lr(0.0));
        for group in [1, 2] {
            let two = rig(&source, Settings { group: Some(group), ..Settings::new(DType::F32, 8, 2) });
            let parts = two.step(&apart, Optim::lr(0.0));
            let bound = rounding(gradient_roundings(&source.model.config, 4));
            assert!(relative(parts.loss_sum(), whole.loss_sum()) <= bound);
            assert!(relative(parts.grad_norm(), whole.grad_norm()) <= bound);
            let of_means = (parts.loss_sums[0] / 1.0 + parts.loss_sums[1] / 3.0) / 2.0;
            assert!(relative(of_means, whole.loss_sum() / 4.0) > 1e-3, "the case cannot tell a mean of means");
            for (_, t) in one.tensors() {
                assert_near(&t.name, &two.gradient(&t.name), &one.gradient(&t.name), bound);
            }
        }
    }
}

fn masked(batch: &MicroBatch) -> MicroBatch {
    MicroBatch { targets: vec![IGNORE; batch.targets.len()], target_count: 0, ..batch.clone() }
}

/// pytorch/pytorch#70348
#[test]
fn a_micro_batch_without_targets_adds_nothing() {
    let source = small::family("qwen2", LAYERS);
    for dtype in [DType::F32, DType::Bf16] {
        for group in [1, 3] {
            let settings = Settings { group: Some(group), ..Settings::new(dtype, 12, 3) };
            let steps = random_steps(&[2, 2], 12, source.model.config.vocab, 1);
            let plain = rig(&source, settings.clone()).train(&steps, Optim::lr(1e-2).clip(1.0));
            for at in 0..3 {
                let mut steps = steps.clone();
                for micros in &mut steps {
                    let empty = masked(&micros[0]);
                    micros.insert(at, empty);
                }
                let with = rig(&source, settings.clone()).train(&steps, Optim::lr(1e-2).clip(1.0));
                assert_eq!(with.difference(&plain), None, "{dtype}, groups of {group}, masked at {at}");
            }
        }
    }
}

/// allenai/OLMo-core#657
#[test]
fn a_step_without_targets_changes_nothing() {
    let source = small::family("qwen3", LAYERS);
    for (dtype, update) in [
        (DType::F32, UpdatePolicy::AfterNorm),
        (DType::Bf16, UpdatePolicy::AfterNorm),
        (DType::F32, UpdatePolicy::Eager),
        (DType::Bf16, UpdatePolicy::Eager),
    ] {
        let steps = random_steps(&[2, 2], 12, source.model.config.vocab, 1);
        let optim = Optim::lr(1e-2);
        let settings = Settings { update, ..Settings::new(dtype, 12, 2) };
        let (rig, other) = (rig(&source, settings.clone()), rig(&source, settings));
        rig.step(&steps[0], optim);
        let before = rig.state();
        assert_eq!(before.applied, 1);
        let empty: Vec<MicroBatch> = steps[1].iter().map(masked).collect();
        let result = rig.step(&empty, optim);
        assert_eq!(result.verdict, Some(Verdict::Skip(SkipReason::NoTargets)), "{dtype} {update:?}");
        assert_eq!(result.loss_sum(), 0.0);
        assert_eq!(rig.state().difference(&before), None, "{dtype} {update:?}");
        rig.step(&steps[1], optim);
        other.train(&steps, optim);
        assert_eq!(rig.state().difference(&other.state()), None, "{dtype} {update:?}: the step after");
    }
}

fn random_lines(lens: &[usize], vocab: usize) -> Documents {
    let mut random = Random::new(5, 0);
    lines(lens.iter().map(|&len| random_document(&mut random, len, vocab, 0).tokens))
}

/// huggingface/transformers#35204, deepspeedai/DeepSpeed#1107
#[test]
fn the_logged_loss_does_not_depend_on_accumulation() {
    let source = small::family("qwen2", LAYERS);
    let lens = [3, 16, 2, 9, 5, 12, 7, 4];
    let logged = |size: usize| {
        let documents = random_lines(&lens, source.model.config.vocab);
        let run = run(&source, documents, |o| {
            (o.batch_size, o.micro_batch_size, o.lr) = (Some(8), Some(size), Some(0.0));
        });
        assert_eq!(run.metrics.len(), 1);
        assert_eq!(run.metrics[0]["targets"], lens.iter().map(|l| l - 1).sum::<usize>());
        assert_eq!(run.metrics[0]["tokens"], lens.iter().sum::<usize>());
        (run.number(0, "loss"), run.number(0, "grad_norm"))
    };
    let bound = rounding(gradient_roundings(&source.model.config, 16));
    let whole = logged(8);
    for size in [1, 4] {
        let parts = logged(size);
        assert!(relative(parts.0, whole.0) <= bound && relative(parts.1, whole.1) <= bound, "{parts:?} {whole:?}");
    }
}

/// tracel-ai/burn#5695, Lightning-AI/pytorch-lightning#19987
#[test]
fn the_last_window_of_an_epoch_is_a_step_with_its_own_divisor() {
    let source = small::family("qwen2", LAYERS);
    let lens = [3, 16, 2, 9, 5, 12];
    let logged = |lens: &[usize], batch: usize| {
        let run = run(&source, random_lines(lens, source.model.config.vocab), |o| {
            (o.batch_size, o.micro_batch_size, o.lr) = (Some(batch), Some(1), Some(0.0));
        });
        assert_eq!(run.summary().steps as usize, run.metrics.len());
        run
    };
    assert_eq!(logged(&lens[..3], 4).metrics.len(), 1, "three sequences are one step of up to four");
    let (pairs, fours) = (logged(&lens, 2), logged(&lens, 4));
    assert_eq!((pairs.metrics.len(), fours.metrics.len()), (3, 2));
    for key in ["loss", "grad_norm", "targets", "tokens"] {
        assert_eq!(fours.metrics[1][key], pairs.metrics[2][key], "{key} of the last two sequences");
    }
    let sum = |run: &Run, step| run.number(step, "loss") * run.number(step, "targets");
    let (first, parts) = (sum(&fours, 0), sum(&pairs, 0) + sum(&pairs, 1));
    assert!(relative(first, parts) <= rounding(2), "{first} and {parts}");
}

/// A window without targets between others: the run goes on, says so, and learns what it would without it.
#[test]
fn a_run_passes_steps_without_targets() {
    let source = small::family("qwen2", LAYERS);
    let vocab = source.model.config.vocab;
    let random = random_lines(&[6, 6, 6], vocab);
    let lines = random.iter().zip([false, true, false]).map(|(line, learnt)| {
        let tokens = line.tokens.to_vec();
        (tokens.clone(), if learnt { tokens } else { vec![IGNORE; 6] })
    });
    let documents = Documents::from_lines("made for the test", lines).unwrap();
    let run = run(&source, documents, |o| (o.batch_size, o.lr) = (Some(1), Some(1e-3)));
    assert_eq!((run.summary().steps, run.summary().skipped, run.metrics.len()), (3, 2, 3));
    for (line, skipped) in run.metrics.iter().zip([true, false, true]) {
        assert_eq!(line["skipped"].is_string(), skipped, "{line}");
        assert_eq!(line["loss"].is_number(), !skipped, "{line}");
    }
}

/// huggingface/transformers#47394, #35066
#[test]
fn the_next_token_is_learnt() {
    let source = small::family("qwen2", LAYERS);
    let vocab = 16;
    let documents = lines((0..64).map(|i| (0..16).map(|t| (i * 5 + t) % vocab).collect()));
    let run = run(&source, documents, |o| {
        (o.batch_size, o.micro_batch_size, o.lr, o.epochs) = (Some(8), Some(4), Some(1e-2), Some(6));
        o.no_shuffle = None;
    });
    assert!(run.summary().last_loss < 0.2, "loss {}", run.summary().last_loss);
    let trained = Source::open(&run.model()).unwrap();
    let mut generator = Generator::new(&trained, 16, Some(Dtype::F32), Device::Cpu, 1).unwrap();
    let sampling = Sampling { temperature: 0.0, seed: 0 };
    for start in 0..vocab {
        let next = generator.generate(&[start], 8, &[], sampling, |_| {}).unwrap();
        let want: Vec<i32> = (1..=8).map(|t| (start + t) % vocab).collect();
        assert_eq!(next, want, "after {start}");
    }
}

/// huggingface/transformers#39241, karpathy/llm.c#710
#[test]
fn evaluation_does_not_depend_on_its_batch_size() {
    let source = small::family("qwen3", LAYERS);
    let lens: Vec<usize> = (0..23).map(|i| 2 + i * 5 % 14).collect();
    let held_out = |size: usize| {
        let run = run(&source, random_lines(&lens, source.model.config.vocab), |o| {
            (o.batch_size, o.micro_batch_size, o.lr, o.steps) = (Some(8), Some(size), Some(0.0), Some(1));
            o.held_out = Some(0.6);
        });
        let (before, after) = run.summary().held_out.unwrap();
        assert_eq!(before.to_bits(), after.to_bits(), "nothing was learnt in between");
        before
    };
    let bound = rounding(loss_roundings(&source.model.config, 16));
    let one = held_out(1);
    for size in [3, 8] {
        let other = held_out(size);
        assert!(relative(other, one) <= bound, "{size}: {other} and {one}");
    }
}
