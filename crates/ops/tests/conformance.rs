//! The harness refuses broken executors: each test breaks the twin's run in one way in which kernels really break.

use megatrain_base::{Access, DType, Element, Tensor, bf16};
use megatrain_ops::harness::{self, Memory};
use megatrain_ops::{Case, Op, RefIo, run_on};

/// Expects every case for which `applies` names an operand to be refused, naming it, when run by `run`; at least `least`
/// cases must be broken.
fn refused(least: usize, applies: impl Fn(&Case) -> Option<&'static str>, run: impl Fn(&Op, &mut Memory)) {
    let (mut count, mut passed) = (0, Vec::new());
    for case in Op::all_cases() {
        let Some(operand) = applies(&case) else { continue };
        count += 1;
        let result = harness::check(&case, |op, memory| {
            run(op, memory);
            Ok(())
        });
        let Err(error) = result else {
            passed.push(format!("{} ({})", case.op.name(), case.name));
            continue;
        };
        for part in [case.op.name(), &case.name, &format!("operand {operand}:")] {
            assert!(error.contains(part), "`{error}` does not mention `{part}`");
        }
    }
    assert!(passed.is_empty(), "passed, though broken: {passed:#?}");
    assert!(count >= least, "only {count} cases were broken");
}

/// The first operand that `holds`.
fn first(op: &Op, holds: impl Fn(&Tensor, Access) -> bool) -> Option<(Tensor, &'static str)> {
    let named = op.operands().into_iter().zip(op.operand_names());
    named.filter(|((t, access), _)| holds(t, *access)).map(|((t, _), &name)| (t, name)).next()
}

fn written(op: &Op) -> Option<(Tensor, &'static str)> {
    first(op, |_, access| access == Access::Write)
}

fn twin(op: &Op, memory: &mut Memory) {
    run_on(op, &memory.operands(op));
}

/// The values an executor finds, as the twin takes them.
fn loaded(op: &Op, memory: &Memory) -> RefIo<f32> {
    let mut io = RefIo::new();
    for (t, access) in op.operands() {
        let bytes = memory.bytes(t.span.region);
        match (access, t.dtype) {
            (Access::Write, _) => {}
            (_, DType::Bf16) => io.set(&t, bytes.chunks_exact(2).map(|b| wide(b.try_into().unwrap())).collect()),
            (_, DType::I32) => io.set_ints(&t, words(bytes).map(i32::from_ne_bytes).collect()),
            (_, _) => io.set(&t, words(bytes).map(f32::from_ne_bytes).collect()),
        }
    }
    io
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.chunks_exact(4).map(|b| b.try_into().unwrap())
}

fn wide(b: [u8; 2]) -> f32 {
    Element::to_f32(bf16::from_ne_bytes(b))
}

fn nearest(x: f32) -> bf16 {
    Element::from_f32(x)
}

fn towards_zero(x: f32) -> bf16 {
    bf16::from_bits((x.to_bits() >> 16) as u16)
}

/// Stores the outputs, bf16 ones by `to_bf16`.
fn store(op: &Op, io: &RefIo<f32>, to_bf16: fn(f32) -> bf16, memory: &mut Memory) {
    for (t, _) in op.operands().into_iter().filter(|(_, access)| access.writes()) {
        let values = io.get(&t);
        let bytes: Vec<u8> = match t.dtype {
            DType::Bf16 => values.iter().flat_map(|&x| to_bf16(x).to_ne_bytes()).collect(),
            _ => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        };
        memory.bytes_mut(t.span.region).copy_from_slice(&bytes);
    }
}

#[test]
fn the_last_element_is_never_written() {
    let applies = |case: &Case| Some(written(&case.op)?.1);
    refused(300, applies, |op, memory| {
        twin(op, memory);
        let (t, _) = written(op).unwrap();
        let bytes = memory.bytes_mut(t.span.region);
        let len = bytes.len();
        bytes[len - t.dtype.size_bytes() as usize..].fill(0xff);
    });
}

#[test]
fn the_last_row_of_an_in_place_op_is_skipped() {
    let rows = |t: &Tensor, access: Access| access == Access::Update && t.shape.rank() == 2;
    // At position 0 nothing turns; the gradient through the norm of large rows vanishes beside the residual one.
    let applies = |case: &Case| {
        let unseen = case.name.contains("token at 0") || case.name.contains("large values");
        first(&case.op, rows).map(|(_, name)| name).filter(|_| !unseen)
    };
    refused(100, applies, |op, memory| {
        let (t, _) = first(op, rows).unwrap();
        let row = memory.bytes(t.span.region).len() / t.shape.dim(0);
        let old = memory.bytes(t.span.region).to_vec();
        twin(op, memory);
        let keep = old.len() - row;
        memory.bytes_mut(t.span.region)[keep..].copy_from_slice(&old[keep..]);
    });
}

