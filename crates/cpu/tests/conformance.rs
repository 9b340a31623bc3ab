//! The CPU kernels against the reference twins, with pools of 1, 2 and 3 threads, on every instruction set this machine
//! has; and matrix products larger than the twins can check.

use megatrain_base::{DType, Element, Operands, RegionId, Tensor, bf16};
use megatrain_cpu::kernels;
use megatrain_ops::{Attention, AttentionBackward, Case, Fill, Matmul, Op, OpArgs, Places, harness};
use std::process::Command;

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

/// The cases of every op, and attention over documents long enough for every block border of the kernels (keys come
/// in blocks of 256 and 512, queries in blocks of 128).
fn all_cases() -> Vec<Case> {
    let mut cases = Op::all_cases();
    let lens = [530usize, 1, 0, 257, 128, 700, 2];
    let borders: Vec<i32> = (0..=lens.len()).map(|i| lens[..i].iter().sum::<usize>() as i32).collect();
    let tokens = *borders.last().unwrap() as usize;
    for dtype in [DType::F32, DType::Bf16] {
        let (heads, kv_heads, head_dim, scale) = (3, 1, 8, 0.35);
        let mut at = Places::default();
        let qkv = at.tensor(dtype, [tokens, 5 * 8]);
        let cu_seqlens = at.tensor(DType::I32, [borders.len()]);
        let out = at.tensor(dtype, [tokens, 3 * 8]);
        let lse = at.tensor(DType::F32, [3, tokens]);
        let forward = Attention { qkv, cu_seqlens, out, lse, heads, kv_heads, head_dim, scale };
        let (dout, dqkv) = (at.tensor(dtype, [tokens, 3 * 8]), at.tensor(dtype, [tokens, 5 * 8]));
        let backward = AttentionBackward { dout, out, qkv, lse, cu_seqlens, dqkv, heads, kv_heads, head_dim, scale };
        let borders = || Fill::Ints(borders.clone());
        cases.push(Case::new(format!("long documents in {dtype}"), forward).fill(cu_seqlens, borders()));
        let case = Case::new(format!("long documents in {dtype}"), backward).fill(cu_seqlens, borders());
        let from_forward = || Fill::From(Box::new(forward.into()));
        cases.push(case.fill(out, from_forward()).fill(lse, from_forward()));
    }
    cases
}

/// Runs every case on each pool, demands equal bits and that the harness is content; hands each case's memory to `visit`.
fn check_all(pools: &[rayon::ThreadPool], mut visit: impl FnMut(&str, &str, &[Vec<u8>])) {
    let mut failures = Vec::new();
    for case in all_cases() {
        let name = format!("{} ({})", case.op.name(), case.name);
        let mut results: Vec<Vec<Vec<u8>>> = Vec::new();
        let report = harness::check(&case, |op, memory| {
            let regions: Vec<RegionId> = memory.regions().collect();
            let bytes = |memory: &harness::Memory| -> Vec<Vec<u8>> {
                regions.iter().map(|&region| memory.bytes(region).to_vec()).collect()
            };
            let before = bytes(memory);
            for pool in pools {
                for (&region, before) in regions.iter().zip(&before) {
                    memory.bytes_mut(region).copy_from_slice(before);
                }
                pool.install(|| kernels::run(op, &memory.operands(op)));
                results.push(bytes(memory));
            }
            Ok(())
        });
        failures.extend(report.err());
        for (pool, result) in pools.iter().zip(&results) {
            assert!(*result == results[0], "{name}: {} threads give other bits", pool.current_num_threads());
        }
        visit(case.op.name(), &case.name, &results[0]);
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_case_passes_with_the_same_bits_on_one_two_and_three_threads() {
    let mut count = 0;
    check_all(&[pool(1), pool(2), pool(3)], |_, _, _| count += 1);
    assert!(count >= Op::NAMES.len());
}

/// Run by the next test in processes of their own: instruction sets are chosen once a process.
#[test]
#[ignore = "prints for another test"]
fn print_digests() {
    check_all(&[pool(2)], |op, case, bytes| {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for &byte in bytes.iter().flatten() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        println!("\ndigest {op} {case}: {hash:x}");
    });
}

#[test]
fn every_case_passes_on_every_instruction_set_and_only_products_differ_in_bits() {
    let digests = |isa: &str| -> Vec<String> {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "print_digests", "--ignored", "--nocapture"])
            .env("MEGATRAIN_ISA", isa)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{isa}: {text}{}", String::from_utf8_lossy(&output.stderr));
        let products = ["digest matmul ", "digest attention"];
        text.lines()
            .filter(|l| l.starts_with("digest ") && !products.iter().any(|p| l.starts_with(p)))
            .map(str::to_owned)
            .collect()
    };
    let widest = digests("avx512");
    assert!(widest.len() > 20, "{widest:?}");
    for isa in ["avx2", "baseline"] {
        for (a, b) in widest.iter().zip(&digests(isa)) {
            assert_eq!(a, b, "{isa}");
        }
    }
}

