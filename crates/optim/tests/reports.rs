//! Failures that other trainers reported in public, each as the right behaviour. The source stands above each test.

mod common;

use common::{Words, bits, halves, joined};
use megatrain_base::{SlabLayout, bf16};
use megatrain_optim::{
    AdamW, Grad, Isa, LrSchedule, OptimError, Params, ScheduleError, ScheduleKind, ScheduleOptions, SkipReason,
    SquareSum, StepScalars, Verdict, Weights, clip_factor, global_norm, update, update_f32, update_slab, update_split,
};

fn no_decay() -> AdamW {
    AdamW { weight_decay: 0.0, ..AdamW::default() }
}

/// <https://github.com/deepspeedai/DeepSpeed/issues/1643>: two tensors, one optimizer.
#[test]
fn two_tensors_of_ones_both_step_to_0_98() {
    let mut layout = SlabLayout::new();
    layout.push("a", [5u64, 4], true);
    layout.push("b", [300u64, 3], true);
    let len = layout.len_elems() as usize;
    let (mut w, mut m, mut v, g) = (vec![1f32; len], vec![0f32; len], vec![0f32; len], vec![1f32; len]);
    for step in 1..=2 {
        let s = StepScalars::new(&no_decay(), 0.01, step, 1.0).unwrap();
        update_slab(&layout, &s, Weights::F32(&mut w), &mut m, &mut v, Grad::F32(&g)).unwrap();
    }
    for t in &layout.tensors {
        for &w in &w[t.offset_elems as usize..][..t.shape.elems() as usize] {
            // Two steps of 0.01 / (1 + eps), each weight rounded twice.
            assert!((w as f64 - 0.98).abs() <= 2.0 * f32::EPSILON as f64, "{}: {w}", t.name);
        }
    }
}

/// <https://github.com/deepspeedai/DeepSpeed/pull/482>: decay is decoupled, not a part of the gradient.
#[test]
fn decay_without_gradient_shrinks_the_weight_and_leaves_moments_alone() {
    let s = StepScalars::new(&AdamW { weight_decay: 0.1, ..AdamW::default() }, 0.01, 1, 1.0).unwrap();
    for isa in Isa::available() {
        let (mut w, mut m, mut v) = ([1f32; 37], [0f32; 37], [0f32; 37]);
        let params = Params { weights: Weights::F32(&mut w), m: &mut m, v: &mut v, g: Grad::F32(&[0.0; 37]) };
        update(isa, &s, true, params).unwrap();
        assert!(w == [0.999; 37] && m == [0.0; 37] && v == [0.0; 37], "{isa}: {w:?}");
    }
}

/// <https://github.com/pytorch/ao/pull/1124>, <https://github.com/meta-pytorch/torchtune/issues/2254>: small updates
/// are not lost in bf16.
#[test]
fn a_thousand_small_updates_reach_the_bf16_weight() {
    let (mut hi, mut lo) = halves(&[1.0]);
    let (mut m, mut v) = ([0f32], [0f32]);
    let mut narrow_only = bf16::from_f32(1.0);
    for step in 1..=1000 {
        let s = StepScalars::new(&no_decay(), 1e-5, step, 1.0).unwrap();
        update_split(&s, true, &mut hi, &mut lo, &mut m, &mut v, Grad::Bf16(&[bf16::from_f32(1.0)])).unwrap();
        narrow_only = bf16::from_f32(narrow_only.to_f32() - 1e-5);
    }
    assert_eq!(bf16::from_bits(hi[0]).to_f32(), 0.98828125);
    assert_eq!(narrow_only.to_f32(), 1.0);
}

/// <https://github.com/paiml/entrenar/issues/314>: a tied weight is one tensor of one slab, so it is stepped once with
/// the summed gradient and counted once in the norm.
#[test]
fn a_tied_weight_takes_one_step_with_the_summed_gradient() {
    let mut layout = SlabLayout::new();
    layout.push("model.embed_tokens.weight", [2u64, 4], true);
    let len = layout.len_elems() as usize;
    let (mut embedding, mut head) = (vec![0f32; len], vec![0f32; len]);
    embedding[..8].fill(3.0);
    head[..8].fill(-1.0);
    let summed: Vec<f32> = embedding.iter().zip(&head).map(|(a, b)| a + b).collect();
    assert_eq!(SquareSum::of_slab(&layout, Grad::F32(&summed)).unwrap().sum, 8.0 * 4.0);
    let (mut w, mut m, mut v) = (vec![1f32; len], vec![0f32; len], vec![0f32; len]);
    let s = StepScalars::new(&no_decay(), 0.01, 1, 1.0).unwrap();
    update_slab(&layout, &s, Weights::F32(&mut w), &mut m, &mut v, Grad::F32(&summed)).unwrap();
    // One first step of AdamW has length lr, whatever the gradient; moments are those of the sum, 2.
    assert!((w[0] - 0.99).abs() <= f32::EPSILON && (m[0] - 0.2).abs() <= f32::EPSILON);
    assert!((v[0] - 0.004).abs() <= 0.004 * f32::EPSILON);
}

