//! One block: gradients against finite differences in f64, activation levels against each other bit for bit.

mod common;

use common::{BlockRun, f64s, flavours, peak_temp_bytes, reals, writes};
use megatrain_base::{DType, RegionId, Tensor};
use megatrain_layers::{Activations, Emitter, ModelConfig, Op, Shape, TokenCtx, block_for};

const DOCUMENTS: [usize; 3] = [3, 1, 2];

/// L = sum(c * y) for the random `c` that `d` holds.
fn loss(run: &mut BlockRun<f64>, c: &[f64]) -> f64 {
    run.forward(Activations::Recompute);
    run.memory.get(&run.y).iter().zip(c).map(|(y, c)| y * c).sum()
}

/// Central differences with step h are off by h^2 L'''/6 and by rounding, about 2^-53 |L| / h: 1e-10 and 1e-10 here
/// (|L| about 10, third derivatives of order 10). 1e-7 leaves room for stiff spots and is far below any wrong term.
#[test]
fn every_gradient_is_the_finite_difference() {
    let h = 1e-5;
    for (name, config) in flavours() {
        let mut run = BlockRun::<f64>::new(&config, &DOCUMENTS, DType::F32);
        let c = run.memory.get(&run.d);
        run.forward(Activations::Keep);
        run.backward(Activations::Keep, false);
        let mut pairs: Vec<(Tensor, Tensor)> = run.weights.iter().copied().zip(run.grads.iter().copied()).collect();
        pairs.push((run.x, run.d));
        for (i, (at, gradient)) in pairs.iter().enumerate() {
            let what = run.block.layout(0).tensors.get(i).map_or("x".into(), |t| t.name.clone());
            let (values, gradient) = (run.memory.get(at), run.memory.get(gradient));
            assert!(gradient.iter().any(|g| g.abs() > 1e-3), "{name}: {what} has no gradient worth checking");
            for j in 0..values.len() {
                let mut moved = values.clone();
                let mut at_offset = |delta: f64| {
                    moved[j] = values[j] + delta;
                    run.memory.put(at, &moved);
                    loss(&mut run, &c)
                };
                let numeric = (at_offset(h) - at_offset(-h)) / (2.0 * h);
                let error = (numeric - gradient[j]).abs();
                assert!(error < 1e-7 * (1.0 + gradient[j].abs()), "{name}: {what}[{j}] {} vs {numeric}", gradient[j]);
            }
            run.memory.put(at, &values);
        }
    }
}

