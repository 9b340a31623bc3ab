//! Every check of every op: a valid op with one thing wrong, and what the error must say.

use megatrain_base::{DType, RegionId, Tensor};
use megatrain_ops::*;

/// The first case of an op.
fn valid(name: &str) -> Op {
    Op::all_cases().into_iter().find(|case| case.op.name() == name).unwrap().op
}

/// Rebuilds an operand, in its own region.
fn remade(t: &Tensor, dtype: DType, dims: &[u64]) -> Tensor {
    Tensor::new(t.span.region, 0, dtype, megatrain_base::Shape::new(dims))
}

fn refused(op: Op, expected: &[&str]) {
    let error = op.check().expect_err(&format!("accepted {op:?}")).to_string();
    assert!(error.starts_with(&format!("op {}: ", op.name())), "{error}");
    for part in expected {
        assert!(error.contains(part), "`{error}` does not mention `{part}`");
    }
}

/// For every operand of every op: another rank, one element more in the last dimension, and a dtype that no op takes
/// are refused by name.
#[test]
fn every_operand_is_checked() {
    for name in Op::NAMES {
        let op = valid(name);
        for (i, operand) in op.operand_names().iter().enumerate() {
            let t = op.operands()[i].0;
            let with = |new: Tensor| {
                let (mut changed, mut at) = (op, 0);
                changed.map(&mut |t| {
                    if at == i {
                        *t = new;
                    }
                    at += 1;
                });
                changed
            };
            let mut wider = t.shape.dims().to_vec();
            *wider.last_mut().unwrap() += 1;
            let deeper = [&[2, 1], t.shape.dims()].concat();
            for (what, new) in [
                ("wider", remade(&t, t.dtype, &wider)),
                ("more dimensions", remade(&t, t.dtype, &deeper)),
                ("dtype", remade(&t, DType::U16, t.shape.dims())),
                ("empty", remade(&t, t.dtype, &vec![0; t.shape.rank()])),
                ("short", Tensor { span: megatrain_base::Span { len_bytes: 1, ..t.span }, ..t }),
            ] {
                let changed = with(new);
                // One more border is one more document, one more logit a larger vocabulary, one more number a longer sum.
                let free = *operand == "cu_seqlens"
                    || matches!((*name, *operand), ("cross_entropy_loss", "logits") | ("square_sum", "x"));
                if what == "wider" && free {
                    changed.check().unwrap();
                    continue;
                }
                let error = changed.check().expect_err(&format!("{name}: {operand} {what}: accepted")).to_string();
                assert!(error.contains(&format!("op {name}: ")), "{error}");
                assert!(error.contains("expected") && error.contains("given"), "{name}: {operand} {what}: {error}");
            }
        }
    }
}

#[test]
fn messages_name_operand_expectation_and_gift() {
    let Op::Matmul(m) = valid("matmul") else { unreachable!() };
    let b = |dims: &[u64]| Matmul { b: remade(&m.b, DType::F32, dims), ..m };
    refused(b(&[2, 1]).into(), &["operand b", "expected shape [1, 1]", "given [2, 1]"]);
    let mixed = Matmul { b: remade(&m.b, DType::Bf16, &[1, 1]), ..m };
    refused(mixed.into(), &["operand b", "the dtype of a, f32", "given bf16"]);
    let narrow = Matmul { c: remade(&m.c, DType::Bf16, &[1, 1]), ..m };
    refused(narrow.into(), &["operand c", "expected dtype f32, or bf16 when a and b are", "given bf16"]);
    let both = Matmul { a: remade(&m.a, DType::Bf16, &[1, 1]), accumulate: true, ..narrow };
    let both = Matmul { b: remade(&m.b, DType::Bf16, &[1, 1]), ..both };
    refused(both.into(), &["operand c", "expected dtype f32 because accumulate is on", "given bf16"]);
    let aliased = Matmul { c: m.a, ..m };
    refused(aliased.into(), &["operands a and c", "one is written", "separate memory"]);
    let odd = Matmul { a: m.a.at(RegionId(0), 2), ..m };
    refused(odd.into(), &["operand a", "a multiple of 4 bytes"]);
}