/// <https://github.com/huggingface/transformers/pull/35927>, <https://github.com/ServiceNow/Fast-LLM/issues/542>,
/// <https://github.com/Lightning-AI/lit-llama/issues/254>: norms and biases do not decay.
#[test]
fn decay_leaves_norms_and_biases_alone() {
    let mut layout = SlabLayout::new();
    layout.push("input_layernorm.weight", [64u64], false);
    layout.push("self_attn.q_proj.weight", [64u64, 64], true);
    layout.push("self_attn.q_proj.bias", [64u64], false);
    layout.push("self_attn.q_norm.weight", [16u64], false);
    let len = layout.len_elems() as usize;
    let (mut hi, mut lo) = halves(&vec![1f32; len]);
    let (mut m, mut v, g) = (vec![0f32; len], vec![0f32; len], vec![bf16::ZERO; len]);
    let s = StepScalars::new(&AdamW { weight_decay: 0.1, ..AdamW::default() }, 0.01, 1, 1.0).unwrap();
    update_slab(&layout, &s, Weights::Split { hi: &mut hi, lo: &mut lo }, &mut m, &mut v, Grad::Bf16(&g)).unwrap();
    let w = joined(&hi, &lo);
    for t in &layout.tensors {
        let want = if t.shape.rank() > 1 { 0.999f32 } else { 1.0 };
        let range = t.offset_elems as usize..(t.offset_elems + t.shape.elems()) as usize;
        assert!(w[range].iter().all(|&w| w == want.to_bits()), "{}", t.name);
    }
    assert!(m.iter().chain(&v).all(|&x| x.to_bits() == 0));
}

/// <https://github.com/huggingface/trl/issues/6702>, <https://github.com/deepspeedai/DeepSpeed/issues/8415>,
/// <https://github.com/deepspeedai/DeepSpeed/issues/5241>: a bad gradient skips the step, with reason and count, and
/// the norm in the log is the true one.
#[test]
fn a_bad_gradient_skips_the_step_and_says_so() {
    for (bad, places) in [(f32::NAN, 1), (f32::INFINITY, 2), (f32::NEG_INFINITY, 3)] {
        let mut g = Words(1).units(200_000);
        for i in 0..places {
            g[199_999 - 70_000 * i] = bad;
        }
        let narrow: Vec<bf16> = g.iter().map(|&g| bf16::from_f32(g)).collect();
        for isa in Isa::available() {
            for g in [Grad::F32(&g), Grad::Bf16(&narrow)] {
                let good = SquareSum { sum: 4.0, nonfinite: 0 };
                let total = SquareSum::total([good, SquareSum::of_with(isa, g), good]);
                for clip in [None, Some(1.0)] {
                    let verdict = Verdict::new(total, 1, clip).unwrap();
                    let Verdict::Skip(reason @ SkipReason::NonFiniteGradient { count, norm }) = verdict else {
                        panic!("{isa}: {verdict:?}")
                    };
                    assert_eq!(count, places as u64);
                    assert!(if bad.is_nan() { norm.is_nan() } else { norm == f64::INFINITY });
                    assert!(reason.to_string().contains(if bad.is_nan() { "NaN" } else { "inf" }));
                }
                assert!(!global_norm([good, total]).is_finite());
            }
        }
    }
    assert_eq!((clip_factor(f64::NAN, 1.0), clip_factor(f64::INFINITY, 1.0)), (None, None));
}