/// Everything a level computes: y, dL/dx, all gradients.
fn results(config: &ModelConfig, level: Activations, dtype: DType, accumulate: bool) -> Vec<Vec<u32>> {
    let mut run = BlockRun::<f32>::new(config, &DOCUMENTS, dtype);
    for (i, g) in run.grads.clone().iter().enumerate() {
        run.memory.put(g, &vec![0.25 * i as f32; g.elems()]);
    }
    run.forward(level);
    run.backward(level, accumulate);
    let tensors = [run.y, run.d].into_iter().chain(run.grads.iter().copied());
    tensors.map(|t| run.memory.get(&t).iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn activation_levels_agree_bit_for_bit() {
    for (name, config) in flavours() {
        for dtype in [DType::F32, DType::Bf16] {
            for accumulate in [false, true] {
                let keep = results(&config, Activations::Keep, dtype, accumulate);
                for level in [Activations::Partial, Activations::Recompute] {
                    assert!(keep == results(&config, level, dtype, accumulate), "{name} {dtype} {level:?}");
                }
            }
        }
    }
}

#[test]
fn accumulate_adds_and_overwrite_forgets() {
    for (name, config) in flavours() {
        let mut run = BlockRun::<f64>::new(&config, &DOCUMENTS, DType::F32);
        let d = run.memory.get(&run.d);
        let pass = |run: &mut BlockRun<f64>, accumulate| -> Vec<Vec<f64>> {
            run.memory.put(&run.d, &d);
            run.forward(Activations::Keep);
            run.backward(Activations::Keep, accumulate);
            run.grads.iter().map(|g| run.memory.get(g)).collect()
        };
        let once = pass(&mut run, false);
        assert_eq!(once, pass(&mut run, false), "{name}");
        let twice = pass(&mut run, true);
        for (once, twice) in once.iter().flatten().zip(twice.iter().flatten()) {
            assert_eq!(2.0 * once, *twice, "{name}");
        }
    }
}

#[test]
fn the_output_may_take_the_inputs_place() {
    let (_, config) = flavours().remove(0);
    let mut run = BlockRun::<f32>::new(&config, &DOCUMENTS, DType::F32);
    run.forward(Activations::Recompute);
    let y = run.memory.get(&run.y);
    run.y = run.x;
    run.forward(Activations::Recompute);
    assert_eq!(run.memory.get(&run.x), y);
}

#[test]
fn documents_do_not_see_each_other() {
    for (name, config) in flavours() {
        let mut packed = BlockRun::<f64>::new(&config, &DOCUMENTS, DType::F32);
        packed.forward(Activations::Keep);
        let (x, y) = (packed.memory.get(&packed.x), packed.memory.get(&packed.y));
        let mut start = 0;
        for length in DOCUMENTS {
            let mut alone = BlockRun::<f64>::new(&config, &[length], DType::F32);
            let rows = start * config.hidden..(start + length) * config.hidden;
            alone.memory.put(&alone.x, &x[rows.clone()]);
            alone.forward(Activations::Keep);
            assert_eq!(alone.memory.get(&alone.y), y[rows], "{name}: document at {start}");
            start += length;
        }
    }
}

#[test]
fn the_backward_pass_leaves_weights_and_input_alone() {
    for (name, config) in flavours() {
        for level in Activations::ALL {
            let run = BlockRun::<f32>::new(&config, &DOCUMENTS, DType::F32);
            let e = run.backward_ops(level, true);
            for t in run.weights.iter().chain([&run.x, &run.ctx.positions, &run.ctx.cu_seqlens]) {
                assert!(!writes(&e.ops, t), "{name} {level:?} writes {t}");
            }
        }
    }
}

/// n roundings in a row, each off by at most u = 2^-8, add up like independent errors to sqrt(n) u (Higham and Mary 2019,
/// "A new approach to probabilistic rounding error analysis"); n counts the ops that write bf16. Gradients are compared as
/// one vector: in a key bias' gradient alone the terms cancel.
#[test]
fn a_bf16_block_stays_near_its_f64_truth() {
    for (name, config) in flavours() {
        let mut truth = BlockRun::<f64>::new(&config, &DOCUMENTS, DType::F32);
        let mut run = BlockRun::<f32>::new(&config, &DOCUMENTS, DType::Bf16);
        let ours = run.weights.iter().chain([&run.x, &run.d]);
        for (to, from) in truth.weights.iter().chain([&truth.x, &truth.d]).zip(ours) {
            truth.memory.put(to, &reals(&f64s(&run.memory.get(from))));
        }
        truth.forward(Activations::Keep);
        truth.backward(Activations::Keep, false);
        let mut ops = run.forward(Activations::Keep);
        ops.extend(run.backward(Activations::Keep, false));
        let rounds = |op: &Op| op.operands().iter().any(|(t, access)| access.writes() && t.dtype == DType::Bf16);
        let bound = (ops.iter().filter(|op| rounds(op)).count() as f64).sqrt() * DType::Bf16.unit_roundoff();
        let gradients =
            |run: &[Tensor], get: &dyn Fn(&Tensor) -> Vec<f64>| run.iter().flat_map(get).collect::<Vec<_>>();
        let (bf16, exact) = (|t: &Tensor| f64s(&run.memory.get(t)), |t: &Tensor| truth.memory.get(t));
        for (what, error) in [
            ("y", distance(&bf16(&run.y), &exact(&truth.y))),
            ("dx", distance(&bf16(&run.d), &exact(&truth.d))),
            ("gradients", distance(&gradients(&run.grads, &bf16), &gradients(&truth.grads, &exact))),
        ] {
            assert!(error < bound, "{name}: {what} is off by {error:.1e}, bound {bound:.1e}");
        }
    }
}

/// ‖a - b‖ / ‖b‖
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// The passes of a preset's block on 1024 tokens in bf16.
fn emit(preset: &str, level: Activations) -> (Emitter, Emitter) {
    let config = ModelConfig::preset(preset).unwrap();
    let (block, tokens, dtype) = (block_for(&config), 1024, DType::Bf16);
    let at = |region, dtype, shape: Shape| Tensor::new(RegionId(region), 0, dtype, shape);
    let (positions, cu_seqlens) = (at(1, DType::I32, [tokens].into()), at(2, DType::I32, [2usize].into()));
    let ctx = TokenCtx { tokens, positions, cu_seqlens, dtype };
    let [x, y, d] = [3, 4, 5].map(|region| at(region, dtype, [tokens, config.hidden].into()));
    let layout = block.layout(0);
    let (w, g) = (common::place(&layout, 6, dtype), common::place(&layout, 7, DType::F32));
    let specs = block.saved(level, tokens, dtype);
    let saved: Vec<Tensor> = (100..).zip(&specs).map(|(region, s)| at(region, s.dtype, s.shape)).collect();
    let (mut forward, mut backward) = (Emitter::new(1000), Emitter::new(1000));
    block.forward(&mut forward, &ctx, &w, x, y, level, &saved);
    block.backward(&mut backward, &ctx, &w, &g, false, x, d, level, &saved);
    (forward, backward)
}

/// Nothing wide lives longer than it must. Widths are elements a token, in bf16.
#[test]
fn temporaries_die_early() {
    // Forward: the activation product beside the down projection's output. Backward: the gradients of attention's output
    // and of q, k, v meet, with one f32 a token (2 widths) where the norm's output stands in for the former.
    for (preset, forward_width, backward_width) in
        [("llama-2-7b", 11008 + 4096, 4096 + 3 * 4096 + 2), ("qwen3-0.6b", 3072 + 1024, 2048 + 4096)]
    {
        let (forward, backward) = emit(preset, Activations::Keep);
        assert_eq!(peak_temp_bytes(&forward), forward_width * 1024 * 2, "{preset} forward");
        assert_eq!(peak_temp_bytes(&backward), backward_width * 1024 * 2, "{preset} backward");
    }
}

#[test]
fn recomputation_repeats_no_more_than_it_must() {
    // Partial: gate_up's matmul. Recompute: also norm, qkv's matmul, rope, attention, output's matmul, add; Qwen3's head norms.
    for (preset, keep, recompute) in [("llama-2-7b", 16, 16 + 7), ("qwen3-0.6b", 17, 17 + 8)] {
        let ops = Activations::ALL.map(|level| emit(preset, level).1.ops.len());
        assert_eq!(ops, [keep, keep + 1, recompute], "{preset}");
    }
}