#[test]
fn rows_are_off_by_one() {
    let rows = |t: &Tensor, access: Access| access.writes() && t.shape.rank() == 2 && t.shape.dim(0) > 1;
    let applies = |case: &Case| {
        // There all rows are zero.
        let alike = case.name.contains("no row with a target") || case.name.starts_with("5x1,");
        first(&case.op, rows).map(|(_, name)| name).filter(|_| !alike)
    };
    refused(250, applies, |op, memory| {
        twin(op, memory);
        let (t, _) = first(op, rows).unwrap();
        let bytes = memory.bytes_mut(t.span.region);
        bytes.rotate_right(bytes.len() / t.shape.dim(0));
    });
}

#[test]
fn an_input_is_changed() {
    let read = |_: &Tensor, access: Access| access == Access::Read;
    refused(
        300,
        |case| first(&case.op, read).map(|(_, name)| name),
        |op, memory| {
            twin(op, memory);
            let (t, _) = first(op, read).unwrap();
            memory.bytes_mut(t.span.region)[0] ^= 1;
        },
    );
}

#[test]
fn bf16_results_are_truncated() {
    let large = |t: &Tensor, access: Access| access.writes() && t.dtype == DType::Bf16 && t.elems() >= 2000;
    let applies = |case: &Case| {
        // Copies and doublings need no rounding; nor do probabilities of 0 and 1.
        let copies =
            matches!(case.op, Op::GatherRows(_)) || case.name.contains("itself") || case.name.contains("bf16 to bf16,");
        let saturated = ["thousands", "far from zero", "large logits"].iter().any(|n| case.name.contains(n));
        first(&case.op, large).map(|(_, name)| name).filter(|_| !copies && !saturated)
    };
    refused(20, applies, |op, memory| {
        let mut io = loaded(op, memory);
        op.reference(&mut io);
        store(op, &io, towards_zero, memory);
    });
}

#[test]
fn f32_results_went_through_bf16() {
    let f32s = |t: &Tensor, access: Access| access.writes() && t.dtype == DType::F32 && t.elems() >= 30;
    let inputs_f32 = |case: &Case| case.op.operands().iter().all(|(t, _)| t.dtype != DType::Bf16);
    let trivial = |case: &Case| {
        // Zeros, and scores so large that their f32 rounding is a matter of percents after the exponential.
        ["zeros", "no row with", "5x1,", "thousands", "large logits"].iter().any(|n| case.name.contains(n))
            || matches!(case.op, Op::CrossEntropyLoss(_))
    };
    let applies = |case: &Case| first(&case.op, f32s).map(|(_, n)| n).filter(|_| inputs_f32(case) && !trivial(case));
    refused(80, applies, |op, memory| {
        twin(op, memory);
        let (t, _) = first(op, f32s).unwrap();
        let rounded: Vec<u8> = words(memory.bytes(t.span.region))
            .flat_map(|b| wide(nearest(f32::from_ne_bytes(b)).to_ne_bytes()).to_ne_bytes())
            .collect();
        memory.bytes_mut(t.span.region).copy_from_slice(&rounded);
    });
}

#[test]
fn accumulation_is_ignored_or_happens_unasked() {
    fn flipped(op: &Op) -> Option<Op> {
        let mut op = *op;
        match &mut op {
            Op::Matmul(op) => op.accumulate = !op.accumulate,
            Op::BiasGrad(op) => op.accumulate = !op.accumulate,
            Op::RmsNormBackward(op) => op.accumulate = !op.accumulate,
            Op::QkNormBackward(op) => op.accumulate = !op.accumulate,
            _ => return None,
        }
        // bf16 results never accumulate.
        op.check().ok().map(|()| op)
    }
    let applies = |case: &Case| {
        flipped(&case.op)?;
        Some(match case.op {
            Op::Matmul(_) => "c",
            Op::BiasGrad(_) => "dbias",
            Op::RmsNormBackward(_) => "dweight",
            _ => "dq_weight",
        })
    };
    refused(150, applies, |op, memory| twin(&flipped(op).unwrap(), memory));
}

