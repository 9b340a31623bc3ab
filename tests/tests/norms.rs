//! Gradients that are not finite, clipping, and the global norm.

use megatrain_base::{DType, Element, Operands, bf16};
use megatrain_cpu::{ExecutorOptions, Mode, kernels};
use megatrain_ops::{Op, harness};
use megatrain_optim::{Grad, SkipReason, SquareSum, Verdict};
use megatrain_planner::{HostTask, Settings, UpdatePolicy};
use megatrain_scheduler::{HostTasks, TaskError};
use megatrain_tests::batch::random_steps;
use megatrain_tests::compare::relative;
use megatrain_tests::rig::{Optim, Rig};
use megatrain_tests::runs::{lines, run};
use megatrain_tests::small;
use megatrain_trainer::tasks::StepTasks;

const TOKENS: usize = 12;

fn rig(family: &str, settings: Settings) -> Rig {
    let executor = ExecutorOptions { mode: Mode::Inline, poison: true, threads: 1, ..ExecutorOptions::default() };
    Rig::new(&small::family(family, 2), settings, executor)
}

/// The ordinary tasks, but the embedding's gradient is one bad element among zeros.
fn one_bad_element(
    value: f32,
) -> impl Fn(&HostTask, &Operands<'_>, &StepTasks) -> Result<(), TaskError> + Send + Sync + 'static {
    move |task, operands, tasks| match task {
        HostTask::ScatterEmbedding { table, first: true, .. } => {
            let table = operands.write::<f32>(table);
            table.fill(0.0);
            table[5] = value;
            Ok(())
        }
        _ => tasks.run(task, operands),
    }
}

/// deepspeedai/DeepSpeed#8415, pull 8035, #5241
#[test]
fn one_bad_gradient_element_skips_the_whole_step() {
    for dtype in [DType::F32, DType::Bf16] {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let (rig, other) =
                (rig("qwen3", Settings::new(dtype, TOKENS, 1)), rig("qwen3", Settings::new(dtype, TOKENS, 1)));
            let steps = random_steps(&[1, 1], TOKENS, 59, 2);
            let optim = Optim::lr(1e-2).clip(1.0);
            rig.step(&steps[0], optim);
            let before = rig.state();
            let result = rig.step_changed(&steps[1], optim, one_bad_element(value)).unwrap();
            match result.verdict {
                Some(Verdict::Skip(SkipReason::NonFiniteGradient { count: 1, norm })) => {
                    assert_eq!(norm.is_nan(), value.is_nan(), "{norm}");
                    assert!(!norm.is_finite());
                }
                other => panic!("{dtype} {value}: {other:?}"),
            }
            assert!(!result.grad_norm().is_finite(), "a norm that is none is not turned into a number");
            assert_eq!(rig.state().difference(&before), None, "{dtype} {value}");
            // What follows is as if the step had never been.
            rig.step(&steps[1], optim);
            other.train(&steps, optim);
            assert_eq!(rig.state().difference(&other.state()), None, "{dtype} {value}: the step after");
        }
    }
}

/// huggingface/trl#6702
#[test]
fn a_nan_weight_is_reported_and_changes_nothing_else() {
    for update in [UpdatePolicy::AfterNorm, UpdatePolicy::Eager] {
        let rig = rig("qwen2", Settings { update, ..Settings::new(DType::F32, TOKENS, 2) });
        let micros = &random_steps(&[2], TOKENS, 101, 2)[0];
        let weight = rig.weight("model.layers.1.mlp.down_proj.weight").rows(3, 1);
        rig.session().executor().write(&weight, &vec![f32::NAN; weight.elems()]).unwrap();
        let before = rig.state();
        let result = rig.step(micros, Optim::lr(1e-2));
        assert!(result.loss_sum().is_nan());
        assert!(
            matches!(result.verdict, Some(Verdict::Skip(SkipReason::NonFiniteGradient { .. }))),
            "{:?}",
            result.verdict
        );
        assert_eq!(rig.state().difference(&before), None, "{update:?}");
    }
}

/// Eager updates cannot be taken back: the run must end, and say what is left.
#[test]
fn the_eager_policy_says_that_the_model_is_torn() {
    let rig = rig("qwen3", Settings { update: UpdatePolicy::Eager, ..Settings::new(DType::F32, TOKENS, 1) });
    let micros = &random_steps(&[1], TOKENS, 59, 2)[0];
    let error = rig.step_changed(micros, Optim::lr(1e-2), one_bad_element(f32::INFINITY)).unwrap_err();
    for part in ["1 NaN or infinite", "torn at unit 0", "--update after-norm"] {
        assert!(error.contains(part), "{error}");
    }
    let program = rig.plan().train(1).unwrap();
    assert!(rig.session().issue(&program, rig.tasks(micros, Optim::lr(1e-2))).is_err(), "the executor goes on");
}

