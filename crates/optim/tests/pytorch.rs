//! Ten steps against `torch.optim.AdamW` with `clip_grad_norm_`, and schedules against transformers.
//! The numbers come from goldens/generate.py.

mod common;

use common::Golden;
use megatrain_optim::{
    AdamW, DecayCurve, Grad, LrSchedule, ScheduleKind, ScheduleOptions, SquareSum, StepScalars, Verdict, update_f32,
};

const U: f64 = f32::EPSILON as f64 / 2.0;
const STEPS: usize = 10;
const LR: f64 = 1e-2;

/// Trains both tensors of the golden for ten steps and compares weights, moments and norms.
fn check_adamw(name: &str, weight_decay: f64, max_norm: Option<f64>) {
    let golden = Golden::open();
    let adamw = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay };
    let names = ["a", "b"];
    let mut w = names.map(|k| golden.f32(&format!("start.{k}")));
    let grads = names.map(|k| golden.f32(&format!("grads.{k}")));
    let mut m = [vec![0.0; w[0].len()], vec![0.0; w[1].len()]];
    let mut v = m.clone();
    let norms = golden.f32(&format!("{name}.norms"));
    for step in 0..STEPS {
        let g: Vec<&[f32]> = (0..2).map(|i| &grads[i][step * w[i].len()..][..w[i].len()]).collect();
        let total = SquareSum::total(g.iter().map(|g| SquareSum::of(Grad::F32(g))));
        let Verdict::Apply { scale, norm } = Verdict::new(total, 1, max_norm).unwrap() else { panic!("finite") };
        // PyTorch sums up to 63 squares in f32 and takes two roots: some ten roundings in a blocked sum.
        assert!((norm - norms[step] as f64).abs() <= 16.0 * U * norm, "{name}, step {step}: {norm} {}", norms[step]);
        assert!(max_norm.is_some() || scale == 1.0);
        let scalars = StepScalars::new(&adamw, LR, step as u64 + 1, scale).unwrap();
        for i in 0..2 {
            update_f32(&scalars, i == 0, &mut w[i], &mut m[i], &mut v[i], Grad::F32(g[i])).unwrap();
        }
    }
    for (i, k) in names.into_iter().enumerate() {
        let (want, want_m, want_v) = (
            golden.f32(&format!("{name}.{k}")),
            golden.f32(&format!("{name}.{k}.m")),
            golden.f32(&format!("{name}.{k}.v")),
        );
        let scale = |j: usize| (0..STEPS).map(|s| grads[i][s * want.len() + j].abs()).fold(0f32, f32::max) as f64;
        for j in 0..want.len() {
            let close = |what: &str, got: f32, want: f32, bound: f64| {
                let error = (got as f64 - want as f64).abs();
                assert!(error <= bound, "{name}.{k}[{j}] {what}: {got:e} against {want:e}, bound {bound:e}");
            };
            let clip = if max_norm.is_some() { 16.0 } else { 0.0 };
            // A step rounds each moment at most four times (twice here, twice there), at the size of the largest
            // gradient it has seen; a clip factor adds its own relative error to each gradient.
            let largest = if max_norm.is_some() { scale(j).min(1.0) } else { scale(j) };
            close("m", m[i][j], want_m[j], (4.0 * STEPS as f64 + clip) * U * largest);
            close("v", v[i][j], want_v[j], (4.0 * STEPS as f64 + 2.0 * clip) * U * want_v[j] as f64 + 1e-45);
            // A step rounds the weight at most twice in each program, and its own length (below lr * 3: |m| is at most
            // 3 sqrt(v) after bias correction with these betas) by less than 32 U between them.
            let per_step = 4.0 * U * (want[j].abs() as f64 + 3.0 * LR * STEPS as f64) + (32.0 + clip) * U * 3.0 * LR;
            close("w", w[i][j], want[j], STEPS as f64 * per_step);
        }
    }
}

#[test]
fn ten_steps_without_decay() {
    check_adamw("plain", 0.0, None);
}

#[test]
fn ten_steps_with_decay_on_one_tensor() {
    check_adamw("decay", 0.1, None);
}

/// torchtune 1977, pytorch 148532, axolotl 3058: clipping on the host equals `clip_grad_norm_`.
#[test]
fn ten_steps_with_clipping() {
    check_adamw("clip", 0.1, Some(1.0));
}

fn check_schedule(golden_name: &str, kind: ScheduleKind, change: impl FnOnce(&mut ScheduleOptions)) {
    let mut options = ScheduleOptions { warmup_steps: 5, ..ScheduleOptions::new(40) };
    change(&mut options);
    let schedule = LrSchedule::new(kind, options).unwrap();
    let want = Golden::open().f64(golden_name);
    assert!(want.len() > 40);
    for (step, want) in want.into_iter().enumerate() {
        let got = schedule.factor(step as u64);
        // A handful of f64 roundings at size 1 on either side.
        assert!((got - want).abs() <= 8.0 * f64::EPSILON, "{golden_name}, step {step}: {got} against {want}");
    }
}

#[test]
fn schedules_equal_those_of_transformers() {
    check_schedule("constant", ScheduleKind::Constant, |_| ());
    check_schedule("linear", ScheduleKind::Linear, |_| ());
    check_schedule("cosine", ScheduleKind::Cosine, |_| ());
    check_schedule("cosine_min", ScheduleKind::Cosine, |o| o.min_ratio = 0.1);
    for (name, curve) in
        [("wsd_linear", DecayCurve::Linear), ("wsd_cosine", DecayCurve::Cosine), ("wsd_1-sqrt", DecayCurve::Sqrt)]
    {
        check_schedule(name, ScheduleKind::Wsd, |o| {
            (o.min_ratio, o.decay_fraction, o.curve) = (0.1, 0.2, curve);
        });
    }
}
