//! `megatrain bench ops`: every op at the shapes of a model, beside its floor: the time that its bytes take at the rate of a
//! large copy, or its arithmetic at the rate of a large product, both measured in the same run.
//!
//! The list is what the planner emits for a step of two micro-batches, so a new op or shape appears by itself; ops that the
//! model does not use follow at its sizes.

mod bed;

use super::machine::ops::{Shapes, linear, placed};
use super::machine::stage::{DEVICE, Places};
use crate::options::{Device, Dtype, TrainOptions, whole};
use crate::setup::{self, Source, StepShape};
use crate::simulation::work_in_documents;
use anyhow::{Result, bail};
use bed::Bed;
use clap::Args;
use megatrain_base::{Access, Tensor};
use megatrain_ops::{Matmul, Op};
use megatrain_planner::{Model, Plan};
use megatrain_scheduler::Cmd;

/// Options of the benchmark.
#[derive(Args, Clone, Debug)]
pub struct OpsOptions {
    /// auto, cpu or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Device,
    /// Built-in architecture.
    #[arg(long, value_name = "NAME", default_value = "qwen2.5-7b")]
    shape: String,
    /// Tokens in a micro-batch [default: 16384 on a GPU, 1024 on the processor].
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    tokens: Option<usize>,
    /// Tokens in a document.
    #[arg(long, value_name = "S", default_value_t = 1024, value_parser = whole::<usize>)]
    seq: usize,
    /// Only ops whose name has this in it.
    #[arg(long, value_name = "NAME", default_value = "")]
    filter: String,
    /// Numbers to compute with [default: bf16, on a processor without AMX f32].
    #[arg(long, value_name = "f32|bf16")]
    dtype: Option<Dtype>,
    /// Threads of the processor's kernels; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<usize>)]
    threads: usize,
}

/// Micro-batches of the step: the first writes gradients, the second adds to them.
const MICROS: usize = 2;

/// How long an op is repeated, and the product that gives the peak, in seconds.
const OP_S: f64 = 0.2;
const PEAK_S: f64 = 1.0;

/// What is copied to measure memory and to flush caches: more than they hold.
const POOL_BYTES: u64 = 256 << 20;

/// Ops named in the last line.
const WORST: usize = 5;

/// An op at one shape.
#[derive(Clone, PartialEq, Debug)]
struct Row {
    op: Op,
    /// How often in a step, in one block of the model.
    in_block: usize,
    /// How often in a step.
    in_step: usize,
}

/// A timed row.
struct Timed {
    row: Row,
    us: f64,
    /// The longer of what bytes and arithmetic take.
    floor_us: f64,
}

/// The peaks that floors are made of.
#[derive(Clone, Copy, Debug)]
struct Peaks {
    gb_s: f64,
    tflops: f64,
}

impl Peaks {
    /// Microseconds that an op takes at least, whether that is for its arithmetic, and the table's rate for `us`.
    fn floor(&self, op: &Op, document: usize, us: f64) -> (f64, String) {
        let work = work_in_documents(op, document);
        let (bytes_us, flops_us) = (work.bytes / self.gb_s / 1e3, work.flops / self.tflops / 1e6);
        if flops_us > bytes_us {
            (flops_us, flop_rate(work.flops / us / 1e6))
        } else {
            (bytes_us, format!("{:.0} GB/s", work.bytes / us / 1e3))
        }
    }
}

/// `600.0 TFLOP/s`, `80.0 GFLOP/s`.
fn flop_rate(tflops: f64) -> String {
    if tflops < 1.0 { format!("{:.1} GFLOP/s", 1e3 * tflops) } else { format!("{tflops:.1} TFLOP/s") }
}