/// meta-pytorch/torchtune#1977, #1934, pytorch/pytorch#148532: `clip_grad_norm_` multiplies by
/// `min(1, max_norm / (norm + 1e-6))`, every parameter counted once, after accumulation. The first moment after one step
/// is `(1 - beta1)` times what AdamW was handed, so it shows the factor to the bit.
#[test]
fn clipping_is_pytorchs() {
    for (family, group, max_norm) in [("qwen2", 1, 0.1), ("qwen2", 4, 0.1), ("qwen3", 2, 0.1), ("qwen3", 4, 1e9)] {
        let rig = rig(family, Settings { group: Some(group), ..Settings::new(DType::F32, TOKENS, 4) });
        let vocab = rig.plan().model.config.vocab;
        let result = rig.step(&random_steps(&[4], TOKENS, vocab, 2)[0], Optim::lr(1e-3).clip(max_norm));
        let names: Vec<String> = rig.tensors().map(|(_, t)| t.name.clone()).collect();
        let gradients: Vec<Vec<f32>> = names.iter().map(|name| rig.gradient(name)).collect();
        let norm = gradients.iter().flatten().map(|&g| (g as f64).powi(2)).sum::<f64>().sqrt();
        // Sums of squares in f64, in another order.
        assert!(relative(result.grad_norm(), norm) < 1e-12, "{} and {norm}", result.grad_norm());
        let scale = (max_norm / (norm + 1e-6)).min(1.0);
        assert!(matches!(result.verdict, Some(Verdict::Apply { scale: s, .. }) if relative(s, scale) < 1e-12));
        assert_eq!(scale < 1.0, max_norm < 1.0, "the norm is {norm}");
        for (name, gradient) in names.iter().zip(&gradients) {
            let want: Vec<f32> = gradient.iter().map(|g| (1.0 - 0.9f64) as f32 * (scale as f32 * g)).collect();
            assert_eq!(rig.moments(name)[0], want, "{family} {name}");
        }
    }
}

/// deepspeedai/DeepSpeed#8415
#[test]
fn a_run_that_diverges_says_so_and_ends() {
    let source = small::family("qwen2", 2);
    let documents = lines((0..16).map(|i| (0..8).map(|t| (i * 7 + t * t) % 101).collect()));
    let run = run(&source, documents, |o| {
        // Weights of this size overflow in the first product of two of them.
        (o.batch_size, o.lr, o.weight_decay) = (Some(1), Some(1e18), Some(0.0));
    });
    let error = format!("{:#}", run.summary.as_ref().unwrap_err());
    assert!(error.contains("10 steps in a row") && error.contains("--lr"), "{error}");
    assert_eq!(run.metrics.len(), 11);
    assert!(run.metrics[0]["loss"].is_number() && run.metrics[0]["skipped"].is_null());
    for line in &run.metrics[1..] {
        assert!(line["skipped"].as_str().unwrap().contains("NaN or infinite"), "{line}");
        assert!(line["grad_norm"] == "NaN" || line["grad_norm"] == "inf", "{line}");
    }
    assert!(!run.model().exists(), "a run that failed saves no model");
}

#[test]
fn the_op_and_the_optimizer_sum_squares_to_the_same_bits() {
    let mut count = 0;
    for case in Op::all_cases() {
        let Op::SquareSum(op) = case.op else { continue };
        let report = harness::check(&case, |_, memory| {
            let bytes = memory.bytes(op.x.span.region).to_vec();
            let sum = match op.x.dtype {
                DType::F32 => SquareSum::of(Grad::F32(&numbers(&bytes, f32::from_ne_bytes))),
                _ => SquareSum::of(Grad::Bf16(&numbers(&bytes, bf16::from_ne_bytes))),
            };
            kernels::run(&case.op, &memory.operands(&case.op));
            let part = numbers(memory.bytes(op.part.span.region), f64::from_ne_bytes);
            assert_eq!(part[0].to_bits(), sum.sum.to_bits(), "{}: {} and {}", case.name, part[0], sum.sum);
            assert_eq!(part[1], sum.nonfinite as f64, "{}", case.name);
            Ok(())
        });
        report.unwrap_or_else(|error| panic!("{error}"));
        count += 1;
    }
    assert!(count > 20, "{count} cases");
}

fn numbers<T: Element, const N: usize>(bytes: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&b| read(b)).collect()
}