/// Deterministic numbers in [-1, 1) whose low bits matter.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Matrices a, b, c of one product, in memory.
struct Product {
    op: Matmul,
    buffers: [Vec<f32>; 3],
}

impl Product {
    fn new(shape: (usize, usize, usize), transpose: (bool, bool), dtypes: (DType, DType), accumulate: bool) -> Self {
        let (m, n, k) = shape;
        let tensor = |region, dtype, rows: usize, cols: usize, swap: bool| {
            Tensor::new(RegionId(region), 0, dtype, if swap { [cols, rows] } else { [rows, cols] })
        };
        let op = Matmul {
            a: tensor(0, dtypes.0, m, k, transpose.0),
            b: tensor(1, dtypes.0, k, n, transpose.1),
            c: tensor(2, dtypes.1, m, n, false),
            transpose_a: transpose.0,
            transpose_b: transpose.1,
            accumulate,
        };
        Op::from(op).check().unwrap();
        let mut buffers = [numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3)];
        if dtypes.0 == DType::Bf16 {
            for x in buffers[..2].iter_mut().flatten() {
                *x = Element::to_f32(<bf16 as Element>::from_f32(*x));
            }
        }
        Product { op, buffers }
    }

    fn run(&self, threads: usize) -> Vec<f32> {
        let stored = |x: &[f32], dtype: DType| -> Vec<u32> {
            if dtype == DType::F32 {
                return x.iter().map(|x| x.to_bits()).collect();
            }
            let half = |x: &f32| u32::from(<bf16 as Element>::from_f32(*x).to_bits());
            x.chunks(2).map(|pair| half(&pair[0]) | pair.get(1).map_or(0, half) << 16).collect()
        };
        let operands = OpArgs::operands(&self.op);
        let mut memory: Vec<Vec<u32>> =
            operands.iter().zip(&self.buffers).map(|((t, _), x)| stored(x, t.dtype)).collect();
        pool(threads).install(|| {
            let spans =
                operands.iter().zip(&mut memory).map(|((t, access), m)| (t.span, *access, m.as_mut_ptr().cast()));
            // SAFETY: each operand has a buffer of its own with room for its span, untouched by others meanwhile.
            let operands = unsafe { Operands::new(spans) };
            kernels::run(&Op::from(self.op), &operands);
        });
        let c = &memory[2];
        (0..self.op.c.elems())
            .map(|i| match self.op.c.dtype {
                DType::F32 => f32::from_bits(c[i]),
                _ => Element::to_f32(bf16::from_bits((c[i / 2] >> (16 * (i % 2))) as u16)),
            })
            .collect()
    }

    /// Row i of the left factor against column j of the right one, in f64 and in a plain f32 loop.
    fn truth_and_plain(&self, i: usize, j: usize) -> (f64, f64) {
        let (m, n) = (self.op.c.shape.dim(0), self.op.c.shape.dim(1));
        let k = self.buffers[0].len() / m;
        let start = if self.op.accumulate { self.buffers[2][i * n + j] } else { 0.0 };
        let (mut truth, mut plain) = (0.0f64, 0.0f32);
        for t in 0..k {
            let a = self.buffers[0][if self.op.transpose_a { t * m + i } else { i * k + t }];
            let b = self.buffers[1][if self.op.transpose_b { j * k + t } else { t * n + j }];
            truth += f64::from(a) * f64::from(b);
            plain += a * b;
        }
        (truth + f64::from(start), f64::from(plain + start))
    }

    /// Compares some elements of the result, corners and edges of blocks among them: the largest error may be twice
    /// that of the plain loop, and one rounding to the result's dtype.
    fn check(&self) {
        let (m, n) = (self.op.c.shape.dim(0), self.op.c.shape.dim(1));
        let c = self.run(2);
        let mut worst = (0.0f64, 0.0f64);
        let picks = |len: usize| -> Vec<usize> {
            let mut at: Vec<usize> = (0..14).map(|i| i * 104_729 % len).collect();
            at.extend([0, 31, 32, 127, 128, 255, 256, 1023, 1024, len - 1].into_iter().filter(|&i| i < len));
            at
        };
        for &i in &picks(m) {
            for &j in &picks(n) {
                let (truth, plain) = self.truth_and_plain(i, j);
                let rounding = self.op.c.dtype.unit_roundoff() * truth.abs();
                let error = (f64::from(c[i * n + j]) - truth).abs() - rounding;
                worst = (worst.0.max(error), worst.1.max((plain - truth).abs()));
            }
        }
        assert!(worst.0 <= 2.0 * worst.1, "{:?}: error {:e}, plain loop {:e}", self.op, worst.0, worst.1);
        for threads in [1, 3] {
            assert!(self.run(threads) == c, "{threads} threads give other bits than two: {:?}", self.op);
        }
    }
}