#[test]
fn attention_sizes() {
    let Op::Attention(a) = valid("attention") else { unreachable!() };
    refused(Attention { heads: 3, kv_heads: 2, ..a }.into(), &["kv_heads", "a divisor of heads = 3", "given 2"]);
    refused(Attention { kv_heads: 0, ..a }.into(), &["kv_heads", "given 0"]);
    refused(Attention { head_dim: 12, ..a }.into(), &["head_dim", "a multiple of 8", "given 12"]);
    refused(Attention { head_dim: 0, ..a }.into(), &["head_dim", "given 0"]);
    refused(Attention { heads: 2, ..a }.into(), &["operand qkv", "(2 + 2 x 1) x 8 = 32 columns", "given 24"]);
    refused(Attention { heads: u32::MAX, head_dim: u32::MAX - 7, ..a }.into(), &["operand qkv", "given 24"]);
    refused(Attention { scale: f32::NAN, ..a }.into(), &["scalar scale", "finite", "NaN"]);
    let single = Attention { cu_seqlens: remade(&a.cu_seqlens, DType::I32, &[1]), ..a };
    refused(single.into(), &["operand cu_seqlens", "at least two borders", "given 1"]);
}

#[test]
fn rope_and_norm_scalars() {
    let Op::Rope(r) = valid("rope") else { unreachable!() };
    let odd = Rope { qkv: remade(&r.qkv, DType::F32, &[1, 9]), head_dim: 3, ..r };
    refused(odd.into(), &["head_dim", "a multiple of 2", "given 3"]);
    let with = |theta, scaling| Rope { rope: RopeParams { theta, scaling }, ..r };
    refused(with(0.0, RopeScaling::Default).into(), &["rope.theta", "positive", "given 0"]);
    refused(with(1e4, RopeScaling::Linear { factor: -2.0 }).into(), &["factor", "given -2"]);
    let llama3 = |low_freq_factor, high_freq_factor, original_context| RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor,
        high_freq_factor,
        original_context,
    };
    refused(
        with(1e4, llama3(4.0, 4.0, 8192.0)).into(),
        &["high_freq_factor", "more than low_freq_factor = 4", "given 4"],
    );
    refused(with(1e4, llama3(1.0, 4.0, f64::INFINITY)).into(), &["original_context", "finite", "given inf"]);
    let Op::RmsNorm(n) = valid("rms_norm") else { unreachable!() };
    refused(RmsNorm { eps: 0.0, ..n }.into(), &["scalar eps", "positive", "given 0"]);
    let Op::QkNorm(n) = valid("qk_norm") else { unreachable!() };
    refused(QkNorm { eps: f32::NAN, ..n }.into(), &["scalar eps", "given NaN"]);
}

#[test]
fn work_is_what_the_formulas_say() {
    let flops = |op: Op| op.work().flops;
    let mut at = Places::default();
    let m = Matmul {
        a: at.tensor(DType::Bf16, [7usize, 3]),
        b: at.tensor(DType::Bf16, [5usize, 7]),
        c: at.tensor(DType::F32, [3usize, 5]),
        transpose_a: true,
        transpose_b: true,
        accumulate: false,
    };
    assert_eq!(m.sizes(), (3, 5, 7));
    assert_eq!(flops(m.into()), 2.0 * 3.0 * 5.0 * 7.0);
    assert_eq!(Op::from(m).work().bytes, 2.0 * (21.0 + 35.0) + 4.0 * 15.0);
    assert_eq!(Op::from(Matmul { accumulate: true, ..m }).work().bytes, 2.0 * (21.0 + 35.0) + 8.0 * 15.0);
    for case in Op::all_cases() {
        let work = case.op.work();
        let moves_only = matches!(case.op, Op::Cast(_) | Op::GatherRows(_));
        assert!(work.bytes > 0.0 && (work.flops > 0.0) != moves_only, "{}: {work:?}", case.op.name());
        if let Op::Attention(a) = case.op {
            let (h, d, t) = (a.heads as f64, a.head_dim as f64, a.qkv.shape.dim(0) as f64);
            assert_eq!(work.flops, 2.0 * h * d * t * (t + 1.0));
        }
    }
}
