//! The host tasks of a training step beside a plain copy: `cargo run --release -p megatrain-trainer --example host_tasks`.
//!
//! `--help` lists the sizes; their defaults are those of a 7-billion-parameter model with 65,536 tokens a step, and take
//! 18 GB. Memory comes from the arena, as in training. Bytes are those that a task must move: what it reads once and what
//! it writes once. The best round counts.

use anyhow::{Result, ensure};
use clap::Parser;
use megatrain_arena::{CommitOptions, Kind, Plan, RegionRef};
use megatrain_base::slab::ALIGN_ELEMS;
use megatrain_base::{Element, SlabLayout, bf16};
use megatrain_data::Random;
use megatrain_layers::Init;
use megatrain_optim::{AdamW, Grad, SquareSum, StepScalars, Weights, update_slab};
use megatrain_trainer::init::TensorInit;
use megatrain_trainer::tasks::{add, rows};
use rayon::prelude::*;
use std::time::Instant;

/// Times the host tasks of a training step.
#[derive(Parser)]
struct Sizes {
    /// Tokens of a step.
    #[arg(long, default_value_t = 65_536)]
    tokens: usize,
    /// Width of an embedding row.
    #[arg(long, default_value_t = 3_584)]
    hidden: usize,
    /// Rows of the embedding table.
    #[arg(long, default_value_t = 152_064)]
    vocab: usize,
    /// Million parameters of a unit: one tensor.
    #[arg(long, default_value_t = 545)]
    unit: usize,
    /// Threads; 0 for one a CPU.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Rounds of each task.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Which tokens a batch is made of.
#[derive(Clone, Copy)]
enum Ids {
    /// Frequency falls with rank, as in text (Zipf): every scale of ids is as frequent.
    Text,
    /// One token only: the worst case of adding up by rows.
    One,
}

fn ids(kind: Ids, sizes: &Sizes) -> Vec<i32> {
    let mut random = Random::new(0, 0);
    let mut id = || match kind {
        Ids::Text => ((sizes.vocab as f64).powf(random.below(1 << 40) as f64 / (1u64 << 40) as f64) - 1.0) as i32,
        Ids::One => sizes.vocab as i32 / 2,
    };
    (0..sizes.tokens).map(|_| id()).collect()
}

/// Regions of one arena, handed out as typed slices.
struct Memory {
    plan: Plan,
}

impl Memory {
    fn reserve<T>(&mut self, name: &str, elems: usize) -> usize {
        self.plan.reserve(name, Kind::Staging, (elems * size_of::<T>()) as u64)
    }
}

/// A region's elements.
///
/// # Safety
/// Nobody else may hold a slice of this region while this one lives.
unsafe fn slice<T: Element>(region: RegionRef<'_>) -> &mut [T] {
    // SAFETY: the arena zero-fills its regions, aligns them to pages and keeps them mapped for the life of the borrow; any
    // bits are a `T`. That nobody else holds a slice is the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(region.as_ptr().cast(), region.len_bytes() / size_of::<T>()) }
}

/// Prints the best of some rounds: time, rate and share of the copy's rate. Returns the rate, bytes a nanosecond.
fn time(what: &str, bytes: usize, rounds: usize, copy_rate: Option<f64>, mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    let rate = bytes as f64 / best / 1e9;
    let share = copy_rate.map(|copy| format!("  {:4.0} % of the copy", 100.0 * rate / copy)).unwrap_or_default();
    println!("{what:<34} {:9.2} ms {rate:8.1} GB/s{share}", 1e3 * best);
    rate
}

fn main() -> Result<()> {
    let sizes = Sizes::parse();
    ensure!(sizes.tokens > 0 && sizes.hidden > 0 && sizes.vocab > 0 && sizes.unit > 0, "every size is at least 1");
    rayon::ThreadPoolBuilder::new().num_threads(sizes.threads).build()?.install(|| run(&sizes))
}

fn run(sizes: &Sizes) -> Result<()> {
    let &Sizes { tokens, hidden, vocab, rounds, .. } = sizes;
    let unit = (sizes.unit * 1_000_000).next_multiple_of(ALIGN_ELEMS as usize);
    let mut memory = Memory { plan: Plan::new() };
    let table_elems = vocab * hidden;
    let [table, rows_down, rows_up] = [
        memory.reserve::<bf16>("table", table_elems),
        memory.reserve::<bf16>("gradients of rows", tokens * hidden),
        memory.reserve::<bf16>("rows", tokens * hidden),
    ];
    let sum = memory.reserve::<f32>("gradient", table_elems.max(unit));
    let [hi, lo] = ["high halves", "low halves"].map(|name| memory.reserve::<u16>(name, unit));
    let landed = memory.reserve::<bf16>("landed", unit);
    let [m, v] = ["first moments", "second moments"].map(|name| memory.reserve::<f32>(name, unit));
    let options = CommitOptions { threads: rayon::current_num_threads(), ..CommitOptions::default() };
    let arena = memory.plan.commit(&options)?;
    // SAFETY: each region is taken once.
    let (table, rows_down, rows_up, sum, hi, lo, landed, m, v) = unsafe {
        (
            slice::<bf16>(arena.region(table)),
            slice::<bf16>(arena.region(rows_down)),
            slice::<bf16>(arena.region(rows_up)),
            slice::<f32>(arena.region(sum)),
            slice::<u16>(arena.region(hi)),
            slice::<u16>(arena.region(lo)),
            slice::<bf16>(arena.region(landed)),
            slice::<f32>(arena.region(m)),
            slice::<f32>(arena.region(v)),
        )
    };
    println!(
        "{tokens} tokens of {hidden}, vocabulary {vocab}, a unit of {unit} parameters; {} threads, best of {rounds}",
        rayon::current_num_threads()
    );

    println!("\nbefore the first step");
    let init = TensorInit { seed: 0, tensor: 0, init: Init::Normal(0.02) };
    time("random weights, f32", 4 * unit, rounds, None, || init.fill_f32(&mut sum[..unit]));
    time("random weights, split masters", 4 * unit, rounds, None, || init.fill_split(hi, lo));
    let numbers = &*sum;
    for (out, scale) in [(&mut *table, 1.0), (rows_down, 1e-3), (landed, 1e-3)] {
        out.par_iter_mut().enumerate().for_each(|(i, x)| *x = bf16::from_f32(numbers[i % unit] * scale));
    }

    println!("\na step");
    let copy = time("copy", 8 * unit, rounds, None, || {
        m.par_chunks_mut(1 << 16).zip(v.par_chunks(1 << 16)).for_each(|(to, from)| to.copy_from_slice(from));
    });
    let (row_bytes, table_bytes) = (2 * tokens * hidden, 4 * table_elems);
    for (name, kind) in [("tokens as in text", Ids::Text), ("one token only", Ids::One)] {
        let ids = ids(kind, sizes);
        let distinct = ids.iter().collect::<std::collections::HashSet<_>>().len();
        println!("{name}: {distinct} distinct");
        time("  gather", row_bytes + 2 * distinct.min(tokens) * hidden, rounds, Some(copy), || {
            rows::gather(&ids, table, rows_up).expect("ids are inside");
        });
        let table_sum = &mut sum[..table_elems];
        time("  scatter, first", row_bytes + table_bytes, rounds, Some(copy), || {
            rows::scatter(&ids, rows_down, table_sum, true).expect("ids are inside");
        });
        time("  scatter, further", row_bytes + 8 * distinct * hidden, rounds, Some(copy), || {
            rows::scatter(&ids, rows_down, table_sum, false).expect("ids are inside");
        });
    }
    println!("a unit of one tensor");
    let mut layout = SlabLayout::new();
    layout.push("weight", [unit as u64], true);
    time("  add gradient, first", 6 * unit, rounds, Some(copy), || add(landed, &mut sum[..unit], true));
    time("  add gradient, further", 10 * unit, rounds, Some(copy), || add(landed, &mut sum[..unit], false));
    time("  square sum, bf16", 2 * unit, rounds, Some(copy), || {
        SquareSum::of_slab(&layout, Grad::Bf16(landed)).expect("a whole slab");
    });
    time("  square sum, f32", 4 * unit, rounds, Some(copy), || {
        SquareSum::of_slab(&layout, Grad::F32(&sum[..unit])).expect("a whole slab");
    });
    m.par_chunks_mut(1 << 16).for_each(|chunk| chunk.fill(0.0));
    let scalars = StepScalars::new(&AdamW::default(), 1e-5, 10, 1.0)?;
    time("  update, split masters, bf16", 26 * unit, rounds, Some(copy), || {
        update_slab(&layout, &scalars, Weights::Split { hi, lo }, m, v, Grad::Bf16(landed)).expect("finite");
    });
    Ok(())
}