/// <https://github.com/deepspeedai/DeepSpeed/pull/8035>: even if an update runs with it, one infinite bf16 gradient
/// poisons nothing: that parameter keeps its bits and the call says which one it is.
#[test]
fn one_infinite_gradient_changes_no_bit_of_its_parameter() {
    let s = StepScalars::new(&AdamW::default(), 1e-3, 5, 1.0).unwrap();
    for isa in Isa::available() {
        for at in [0, 17, 99_999] {
            let mut words = Words(2);
            let w = words.units(100_000);
            let (mut hi, mut lo) = halves(&w);
            let (mut m, mut v) = (words.units(w.len()), vec![0.5f32; w.len()]);
            let mut g = vec![bf16::from_f32(0.5); w.len()];
            g[at] = bf16::INFINITY;
            let before = (hi[at], lo[at], m[at].to_bits(), v[at].to_bits());
            let weights = Weights::Split { hi: &mut hi, lo: &mut lo };
            let error = update(isa, &s, true, Params { weights, m: &mut m, v: &mut v, g: Grad::Bf16(&g) }).unwrap_err();
            assert_eq!((hi[at], lo[at], m[at].to_bits(), v[at].to_bits()), before, "{isa}");
            assert_eq!(v.iter().filter(|&&v| v == 0.5).count(), 1, "{isa}: all others are updated");
            let OptimError::NotStorable { count: 1, first, tensor: None, split: true, .. } = error else {
                panic!("{isa}: {error}")
            };
            assert_eq!(first, at, "{isa}");
            assert!(error.to_string().contains(&format!("element {at}: gradient inf")), "{error}");
        }
    }
}

/// A finite gradient whose square is not would freeze its parameter for ever with v = infinity: refused as well.
#[test]
fn a_second_moment_that_overflows_is_refused() {
    let s = StepScalars::new(&no_decay(), 1e-3, 1, 1.0).unwrap();
    for isa in Isa::available() {
        // One place in a vector, one in the tail.
        for at in [3, 36] {
            let (mut w, mut m, mut v, mut g) = ([1f32; 37], [0f32; 37], [0f32; 37], [1f32; 37]);
            g[at] = 1e25;
            let params = Params { weights: Weights::F32(&mut w), m: &mut m, v: &mut v, g: Grad::F32(&g) };
            let error = update(isa, &s, true, params).unwrap_err();
            assert!(matches!(error, OptimError::NotStorable { count: 1, first, .. } if first == at), "{isa}: {error}");
            assert_eq!((w[at], m[at], v[at]), (1.0, 0.0, 0.0), "{isa}");
        }
    }
}

/// The same for masters that bf16 cannot hold: refused when split, stored when whole.
#[test]
fn a_master_beyond_bf16_is_refused_only_where_it_is_split() {
    let s = StepScalars::new(&no_decay(), 2e35, 1, 1.0).unwrap();
    let mut layout = SlabLayout::new();
    layout.push("norm", [3u64], false);
    layout.push("proj", [10u64, 10], true);
    let len = layout.len_elems() as usize;
    let large = f32::from_bits(0x7f7f_7000);
    let at = 256 + 42;
    let mut w = vec![1f32; len];
    w[at] = large;
    let (mut hi, mut lo) = halves(&w);
    let (mut m, mut v, g) = (vec![0f32; len], vec![0f32; len], vec![-1f32; len]);
    let error = update_slab(&layout, &s, Weights::Split { hi: &mut hi, lo: &mut lo }, &mut m, &mut v, Grad::F32(&g))
        .unwrap_err();
    assert!(matches!(&error, OptimError::NotStorable { count: 1, first: 42, tensor: Some(t), .. } if t == "proj"));
    assert!(error.to_string().contains("`proj`") && error.to_string().contains("too large for its bf16 half"));
    assert_eq!((joined(&hi, &lo)[at], m[at], v[at]), (large.to_bits(), 0.0, 0.0));
    m.fill(0.0);
    v.fill(0.0);
    update_f32(&s, true, &mut w, &mut m, &mut v, Grad::F32(&g)).unwrap();
    assert!(w[at] > large && w[at].is_finite());
}

/// <https://github.com/pytorch/pytorch/issues/70348>: a step without a target is skipped, and said.
#[test]
fn a_step_without_targets_is_skipped() {
    let verdict = Verdict::new(SquareSum::default(), 0, Some(1.0)).unwrap();
    assert_eq!(verdict, Verdict::Skip(SkipReason::NoTargets));
}