#[test]
fn large_products_are_as_accurate_as_a_plain_f32_loop() {
    use DType::{Bf16, F32};
    // Shapes that cross every block border of the kernels: panels, tasks, packed blocks, stretches of k.
    let shapes = [(1, 1, 1), (1, 300, 65), (300, 1, 5), (33, 95, 700), (1030, 70, 33), (130, 1100, 96), (48, 40, 4500)];
    for shape in shapes {
        for transpose in [(false, false), (false, true), (true, false), (true, true)] {
            for dtypes in [(F32, F32), (Bf16, F32), (Bf16, Bf16)] {
                Product::new(shape, transpose, dtypes, false).check();
            }
            Product::new(shape, transpose, (F32, F32), true).check();
            Product::new(shape, transpose, (Bf16, F32), true).check();
        }
    }
}

#[test]
fn results_too_large_for_the_caches_are_written_whole() {
    // 33 MiB of f32, rows of whole cache lines and not.
    for n in [4112, 4109] {
        Product::new((2080, n, 17), (false, true), (DType::F32, DType::F32), false).check();
    }
}

#[test]
fn factors_that_are_not_finite_show_in_their_rows_only() {
    for (bad, dtype) in [(f32::NAN, DType::F32), (f32::INFINITY, DType::F32), (f32::NAN, DType::Bf16)] {
        let mut product = Product::new((70, 40, 50), (false, true), (dtype, DType::F32), false);
        product.buffers[0][33 * 50 + 7] = bad;
        for (i, row) in product.run(2).chunks(40).enumerate() {
            assert!(row.iter().all(|x| x.is_finite() == (i != 33)), "{bad} in {dtype}, row {i}");
        }
    }
}

#[test]
fn large_and_small_f32_factors_keep_their_accuracy() {
    let mut product = Product::new((40, 40, 64), (false, true), (DType::F32, DType::F32), false);
    for (i, x) in product.buffers[0].iter_mut().enumerate() {
        *x *= 2f32.powi((i / 64) as i32 * 2 - 60);
    }
    let c = product.run(1);
    // In units of each row's scale, so that the worst of the plain loop is taken over many sums, not over one row's.
    let (mut worst, mut plain_worst) = ((0.0f64, 0), 0.0f64);
    for i in 0..40 {
        for j in 0..40 {
            let scale = 2f64.powi(i as i32 * 2 - 60);
            let (truth, plain) = product.truth_and_plain(i, j);
            let ours = (f64::from(c[i * 40 + j]) - truth).abs() / scale;
            if ours > worst.0 {
                worst = (ours, i);
            }
            plain_worst = plain_worst.max((plain - truth).abs() / scale);
        }
    }
    assert!(worst.0 <= 2.0 * plain_worst, "row {}: {:e}, plain loop {plain_worst:e}", worst.1, worst.0);
}
