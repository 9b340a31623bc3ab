//! Every golden family through the whole stack (model directory, plan, memory, executor, optimizer) against PyTorch, f32.

use megatrain_base::DType;
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_data::{IGNORE, MicroBatch};
use megatrain_planner::Settings;
use megatrain_tests::batch::{document, micro};
use megatrain_tests::compare::{assert_near, forward_roundings, gradient_roundings, relative, rounding};
use megatrain_tests::golden::Golden;
use megatrain_tests::rig::{Optim, Rig};

fn rig(golden: &Golden, tokens: usize, micros: usize) -> Rig {
    let executor = ExecutorOptions { mode: Mode::Inline, poison: true, threads: 1, ..ExecutorOptions::default() };
    Rig::new(&golden.source, Settings { logits_rows: 10, ..Settings::new(DType::F32, tokens, micros) }, executor)
}

#[test]
fn logits_are_pytorchs() {
    for golden in Golden::all() {
        let (rig, batch) = (rig(&golden, golden.tokens(), 1), golden.batch(0));
        let ours: Vec<f32> = (0..golden.tokens()).flat_map(|row| rig.logits(&batch, row)).collect();
        let bound = rounding(forward_roundings(golden.config(), golden.tokens()));
        let apart = assert_near(&golden.name, &ours, &golden.floats("logits"), bound);
        println!("{}: logits {apart:.1e} of {bound:.1e}", golden.name);
    }
}

/// How far apart ten steps of AdamW may end, as a share of how far they went, when gradients are `error` apart.
///
/// A step moves a weight by about `lr` whatever its gradient's size, so where a gradient is within its own error of 0 the
/// step may go the other way. Errors are of one size in all of a tensor, `error` times its root mean square, and a gradient
/// that varies from batch to batch by about `g` lies within `e` of 0 in a share of about `2 e / g` of the steps.
/// The squares of those turns are `min(1, 2 e / g)` of the square of the path; `g` is taken from the first
/// batch, or from the tensor where that is 0 (rows of tokens that did not occur). Key biases need this: dimensions that
/// rotate slowly have gradients that cancel almost wholly, since softmax does not see what all keys share.
fn path(gradient: &[f32], error: f64) -> f64 {
    let squares: f64 = gradient.iter().map(|&g| (g as f64).powi(2)).sum();
    let rms = (squares / gradient.len() as f64).sqrt();
    let size = |g: f32| if g == 0.0 { rms } else { g.abs() as f64 };
    let turns: f64 = gradient.iter().map(|&g| (2.0 * error * rms / size(g)).min(1.0)).sum();
    (turns / gradient.len() as f64).sqrt()
}

#[test]
fn gradients_and_ten_steps_are_pytorchs() {
    for golden in Golden::all() {
        let (rig, config) = (rig(&golden, golden.tokens(), 1), golden.config());
        let (losses, norms) = (golden.floats("losses"), golden.floats("grad_norms"));
        let bound = rounding(gradient_roundings(config, golden.tokens()));
        let names: Vec<String> = rig.tensors().map(|(_, t)| t.name.clone()).collect();
        let start: Vec<Vec<f32>> = names.iter().map(|name| rig.master(name)).collect();
        let mut worst = [0f64; 3];
        let evaluated = rig.evaluate(&[golden.batch(0)])[0] / golden.batch(0).target_count as f64;
        assert!(relative(evaluated, losses[0] as f64) <= bound, "{}: {evaluated} and {}", golden.name, losses[0]);
        for step in 0..golden.steps() {
            let batch = golden.batch(step);
            let result = rig.step(std::slice::from_ref(&batch), Optim::lr(1e-3).clip(1.0));
            let loss = result.loss_sum() / batch.target_count as f64;
            for (what, ours, theirs) in [("loss", loss, losses[step]), ("norm", result.grad_norm(), norms[step])] {
                let apart = relative(ours, theirs as f64);
                assert!(apart <= bound, "{} step {step}: {what} {ours} and {theirs}", golden.name);
                worst[0] = worst[0].max(apart / bound);
            }
            for name in names.iter().filter(|_| step == 0) {
                let what = format!("{} gradient of {name}", golden.name);
                let apart = assert_near(&what, &rig.gradient(name), &golden.floats(&format!("grad.{name}")), bound);
                worst[1] = worst[1].max(apart / bound);
            }
        }
        for (name, start) in names.iter().zip(&start) {
            let moved = |end: Vec<f32>| end.iter().zip(start).map(|(e, s)| e - s).collect::<Vec<f32>>();
            let theirs = moved(golden.floats(&format!("after.{name}")));
            let what = format!("{} path of {name}", golden.name);
            let bound = path(&golden.floats(&format!("grad.{name}")), bound);
            let apart = assert_near(&what, &moved(rig.master(name)), &theirs, bound);
            worst[2] = worst[2].max(apart / bound);
        }
        println!(
            "{}: of the bounds, losses {:.2}, gradients {:.2}, paths {:.2}",
            golden.name, worst[0], worst[1], worst[2]
        );
    }
}

#[test]
fn packed_documents_are_computed_as_if_alone() {
    for golden in Golden::all() {
        let (config, capacity) = (golden.config(), 24);
        let v = config.vocab as i32;
        let first = document((0..9).map(|i| (i * 7 + 1) % v).collect(), 2);
        let second = document((0..13).map(|i| (i * 5 + 3) % v).collect(), 0);
        let packed = [micro(&[first.clone(), second.clone()], capacity)];
        let apart: Vec<MicroBatch> = [&first, &second].map(|d| micro(std::slice::from_ref(d), capacity)).into();
        let (one, two) = (rig(&golden, capacity, 1), rig(&golden, capacity, 2));
        let (a, b) = (one.step(&packed, Optim::lr(0.0)), two.step(&apart, Optim::lr(0.0)));
        let bound = rounding(gradient_roundings(config, capacity));
        assert!(
            relative(a.loss_sum(), b.loss_sum()) <= bound,
            "{}: {} and {}",
            golden.name,
            a.loss_sum(),
            b.loss_sum()
        );
        for (_, t) in one.tensors() {
            let what = format!("{} gradient of {}", golden.name, t.name);
            assert_near(&what, &one.gradient(&t.name), &two.gradient(&t.name), bound);
        }

        let (one_by_one, group) = (one.evaluate(&apart), two.evaluate(&apart));
        assert_eq!(two.plan().group(), 2);
        assert_eq!(one_by_one, group, "{}: evaluation in groups", golden.name);
        assert_eq!(group, b.loss_sums, "{}: evaluation and training", golden.name);

        // What stands in the first document changes no bit of what is computed for the second, and no later token an
        // earlier one.
        let mut other = packed[0].clone();
        other.tokens[4] = (other.tokens[4] + 1) % v;
        for row in 0..22 {
            let same = one.logits(&packed[0], row) == one.logits(&other, row);
            assert_eq!(same, !(4..9).contains(&row), "{} row {row}", golden.name);
        }
        assert_eq!(packed[0].targets[8], IGNORE, "no target crosses the border");
    }
}
