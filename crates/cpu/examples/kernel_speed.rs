//! Prints what each CPU kernel reaches at the shapes of SmolLM2-135M (4 sequences of 256 tokens), in f32 and bf16, next
//! to the fastest product and to a plain copy on this machine.
//!
//! `cargo run --release -p megatrain-cpu --example kernel_speed [threads]`

use megatrain_base::{DType, Operands, RegionId, Shape, Tensor};
use megatrain_cpu::kernels;
use megatrain_ops::*;
use std::cell::Cell;
use std::time::Instant;

const TOKENS: usize = 1024;
const HIDDEN: usize = 576;
const MLP: usize = 1536;
const VOCAB: usize = 49152;
const QKV: usize = (9 + 2 * 3) * 64;

#[derive(Default)]
struct Bench {
    next: Cell<u32>,
}

impl Bench {
    fn tensor(&self, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        self.next.set(self.next.get() + 1);
        Tensor::new(RegionId(self.next.get()), 0, dtype, shape)
    }

    /// Best seconds of several runs. Floats are filled with small numbers, `ints` goes to the integer operands.
    fn time(&self, op: impl Into<Op>, ints: &[i32]) -> f64 {
        let op = op.into();
        op.check().expect("the bench builds valid ops");
        let mut memory: Vec<Vec<u32>> = op
            .operands()
            .iter()
            .map(|(t, _)| {
                let words = (t.span.len_bytes as usize).div_ceil(4);
                let fill = |i: usize| match t.dtype {
                    DType::F32 => ((i * 7919 % 1000) as f32 * 1e-3 - 0.5).to_bits(),
                    DType::I32 => ints[i % ints.len()] as u32,
                    // Two bf16 between 0.25 and 1, one of them negative.
                    _ => 0x3e80_be80 | (((i as u32 * 7919) & 0x7f) << 16) | ((i as u32 * 104_729) & 0x7f),
                };
                (0..words).map(fill).collect()
            })
            .collect();
        let mut best = f64::MAX;
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < 0.4 {
            let operands = op.operands();
            let spans = operands.iter().zip(&mut memory).map(|((t, a), m)| (t.span, *a, m.as_mut_ptr().cast()));
            // SAFETY: every operand has a buffer of its own, long enough, alive and untouched until `run` returns.
            let operands = unsafe { Operands::new(spans) };
            let start = Instant::now();
            kernels::run(&op, &operands);
            best = best.min(start.elapsed().as_secs_f64());
        }
        best
    }

    /// GFLOP/s of a product.
    fn matmul(&self, [m, n, k]: [usize; 3], transpose: (bool, bool), dtypes: (DType, DType)) -> f64 {
        let op = Matmul {
            a: self.tensor(dtypes.0, if transpose.0 { [k, m] } else { [m, k] }),
            b: self.tensor(dtypes.0, if transpose.1 { [n, k] } else { [k, n] }),
            c: self.tensor(dtypes.1, [m, n]),
            transpose_a: transpose.0,
            transpose_b: transpose.1,
            accumulate: transpose.0,
        };
        2.0 * (m * n * k) as f64 / self.time(op, &[0]) / 1e9
    }

    fn bytes(&self, label: &str, op: impl Into<Op>, ints: &[i32], copy: f64) {
        let op = op.into();
        let (seconds, work) = (self.time(op, ints), op.work());
        let rate = work.bytes / seconds / 1e9;
        let flops = work.flops / seconds / 1e9;
        println!(
            "  {label:34} {:8.3} ms {rate:8.1} GB/s ({:3.0}% of copy) {flops:8.1} GFLOP/s",
            seconds * 1e3,
            100.0 * rate / copy
        );
    }
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool");
    println!("{} threads", pool.current_num_threads());
    pool.install(|| {
        let copy = copy_rate();
        println!("copy of 128 MiB, bytes read and written: {copy:.1} GB/s");
        for dtype in [DType::F32, DType::Bf16] {
            println!("{dtype}");
            products(dtype);
            others(dtype, copy);
        }
    });
}

fn copy_rate() -> f64 {
    use rayon::prelude::*;
    let from = vec![1u64; 16 << 20];
    let mut to = vec![0u64; 16 << 20];
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        to.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16)).for_each(|(to, from)| to.copy_from_slice(from));
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * (128 << 20) as f64 / best / 1e9
}

