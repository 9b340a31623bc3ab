//! What the twins promise beyond formulas: extreme logits, ignored rows, shared heads, separate documents, refused data.

use megatrain_base::{DType, Tensor};
use megatrain_ops::*;

fn values(seed: u32, n: usize) -> Vec<f32> {
    (0..n as u32)
        .map(|i| ((seed * 7919 + i).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

fn cross_entropy(rows: usize, vocab: usize) -> CrossEntropy {
    let mut at = Places::default();
    CrossEntropy {
        logits: at.tensor(DType::F32, [rows, vocab]),
        targets: at.tensor(DType::I32, [rows]),
        inv_targets: at.tensor(DType::F32, [1usize]),
        dlogits: at.tensor(DType::F32, [rows, vocab]),
        losses: at.tensor(DType::F32, [rows]),
    }
}

/// Losses and gradients in f32.
fn losses(op: CrossEntropy, logits: &[f32], targets: &[i32], inv_targets: f32) -> (Vec<f32>, Vec<f32>) {
    let mut io = RefIo::new();
    io.set(&op.logits, logits.to_vec());
    io.set_ints(&op.targets, targets.to_vec());
    io.set(&op.inv_targets, vec![inv_targets]);
    op.reference(&mut io);
    let alone = CrossEntropyLoss { logits: op.logits, targets: op.targets, losses: op.losses };
    let mut io_alone = io.clone();
    alone.reference(&mut io_alone);
    assert_eq!(io_alone.get(&op.losses), io.get(&op.losses), "the loss does not depend on the gradient");
    (io.get(&op.losses), io.get(&op.dlogits))
}

#[test]
fn a_wholly_ignored_chunk_has_no_loss_and_no_gradient_whatever_the_divisor() {
    for (fill, inv_targets) in [(1.0, 0.25), (f32::NAN, 0.25), (1.0, f32::INFINITY), (1.0, f32::NAN)] {
        let (loss, gradient) = losses(cross_entropy(3, 5), &[fill; 15], &[IGNORE_TARGET; 3], inv_targets);
        assert!(loss.iter().chain(&gradient).all(|&x| x == 0.0), "{loss:?} {gradient:?}");
    }
}

#[test]
fn extreme_logits_stay_finite() {
    const NO: f32 = f32::NEG_INFINITY;
    let (loss, gradient) =
        losses(cross_entropy(3, 3), &[1e4, -1e4, NO, 3e38, 3e38, 0.0, NO, NO, -3e38], &[1, 0, 2], 1.0);
    assert_eq!(loss, [2e4, std::f32::consts::LN_2, 0.0]);
    assert_eq!(gradient, [1.0, -1.0, 0.0, -0.5, 0.5, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn gradients_of_a_row_sum_to_zero_and_scale_with_the_divisor() {
    let logits = values(1, 2 * 259);
    let (_, once) = losses(cross_entropy(2, 259), &logits, &[258, 0], 1.0);
    let (_, half) = losses(cross_entropy(2, 259), &logits, &[258, 0], 0.5);
    for (row, halved) in once.chunks(259).zip(half.chunks(259)) {
        assert!(row.iter().sum::<f32>().abs() < 259.0 * f32::EPSILON);
        assert!(row.iter().zip(halved).all(|(a, b)| 0.5 * a == *b));
    }
}

#[test]
#[should_panic(expected = "target -1 of row 1 is neither -100 (ignored) nor in 0..5")]
fn only_the_ignore_target_is_ignored() {
    losses(cross_entropy(2, 5), &[0.0; 10], &[4, -1], 1.0);
}

#[test]
#[should_panic(expected = "index[1] is 3, x has 3 rows")]
fn gathered_rows_must_exist() {
    let mut at = Places::default();
    let op = GatherRows {
        x: at.tensor(DType::F32, [3usize, 2]),
        index: at.tensor(DType::I32, [2usize]),
        y: at.tensor(DType::F32, [2usize, 2]),
    };
    let mut io = RefIo::<f32>::new();
    io.set(&op.x, vec![0.0; 6]);
    io.set_ints(&op.index, vec![2, 3]);
    op.reference(&mut io);
}

fn attention(tokens: usize, borders: usize, (heads, kv_heads): (u32, u32)) -> Attention {
    let mut at = Places::default();
    let width = (heads + 2 * kv_heads) as usize * 8;
    Attention {
        qkv: at.tensor(DType::F32, [tokens, width]),
        cu_seqlens: at.tensor(DType::I32, [borders]),
        out: at.tensor(DType::F32, [tokens, heads as usize * 8]),
        lse: at.tensor(DType::F32, [heads as usize, tokens]),
        heads,
        kv_heads,
        head_dim: 8,
        scale: 0.35,
    }
}

/// Output, log sums and gradient for `dout`.
fn attend(op: Attention, qkv: &[f32], borders: &[i32], dout: &[f32]) -> [Vec<f32>; 3] {
    let free = |n: u32, t: Tensor| t.at(megatrain_base::RegionId(100 + n), 0);
    let backward = AttentionBackward {
        dout: free(0, op.out),
        out: op.out,
        qkv: op.qkv,
        lse: op.lse,
        cu_seqlens: op.cu_seqlens,
        dqkv: free(1, op.qkv),
        heads: op.heads,
        kv_heads: op.kv_heads,
        head_dim: op.head_dim,
        scale: op.scale,
    };
    op.check().unwrap();
    backward.check().unwrap();
    let mut io = RefIo::new();
    io.set(&op.qkv, qkv.to_vec());
    io.set_ints(&op.cu_seqlens, borders.to_vec());
    io.set(&backward.dout, dout.to_vec());
    op.reference(&mut io);
    backward.reference(&mut io);
    [io.get(&op.out), io.get(&op.lse), io.get(&backward.dqkv)]
}

#[test]
fn a_document_cannot_change_another() {
    let (op, borders) = (attention(12, 5, (2, 1)), [0, 4, 4, 9, 12]);
    let (qkv, dout) = (values(1, 12 * 32), values(2, 12 * 16));
    let before = attend(op, &qkv, &borders, &dout);
    let (mut other_qkv, mut other_dout) = (qkv, dout);
    other_qkv[4 * 32..9 * 32].fill(1e3);
    other_dout[4 * 16..9 * 16].fill(f32::NAN);
    let after = attend(op, &other_qkv, &borders, &other_dout);
    for (what, width, before, after) in [("out", 16, &before[0], &after[0]), ("dqkv", 32, &before[2], &after[2])] {
        for token in (0..4).chain(9..12) {
            let row = token * width..(token + 1) * width;
            assert_eq!(before[row.clone()], after[row], "{what} of token {token}");
        }
    }
    assert_ne!(before[0][4 * 16..9 * 16], after[0][4 * 16..9 * 16]);
}

#[test]
fn a_later_token_cannot_change_an_earlier_one() {
    let op = attention(6, 2, (2, 2));
    let (mut qkv, dout) = (values(1, 6 * 48), values(2, 6 * 16));
    let before = attend(op, &qkv, &[0, 6], &dout);
    qkv[5 * 48..].fill(7.0);
    let after = attend(op, &qkv, &[0, 6], &dout);
    assert_eq!(before[0][..5 * 16], after[0][..5 * 16]);
    assert_ne!(before[0][5 * 16..], after[0][5 * 16..]);
}

#[test]
fn the_first_token_of_a_document_copies_its_value() {
    let qkv = values(1, 3 * 24);
    let [out, lse, _] = attend(attention(3, 4, (1, 1)), &qkv, &[0, 1, 2, 3], &[0.0; 24]);
    for token in 0..3 {
        let row = &qkv[token * 24..];
        assert_eq!(out[token * 8..][..8], row[16..24]);
        let score: f32 = 0.35 * row[..8].iter().zip(&row[8..16]).map(|(q, k)| q * k).sum::<f32>();
        assert!((lse[token] - score).abs() <= 1e-6);
    }
}

#[test]
fn shared_key_and_value_heads_gather_the_gradients_of_their_query_heads() {
    // Three query heads on one key/value head, against the same with the head written out three times.
    let tokens = 5;
    let (shared, dout) = (values(1, tokens * 5 * 8), values(2, tokens * 3 * 8));
    let spread: Vec<f32> = shared
        .chunks(40)
        .flat_map(|row| [&row[..24], &row[24..32].repeat(3), &row[32..40].repeat(3)].concat())
        .collect();
    let [out, lse, dqkv] = attend(attention(tokens, 2, (3, 1)), &shared, &[0, 5], &dout);
    let [out_spread, lse_spread, dqkv_spread] = attend(attention(tokens, 2, (3, 3)), &spread, &[0, 5], &dout);
    assert_eq!((out, lse), (out_spread, lse_spread));
    for (row, wide) in dqkv.chunks(40).zip(dqkv_spread.chunks(72)) {
        assert_eq!(row[..24], wide[..24]);
        for (part, parts) in [(&row[24..32], &wide[24..48]), (&row[32..], &wide[48..])] {
            for i in 0..8 {
                let sum: f32 = (0..3).map(|h| parts[h * 8 + i]).sum();
                assert!((part[i] - sum).abs() <= 8.0 * f32::EPSILON * (1.0 + sum.abs()), "{} {sum}", part[i]);
            }
        }
    }
}

#[test]
#[should_panic(expected = "document borders must ascend from 0 to 6, given [0, 5]")]
fn borders_must_cover_all_tokens() {
    attend(attention(6, 2, (1, 1)), &[0.0; 144], &[0, 5], &[0.0; 48]);
}

#[test]
fn rope_at_position_zero_changes_nothing_and_back_again_is_the_identity() {
    let mut at = Places::default();
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };
    let op = Rope {
        qkv: at.tensor(DType::F32, [2usize, 32]),
        positions: at.tensor(DType::I32, [2usize]),
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        rope: RopeParams { theta: 5e5, scaling: llama3 },
        inverse: false,
    };
    let x = values(1, 64);
    let mut io = RefIo::new();
    io.set(&op.qkv, x.clone());
    io.set_ints(&op.positions, vec![0, 4321]);
    op.reference(&mut io);
    let turned = io.get(&op.qkv);
    assert_eq!(turned[..32], x[..32], "position 0");
    assert_eq!(turned[56..], x[56..], "value heads");
    assert_ne!(turned[32..56], x[32..56]);
    Rope { inverse: true, ..op }.reference(&mut io);
    assert!(io.get(&op.qkv).iter().zip(&x).all(|(a, b)| (a - b).abs() <= 4.0 * f32::EPSILON));
}