#[test]
fn a_matmul_sums_in_bf16() {
    let applies = |case: &Case| match &case.op {
        Op::Matmul(m) if m.a.dtype == DType::Bf16 && m.sizes().2 >= 40 && !m.transpose_a && m.transpose_b => {
            (!m.accumulate).then_some("c")
        }
        _ => None,
    };
    refused(4, applies, |op, memory| {
        let Op::Matmul(matmul) = op else { unreachable!() };
        let mut io = loaded(op, memory);
        let (m, n, k) = matmul.sizes();
        let (a, b) = (io.get(&matmul.a), io.get(&matmul.b));
        let sum =
            |i: usize, j: usize| (0..k).fold(0.0, |sum, l| Element::to_f32(nearest(sum + a[i * k + l] * b[j * k + l])));
        io.set(&matmul.c, (0..m * n).map(|at| sum(at / n, at % n)).collect());
        store(op, &io, nearest, memory);
    });
}

#[test]
fn attention_looks_across_documents() {
    let applies = |case: &Case| match case.op {
        Op::Attention(_) if case.name.contains("documents") || case.name.contains("before 32") => Some("out"),
        Op::AttentionBackward(_) if case.name.contains("documents") => Some("dqkv"),
        _ => None,
    };
    refused(10, applies, |op, memory| {
        let mut io = loaded(op, memory);
        let borders = match op {
            Op::Attention(a) => a.cu_seqlens,
            Op::AttentionBackward(a) => a.cu_seqlens,
            _ => unreachable!(),
        };
        let last = *io.ints(&borders).last().unwrap();
        let mut merged = vec![last; borders.elems()];
        merged[0] = 0;
        io.set_ints(&borders, merged);
        op.reference(&mut io);
        store(op, &io, nearest, memory);
    });
}

#[test]
fn rope_angles_are_rounded_to_f32() {
    let applies = |case: &Case| match case.op {
        Op::Rope(_) if case.name.contains("f32 far positions") => Some("qkv"),
        _ => None,
    };
    refused(2, applies, |op, memory| {
        let Op::Rope(rope) = op else { unreachable!() };
        let mut io = loaded(op, memory);
        let (mut qkv, positions) = (io.get(&rope.qkv), io.ints(&rope.positions));
        let (head_dim, half) = (rope.head_dim as usize, rope.head_dim as usize / 2);
        let rotated = (rope.heads + rope.kv_heads) as usize * head_dim;
        for (row, &position) in qkv.chunks_mut(rope.qkv.shape.last()).zip(&positions) {
            for head in row[..rotated].chunks_mut(head_dim) {
                for (i, freq) in rope.rope.inv_freq(rope.head_dim).into_iter().enumerate() {
                    let (sin, cos) = (position as f32 * freq as f32).sin_cos();
                    let sin = if rope.inverse { -sin } else { sin };
                    let (a, b) = (head[i], head[i + half]);
                    (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        io.set(&rope.qkv, qkv);
        store(op, &io, nearest, memory);
    });
}

#[test]
fn an_executor_that_fails_says_so() {
    let case = &Op::all_cases()[0];
    let error = harness::check(case, |_, _| Err("no such kernel".into())).unwrap_err();
    assert!(error.contains("no such kernel") && error.contains(&case.name), "{error}");
}

#[test]
fn a_sum_of_squares_is_taken_in_f32_or_misses_what_is_not_finite() {
    let applies = |case: &Case| matches!(case.op, Op::SquareSum(_)).then_some("part");
    // Few elements in bf16 and small integers have a sum that is exact in f32.
    let exact = |case: &Case| {
        case.op.operands()[0].0.elems() < 30 || ["zeros", "infinit", "NaN"].iter().any(|n| case.name.contains(n))
    };
    refused(
        10,
        |case| applies(case).filter(|_| !exact(case)),
        |op, memory| {
            let Op::SquareSum(sum) = op else { unreachable!() };
            let x = loaded(op, memory).get(&sum.x);
            let part = [f64::from(x.iter().map(|x| x * x).sum::<f32>()), 0.0];
            memory.bytes_mut(sum.part.span.region).copy_from_slice(&part.map(f64::to_ne_bytes).concat());
        },
    );
    let not_finite = |case: &Case| ["infinit", "NaN"].iter().any(|n| case.name.contains(n));
    refused(
        10,
        |case| applies(case).filter(|_| not_finite(case)),
        |op, memory| {
            let Op::SquareSum(sum) = op else { unreachable!() };
            let x = loaded(op, memory).get(&sum.x);
            let finite = x.iter().filter(|x| x.is_finite()).map(|&x| f64::from(x) * f64::from(x)).sum();
            let count = x.iter().filter(|x| !x.is_finite()).count() as f64;
            let part: [f64; 2] = [finite, count];
            memory.bytes_mut(sum.part.span.region).copy_from_slice(&part.map(f64::to_ne_bytes).concat());
        },
    );
}