/// Runs the benchmark and prints its table.
///
/// # Errors
/// Sizes that do not go into one another, a filter that nothing passes, a device or memory that cannot be had.
pub fn run(options: &OpsOptions) -> Result<()> {
    crate::check::threads(options.threads)?;
    let device = super::measured(options.device);
    let gpu = device != Device::Cpu;
    let source = Source::preset(&options.shape)?;
    let tokens = options.tokens.unwrap_or(if gpu { 16_384 } else { 1024 });
    let seq = options.seq;
    if seq == 0 || tokens == 0 || !tokens.is_multiple_of(seq) {
        bail!("--tokens {tokens} must be a multiple of --seq {seq}");
    }
    let mut rows = rows(&source.model, tokens, seq, options.dtype, gpu)?;
    rows.retain(|row| row.op.name().contains(&options.filter));
    if rows.is_empty() {
        bail!("--filter {}: there is no such op; there are {}", options.filter, Op::NAMES.join(", "));
    }
    let largest = if gpu { 8192 } else { 1536 };
    let [product, ..] = linear(setup::dtype(options.dtype, gpu), [largest; 3]);
    let product = in_bed(product, POOL_BYTES);
    rows.iter_mut().for_each(|row| row.op = in_bed(row.op, POOL_BYTES));
    let ops: Vec<Op> = rows.iter().map(|row| row.op).chain([product]).collect();
    say!("filling memory");
    let mut bed = Bed::new(device, &ops, POOL_BYTES, options.threads)?;
    let products = |op: &Op| if let Op::Matmul(op) = op { Some(*op) } else { None };
    bed.prepare(&ops.iter().filter_map(products).collect::<Vec<Matmul>>())?;

    let copy = bed.copy();
    let gb_s = copy.work().bytes / bed.time_us(&copy, 1, OP_S)? / 1e3;
    let tflops = product.work().flops / bed.time_us(&product, 1, PEAK_S)? / 1e6;
    let peaks = Peaks { gb_s, tflops };
    tell!(
        "{}: a copy of {} MiB {gb_s:.0} GB/s, a product {} {}",
        bed.name,
        POOL_BYTES >> 20,
        label(&product),
        flop_rate(tflops)
    );
    tell!("{}, {MICROS} micro-batches of {tokens} tokens in documents of {seq}", options.shape);
    tell!("{:<20} {:<46} {:>6} {:>6} {:>11} {:>15} {:>6}", "op", "shape", "/block", "/step", "us", "rate", "floor");
    let mut timed = Vec::new();
    for row in rows {
        let us = bed.time_us(&row.op, seq, OP_S)?;
        let (floor_us, rate) = peaks.floor(&row.op, seq, us);
        tell!(
            "{:<20} {:<46} {:>6} {:>6} {us:>11.1} {rate:>15} {:>5.0}%",
            row.op.name(),
            label(&row.op),
            row.in_block,
            row.in_step,
            100.0 * floor_us / us
        );
        timed.push(Timed { row, us, floor_us });
    }
    tell!("{}", sums(&timed));
    Ok(())
}

/// What the planner emits for a step, each op at each shape once, in order of appearance; then the ops that it does not.
fn rows(model: &Model, tokens: usize, seq: usize, asked: Option<Dtype>, gpu: bool) -> Result<Vec<Row>> {
    let micro = tokens / seq;
    let options = TrainOptions { dtype: asked, ..TrainOptions::default() };
    let shape = StepShape { seq_len: seq, batch_size: MICROS * micro, micro_batch_size: micro };
    let settings = setup::settings(&options, model, shape, gpu)?;
    let (dtype, logits_rows) = (settings.dtype, settings.logits_rows.min(tokens));
    let plan = Plan::new(model.clone(), settings)?;
    let block = model.block_unit(model.blocks() / 2);
    let mut rows: Vec<Row> = Vec::new();
    for entry in &plan.train(MICROS)?.commands {
        let Cmd::Launch(op) = &entry.cmd else { continue };
        let op = placed(*op);
        let at = rows.iter().position(|row| row.op == op).unwrap_or_else(|| {
            rows.push(Row { op, in_block: 0, in_step: 0 });
            rows.len() - 1
        });
        rows[at].in_step += 1;
        rows[at].in_block += usize::from(entry.label.unit == Some(block));
    }
    let config = &model.config;
    let shapes = Shapes {
        tokens,
        hidden: config.hidden,
        intermediate: config.intermediate,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        vocab: config.vocab,
        logits_rows,
        documents: &[],
        products: &[],
    };
    let others = shapes.rows(dtype).into_iter().filter(|op| rows.iter().all(|row| row.op.name() != op.name()));
    let others: Vec<Row> = others.map(|op| Row { op, in_block: 0, in_step: 0 }).collect();
    rows.extend(others);
    Ok(rows)
}

/// The op with its operands behind the pools.
fn in_bed(mut op: Op, pool_bytes: u64) -> Op {
    let mut places = Places::from(DEVICE, 2 * pool_bytes);
    op.map(&mut |t: &mut Tensor| *t = places.tensor(t.dtype, t.shape));
    op
}

/// `16384 x 4608 x 3584, b^T, bf16`, or the largest operand: `qkv [16384, 4608] bf16`; with what of it is updated in place.
fn label(op: &Op) -> String {
    let operands: Vec<_> = op.operands().into_iter().zip(op.operand_names()).collect();
    let (what, dtype) = match op {
        Op::Matmul(op) => {
            let (m, n, k) = op.sizes();
            let turned = |is: bool, name: &'static str| if is { name } else { "" };
            let (a, b) = (turned(op.transpose_a, ", a^T"), turned(op.transpose_b, ", b^T"));
            (format!("{m} x {n} x {k}{a}{b}"), op.a.dtype)
        }
        _ => {
            let largest = operands.iter().rev().max_by_key(|((t, _), _)| t.elems());
            let Some(((t, _), name)) = largest else { return String::new() };
            (format!("{name} {}", t.shape), t.dtype)
        }
    };
    let updated = operands.iter().filter(|((_, access), _)| *access == Access::Update).map(|(_, name)| **name);
    let updated: Vec<&str> = updated.collect();
    let casts = if let Op::Cast(op) = op { format!(" to {}", op.y.dtype) } else { String::new() };
    let in_place = if updated.is_empty() { String::new() } else { format!(", {} +=", updated.join(", ")) };
    format!("{what} {dtype}{casts}{in_place}")
}

