//! Every backward op against central differences of its forward op, in f64.
//!
//! For a loss `L = sum(seed * forward(x))` the difference quotient `(L(x + h) - L(x - h)) / 2h` errs by truncation,
//! `h^2 |L'''| / 6`, and by rounding, about `u |L| / h`. Both are least near `h = u^(1/3) = 5e-6`, where each is some
//! `u^(2/3) = 2e-11` times the loss and its third derivative; those are at most some hundreds here, so 1e-8 relative to the
//! largest gradient leaves a factor of a few and any wrong term is far outside.

use megatrain_base::{DType, Tensor};
use megatrain_ops::*;

const STEP: f64 = 5e-6;
const TOLERANCE: f64 = 1e-8;

/// Reproducible values in -1..1.
fn values(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

/// The derivative of `loss` with respect to every element of `x`.
fn differences(x: &[f64], mut loss: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let mut moved = x.to_vec();
    (0..x.len())
        .map(|i| {
            moved[i] = x[i] + STEP;
            let above = loss(&moved);
            moved[i] = x[i] - STEP;
            let below = loss(&moved);
            moved[i] = x[i];
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

fn assert_close(what: &str, gradient: &[f64], differences: &[f64]) {
    assert_eq!(gradient.len(), differences.len(), "{what}");
    let scale = differences.iter().fold(1.0f64, |m, d| m.max(d.abs()));
    assert!(differences.iter().any(|d| d.abs() > 1e-3), "{what}: nothing to compare");
    for (i, (g, d)) in gradient.iter().zip(differences).enumerate() {
        assert!((g - d).abs() <= TOLERANCE * scale, "{what}[{i}]: gradient {g}, difference quotient {d}");
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Runs `op` with these inputs.
fn run(op: impl Into<Op>, floats: &[(&Tensor, &[f64])], ints: &[(&Tensor, &[i32])]) -> RefIo<f64> {
    let op = op.into();
    op.check().unwrap();
    let mut io = RefIo::new();
    for (t, v) in floats {
        io.set(t, v.to_vec());
    }
    for (t, v) in ints {
        io.set_ints(t, v.to_vec());
    }
    op.reference(&mut io);
    io
}

#[test]
fn matmul_gradients() {
    for transposes in 0..4 {
        let (transpose_a, transpose_b) = (transposes & 1 != 0, transposes & 2 != 0);
        let mut at = Places::default();
        let mut place = |swap: bool, r: usize, c: usize| at.tensor(DType::F32, if swap { [c, r] } else { [r, c] });
        let (a, b, c) = (place(transpose_a, 3, 5), place(transpose_b, 5, 4), place(false, 3, 4));
        let (da, db) = (place(transpose_a, 3, 5), place(transpose_b, 5, 4));
        let forward = Matmul { a, b, c, transpose_a, transpose_b, accumulate: false };
        let (av, bv, seed) = (values(1, 15), values(2, 20), values(3, 12));
        // dA = dC B^T and dB = A^T dC, transposed where A and B are stored so.
        let plain = Matmul { accumulate: false, ..forward };
        let da_op = if transpose_a {
            Matmul { a: b, b: c, c: da, transpose_a: transpose_b, transpose_b: true, ..plain }
        } else {
            Matmul { a: c, b, c: da, transpose_a: false, transpose_b: !transpose_b, ..plain }
        };
        let db_op = if transpose_b {
            Matmul { a: c, b: a, c: db, transpose_a: true, transpose_b: transpose_a, ..plain }
        } else {
            Matmul { a, b: c, c: db, transpose_a: !transpose_a, transpose_b: false, ..plain }
        };
        let loss = |av: &[f64], bv: &[f64]| dot(&seed, &run(forward, &[(&a, av), (&b, bv)], &[]).get(&c));
        let got = run(da_op, &[(&b, &bv), (&c, &seed)], &[]).get(&da);
        assert_close("da", &got, &differences(&av, |av| loss(av, &bv)));
        let got = run(db_op, &[(&a, &av), (&c, &seed)], &[]).get(&db);
        assert_close("db", &got, &differences(&bv, |bv| loss(&av, bv)));
    }
}

#[test]
fn bias_gradient() {
    let mut at = Places::default();
    let (x, bias, dbias) =
        (at.tensor(DType::F32, [4usize, 3]), at.tensor(DType::F32, [3usize]), at.tensor(DType::F32, [3usize]));
    let (xv, bv, seed, old) = (values(1, 12), values(2, 3), values(3, 12), values(4, 3));
    let quotients =
        differences(&bv, |bv| dot(&seed, &run(BiasAdd { x, bias }, &[(&x, &xv), (&bias, bv)], &[]).get(&x)));
    let op = BiasGrad { dy: x, dbias, accumulate: true };
    let got = run(op, &[(&x, &seed), (&dbias, &old)], &[]).get(&dbias);
    let gained: Vec<f64> = got.iter().zip(&old).map(|(g, o)| g - o).collect();
    assert_close("dbias", &gained, &quotients);
}

#[test]
fn rms_norm_gradients_with_the_gain() {
    let (tokens, dim) = (3usize, 7usize);
    let mut at = Places::default();
    let mut matrix = || at.tensor(DType::F32, [tokens, dim]);
    let (x, y, dy, dx) = (matrix(), matrix(), matrix(), matrix());
    let mut vector = |n: usize| at.tensor(DType::F32, [n]);
    let (weight, dweight, rstd) = (vector(dim), vector(dim), vector(tokens));
    let forward = RmsNorm { x, weight, y, rstd, eps: 1e-2 };
    let (xv, wv, seed) = (values(1, 21), values(2, 7), values(3, 21));
    let run_forward = |xv: &[f64], wv: &[f64]| run(forward, &[(&x, xv), (&weight, wv)], &[]);
    let op = RmsNormBackward { dy, x, weight, rstd, dx, dweight, add_to_dx: false, accumulate: false };
    let rstds = run_forward(&xv, &wv).get(&rstd);
    let got = run(op, &[(&dy, &seed), (&x, &xv), (&weight, &wv), (&rstd, &rstds)], &[]);
    assert_close("dx", &got.get(&dx), &differences(&xv, |xv| dot(&seed, &run_forward(xv, &wv).get(&y))));
    assert_close("dweight", &got.get(&dweight), &differences(&wv, |wv| dot(&seed, &run_forward(&xv, wv).get(&y))));
}

#[test]
fn qk_norm_gradients_with_both_gains() {
    let (heads, kv_heads, head_dim) = (3u32, 1u32, 4u32);
    let mut at = Places::default();
    let mut matrix = || at.tensor(DType::F32, [2usize, 20]);
    let (qkv, out, dout, dqkv) = (matrix(), matrix(), matrix(), matrix());
    let mut vector = || at.tensor(DType::F32, [4usize]);
    let (q_weight, k_weight, dq_weight, dk_weight) = (vector(), vector(), vector(), vector());
    let forward = QkNorm { qkv, q_weight, k_weight, out, heads, kv_heads, head_dim, eps: 1e-2 };
    let (x, qw, kw, seed) = (values(1, 40), values(2, 4), values(3, 4), values(4, 40));
    let loss = |x: &[f64], qw: &[f64], kw: &[f64]| {
        dot(&seed, &run(forward, &[(&qkv, x), (&q_weight, qw), (&k_weight, kw)], &[]).get(&out))
    };
    let op = QkNormBackward {
        dout,
        qkv,
        q_weight,
        k_weight,
        dqkv,
        dq_weight,
        dk_weight,
        heads,
        kv_heads,
        head_dim,
        eps: 1e-2,
        accumulate: false,
    };
    let got = run(op, &[(&dout, &seed), (&qkv, &x), (&q_weight, &qw), (&k_weight, &kw)], &[]);
    assert_close("dqkv", &got.get(&dqkv), &differences(&x, |x| loss(x, &qw, &kw)));
    assert_close("dq_weight", &got.get(&dq_weight), &differences(&qw, |qw| loss(&x, qw, &kw)));
    assert_close("dk_weight", &got.get(&dk_weight), &differences(&kw, |kw| loss(&x, &qw, kw)));
}

#[test]
fn rope_gradient_is_the_inverse_rotation() {
    let mut at = Places::default();
    let (qkv, positions) = (at.tensor(DType::F32, [3usize, 32]), at.tensor(DType::I32, [3usize]));
    let rope = RopeParams { theta: 1e4, scaling: RopeScaling::Linear { factor: 2.0 } };
    let forward = Rope { qkv, positions, heads: 2, kv_heads: 1, head_dim: 8, rope, inverse: false };
    let rotate = |op: Rope, x: &[f64]| run(op, &[(&qkv, x)], &[(&positions, &[0, 3, 911])]).get(&qkv);
    let (x, seed) = (values(1, 96), values(2, 96));
    let backward = Rope { inverse: true, ..forward };
    assert_close("dqkv", &rotate(backward, &seed), &differences(&x, |x| dot(&seed, &rotate(forward, x))));
}

#[test]
fn swiglu_gradients() {
    let mut at = Places::default();
    let (gate_up, out) = (at.tensor(DType::F32, [3usize, 10]), at.tensor(DType::F32, [3usize, 5]));
    let (x, seed) = (values(1, 30).iter().map(|x| 4.0 * x).collect::<Vec<_>>(), values(2, 15));
    let got = run(SwiGluBackward { dout: out, gate_up }, &[(&out, &seed), (&gate_up, &x)], &[]).get(&gate_up);
    let loss = |x: &[f64]| dot(&seed, &run(SwiGlu { gate_up, out }, &[(&gate_up, x)], &[]).get(&out));
    assert_close("dgate_up", &got, &differences(&x, loss));
}

#[test]
fn cross_entropy_gradient() {
    let mut at = Places::default();
    let mut matrix = || at.tensor(DType::F32, [4usize, 9]);
    let (logits, dlogits) = (matrix(), matrix());
    let (targets, losses) = (at.tensor(DType::I32, [4usize]), at.tensor(DType::F32, [4usize]));
    let inv_targets = at.tensor(DType::F32, [1usize]);
    let (x, tv) = (values(1, 36).iter().map(|x| 3.0 * x).collect::<Vec<_>>(), [8, IGNORE_TARGET, 0, 4]);
    let op = CrossEntropy { logits, targets, inv_targets, dlogits, losses };
    let got = run(op, &[(&logits, &x), (&inv_targets, &[0.5])], &[(&targets, &tv)]);
    let loss = |x: &[f64]| {
        let io = run(CrossEntropyLoss { logits, targets, losses }, &[(&logits, x)], &[(&targets, &tv)]);
        0.5 * io.get(&losses).iter().sum::<f64>()
    };
    assert_close("dlogits", &got.get(&dlogits), &differences(&x, loss));
}

#[test]
fn attention_gradients_with_groups_and_documents() {
    let (heads, kv_heads, head_dim, tokens) = (6u32, 2u32, 8u32, 9usize);
    let mut at = Places::default();
    let mut matrix = |columns: usize| at.tensor(DType::F32, [tokens, columns]);
    let (qkv, dqkv, out, dout) = (matrix(80), matrix(80), matrix(48), matrix(48));
    let lse = at.tensor(DType::F32, [6, tokens]);
    let cu_seqlens = at.tensor(DType::I32, [5usize]);
    let borders = [0, 1, 6, 6, 9];
    let forward = Attention { qkv, cu_seqlens, out, lse, heads, kv_heads, head_dim, scale: 0.6 };
    let (x, seed) = (values(1, tokens * 80), values(2, tokens * 48));
    let run_forward = |x: &[f64]| run(forward, &[(&qkv, x)], &[(&cu_seqlens, &borders)]);
    let io = run_forward(&x);
    let op = AttentionBackward { dout, out, qkv, lse, cu_seqlens, dqkv, heads, kv_heads, head_dim, scale: 0.6 };
    let inputs: [(&Tensor, &[f64]); 4] = [(&dout, &seed), (&out, &io.get(&out)), (&qkv, &x), (&lse, &io.get(&lse))];
    let got = run(op, &inputs, &[(&cu_seqlens, &borders)]).get(&dqkv);
    // The scale is an f32: its rounding is the same on both sides.
    assert_close("dqkv", &got, &differences(&x, |x| dot(&seed, &run_forward(x).get(&out))));
}