/// A clip setting is obeyed or refused, never ignored.
#[test]
fn clipping_brings_the_norm_down_and_never_up() {
    let total = SquareSum { sum: 16.0, nonfinite: 0 };
    assert_eq!(Verdict::new(total, 1, None), Ok(Verdict::Apply { scale: 1.0, norm: 4.0 }));
    assert_eq!(Verdict::new(total, 1, Some(5.0)), Ok(Verdict::Apply { scale: 1.0, norm: 4.0 }));
    assert_eq!(Verdict::new(total, 1, Some(1.0)), Ok(Verdict::Apply { scale: 1.0 / (4.0 + 1e-6), norm: 4.0 }));
    let doubtful = SquareSum { nonfinite: 1, ..total };
    assert!(matches!(Verdict::new(doubtful, 1, Some(1.0)), Ok(Verdict::Skip(SkipReason::NonFiniteGradient { .. }))));
    for wrong in [0.0, -1.0, f64::NAN] {
        assert!(Verdict::new(total, 1, Some(wrong)).unwrap_err().to_string().contains("leave it out"));
    }
}

/// <https://github.com/huggingface/transformers/issues/34053>, <https://github.com/paiml/entrenar/pull/257>: 5 + 5
/// steps are 10 steps, in rates and in every bit of the state.
#[test]
fn a_resumed_run_goes_on_as_if_it_had_not_stopped() {
    let options = ScheduleOptions { warmup_steps: 3, ..ScheduleOptions::new(10) };
    let run = |steps: std::ops::Range<u64>, state: (Vec<f32>, Vec<f32>, Vec<f32>)| {
        // All that a resumed process has is the saved state and the number of the step.
        let schedule = LrSchedule::new(ScheduleKind::Cosine, options).unwrap();
        let (mut w, mut m, mut v) = state;
        let mut rates = Vec::new();
        for step in steps {
            let lr = schedule.lr(1e-2, step);
            let s = StepScalars::new(&AdamW::default(), lr, step + 1, 1.0).unwrap();
            let g = Words(step).units(w.len());
            update_f32(&s, true, &mut w, &mut m, &mut v, Grad::F32(&g)).unwrap();
            rates.push(lr);
        }
        (rates, (w, m, v))
    };
    let start = (Words(99).units(1000), vec![0f32; 1000], vec![0f32; 1000]);
    let (rates, whole) = run(0..10, start.clone());
    let (mut first, saved) = run(0..5, start);
    let (second, resumed) = run(5..10, saved);
    first.extend(second);
    assert_eq!(rates, first);
    assert!(
        bits(&whole.0) == bits(&resumed.0) && bits(&whole.1) == bits(&resumed.1) && bits(&whole.2) == bits(&resumed.2)
    );
}

#[test]
fn wrong_schedules_are_refused_in_words() {
    let refused = |kind, change: fn(&mut ScheduleOptions), part: &str| {
        let mut options = ScheduleOptions::new(100);
        change(&mut options);
        let text = LrSchedule::new(kind, options).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    };
    refused(ScheduleKind::Constant, |o| o.total_steps = 0, "at least one step");
    refused(ScheduleKind::Linear, |o| o.warmup_steps = 101, "warm-up of 101 steps is longer than the run of 100");
    refused(ScheduleKind::Cosine, |o| o.min_ratio = 1.5, "ratio is 1.5");
    refused(ScheduleKind::Cosine, |o| o.min_ratio = f64::NAN, "ratio is NaN");
    refused(ScheduleKind::Wsd, |o| o.decay_fraction = 0.0, "decay fraction is 0");
    refused(ScheduleKind::Wsd, |o| (o.warmup_steps, o.decay_fraction) = (60, 0.5), "decay of 50 steps do not fit");
}

#[test]
fn schedule_names_are_read_and_near_misses_named() {
    for (kind, name) in ScheduleKind::ALL {
        assert_eq!((name.parse(), kind.to_string()), (Ok(kind), name.to_string()));
    }
    for (text, kind) in [
        ("Cosine", ScheduleKind::Cosine),
        ("constant_with_warmup", ScheduleKind::Constant),
        ("warmup-stable-decay", ScheduleKind::Wsd),
    ] {
        assert_eq!(text.parse(), Ok(kind));
    }
    for (text, near) in
        [("cosin", "cosine"), ("lineer", "linear"), ("wds", ""), ("wsdd", "wsd"), ("polynomial", ""), ("", "")]
    {
        let error = text.parse::<ScheduleKind>().unwrap_err();
        let ScheduleError::Unknown { suggestion, .. } = &error else { panic!("{error}") };
        assert_eq!(suggestion.unwrap_or(""), near, "{error}");
        assert_eq!(error.to_string().contains("did you mean"), !near.is_empty());
    }
}