fn products(dtype: DType) {
    let b = Bench::default();
    let mut rows = Vec::new();
    for (name, n, k) in [
        ("qkv", QKV, HIDDEN),
        ("attention out", HIDDEN, HIDDEN),
        ("gate and up", 2 * MLP, HIDDEN),
        ("down", HIDDEN, MLP),
        ("head", VOCAB, HIDDEN),
    ] {
        let y = if name == "head" { DType::F32 } else { dtype };
        for (product, shape, transpose, result) in [
            ("y = x w^T", [TOKENS, n, k], (false, true), y),
            ("dx = dy w", [TOKENS, k, n], (false, false), dtype),
            ("dw += dy^T x", [n, k, TOKENS], (true, false), DType::F32),
        ] {
            rows.push((format!("{name}: {product}"), shape, b.matmul(shape, transpose, (dtype, result))));
        }
    }
    let best = rows.iter().map(|(.., rate)| *rate).fold(b.matmul([512; 3], (false, true), (dtype, dtype)), f64::max);
    println!("  fastest product {best:.0} GFLOP/s");
    for (label, [m, n, k], rate) in rows {
        println!("  {label:34} {m:>6} x {n:>6} x {k:>6} {rate:8.0} GFLOP/s ({:3.0}%)", 100.0 * rate / best);
    }
}

fn others(dtype: DType, copy: f64) {
    let b = &Bench::default();
    let wide = |b: &Bench| b.tensor(dtype, [TOKENS, QKV]);
    let hidden = |b: &Bench| b.tensor(dtype, [TOKENS, HIDDEN]);
    let (heads, kv_heads, head_dim, scale) = (9, 3, 64, 0.125);
    for (label, len) in [("4 x 256", 256), ("1 x 1024", 1024)] {
        let borders: Vec<i32> = (0..=TOKENS / len).map(|i| (i * len) as i32).collect();
        let cu_seqlens = b.tensor(DType::I32, [borders.len()]);
        let lse = b.tensor(DType::F32, [9, TOKENS]);
        let op = Attention { qkv: wide(b), cu_seqlens, out: hidden(b), lse, heads, kv_heads, head_dim, scale };
        b.bytes(&format!("attention {label}"), op, &borders, copy);
        let (dout, out, qkv, dqkv) = (hidden(b), hidden(b), wide(b), wide(b));
        let op = AttentionBackward { dout, out, qkv, lse, cu_seqlens, dqkv, heads, kv_heads, head_dim, scale };
        b.bytes(&format!("attention backward {label}"), op, &borders, copy);
    }
    let (weight, rstd) = (b.tensor(dtype, [HIDDEN]), b.tensor(DType::F32, [TOKENS]));
    let dweight = b.tensor(DType::F32, [HIDDEN]);
    let op = RmsNorm { x: hidden(b), weight, y: hidden(b), rstd, eps: 1e-5 };
    b.bytes("rms_norm", op, &[0], copy);
    let (dy, x, dx) = (hidden(b), hidden(b), hidden(b));
    let op = RmsNormBackward { dy, x, weight, rstd, dx, dweight, add_to_dx: true, accumulate: true };
    b.bytes("rms_norm_backward", op, &[0], copy);
    let gate_up = b.tensor(dtype, [TOKENS, 2 * MLP]);
    let out = b.tensor(dtype, [TOKENS, MLP]);
    b.bytes("swiglu", SwiGlu { gate_up, out }, &[0], copy);
    b.bytes("swiglu_backward", SwiGluBackward { dout: out, gate_up }, &[0], copy);
    let positions: Vec<i32> = (0..256).collect();
    let rope = RopeParams { theta: 1e5, scaling: RopeScaling::Default };
    let op = Rope {
        qkv: wide(b),
        positions: b.tensor(DType::I32, [TOKENS]),
        heads,
        kv_heads,
        head_dim,
        rope,
        inverse: false,
    };
    b.bytes("rope", op, &positions, copy);
    b.bytes("add", Add { a: hidden(b), b: hidden(b), out: hidden(b) }, &[0], copy);
    let op = GatherRows { x: b.tensor(dtype, [VOCAB, HIDDEN]), index: b.tensor(DType::I32, [TOKENS]), y: hidden(b) };
    b.bytes("gather_rows", op, &[5, 40_000, 17, 9_999], copy);
    let op = CrossEntropy {
        logits: b.tensor(DType::F32, [TOKENS, VOCAB]),
        targets: b.tensor(DType::I32, [TOKENS]),
        inv_targets: b.tensor(DType::F32, [1usize]),
        dlogits: b.tensor(dtype, [TOKENS, VOCAB]),
        losses: b.tensor(DType::F32, [TOKENS]),
    };
    b.bytes("cross_entropy", op, &[5, 40_000, 17, 9_999], copy);
}