/// The sums, and where most time is lost.
fn sums(timed: &[Timed]) -> String {
    let sum = |count: &dyn Fn(&Row) -> usize| {
        timed.iter().fold((0.0, 0.0), |(us, floor), t| {
            let count = count(&t.row) as f64;
            (us + count * t.us, floor + count * t.floor_us)
        })
    };
    let line = |what: &str, (us, floor): (f64, f64)| {
        let share = if us > 0.0 { 100.0 * floor / us } else { 0.0 };
        format!("{what}: {:.3} ms, floor {:.3} ms ({share:.0}%)", us / 1e3, floor / 1e3)
    };
    let (block, step) = (sum(&|row| row.in_block), sum(&|row| row.in_step));
    let mut lost: Vec<(f64, &Timed)> = timed.iter().map(|t| (t.row.in_step as f64 * (t.us - t.floor_us), t)).collect();
    lost.sort_by(|a, b| b.0.total_cmp(&a.0));
    let worst: Vec<String> = lost
        .iter()
        .take(WORST)
        .filter(|(us, _)| *us > 0.0)
        .map(|(us, t)| {
            let share = 100.0 * us / (step.0 - step.1).max(f64::MIN_POSITIVE);
            format!("{} {} {:.1} ms ({share:.0}%)", t.row.op.name(), label(&t.row.op), us / 1e3)
        })
        .collect();
    let worst = if worst.is_empty() { "nothing".into() } else { worst.join("; ") };
    format!("{}\n{}\nlost in a step: {worst}", line("one block, both ways", block), line("all ops of a step", step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_base::DType;

    fn rows_of(preset: &str, tokens: usize, seq: usize) -> Vec<Row> {
        rows(&Source::preset(preset).unwrap().model, tokens, seq, Some(Dtype::F32), false).unwrap()
    }

    #[test]
    fn every_op_is_listed_once_a_shape_and_counted_as_often_as_the_step_has_it() {
        let model = Source::preset("qwen2.5-7b").unwrap().model;
        let rows = rows_of("qwen2.5-7b", 1024, 256);
        for name in Op::NAMES {
            assert!(rows.iter().any(|row| row.op.name() == *name), "{name} is not timed");
        }
        for (i, row) in rows.iter().enumerate() {
            row.op.check().unwrap();
            assert!(rows[..i].iter().all(|other| other.op != row.op), "{} {}", row.op.name(), label(&row.op));
        }
        let count = |name: &str| -> (usize, usize) {
            let of_name = rows.iter().filter(|row| row.op.name() == name);
            of_name.fold((0, 0), |(block, step), row| (block + row.in_block, step + row.in_step))
        };
        // Once a micro-batch and block; not at all where the model has no such norm.
        assert_eq!(count("attention"), (MICROS, MICROS * model.blocks()));
        assert_eq!(count("attention_backward"), (MICROS, MICROS * model.blocks()));
        assert_eq!(count("qk_norm"), (0, 0));
    }

    #[test]
    fn floors_and_sums_are_those_of_hand() {
        let peaks = Peaks { gb_s: 1000.0, tflops: 100.0 };
        let [product, ..] = linear(DType::Bf16, [1000, 1000, 1000]);
        // 2e9 operations at 100 TFLOP/s, 6e6 bytes at 1000 GB/s.
        let (floor_us, rate) = peaks.floor(&product, 1, 40.0);
        assert_eq!((floor_us, rate.as_str()), (20.0, "50.0 TFLOP/s"));
        let slow = Peaks { gb_s: 100.0, ..peaks };
        assert_eq!(slow.floor(&product, 1, 120.0), (60.0, "50 GB/s".into()));
        let timed = [Timed { row: Row { op: product, in_block: 2, in_step: 6 }, us: 40.0, floor_us: 20.0 }];
        let text = sums(&timed);
        assert!(text.contains("one block, both ways: 0.080 ms, floor 0.040 ms (50%)"), "{text}");
        assert!(text.contains("lost in a step: matmul 1000 x 1000 x 1000, b^T bf16 0.1 ms (100%)"), "{text}");
    }

    #[test]
    fn every_op_of_a_small_model_runs_in_its_bed() {
        const POOL: u64 = 1 << 20;
        // More tokens than the vocabulary has, a document shorter than a block of the kernels.
        let rows = rows_of("demo", 600, 30);
        let ops: Vec<Op> = rows.iter().map(|row| in_bed(row.op, POOL)).collect();
        let mut bed = Bed::new(Device::Cpu, &ops, POOL, 2).unwrap();
        for op in &ops {
            let us = bed.time_us(op, 30, 0.001).unwrap();
            assert!(us > 0.0 && us.is_finite(), "{}: {us}", op.name());
        }
    }
}
