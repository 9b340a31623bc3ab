//! `megatrain bench machine`: the figures that the simulator needs, measured through the executor that trains.
//!
//! | file | does |
//! |---|---|
//! | `stage` | memory and an executor for small programs |
//! | `ops` | the ops that are timed, and their shapes |
//! | `host` | the host tasks that are timed, alone and beside the link |

mod host;
pub(super) mod ops;
pub(super) mod stage;

use crate::options::{Device, whole};
use crate::setup;
use anyhow::{Context, Result};
use clap::Args;
use host::{Tasks, copy_down, copy_up};
use megatrain_base::{Access, DType, Span};
use megatrain_ops::Op;
use megatrain_scheduler::{ComputeRate, MachineProfile, OpRate, TaskRate};
use ops::{Shapes, integers, linear};
use stage::{COMPUTE, COPY_BYTES, D2H, DEVICE, H2D, Stage, UP, UPDATE};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Options of the benchmark.
#[derive(Args, Clone, Debug)]
pub struct MachineOptions {
    /// auto, cpu or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Device,
    /// Threads of the host tasks; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<usize>)]
    threads: usize,
    /// Where to write the figures, for `megatrain plan --profile`.
    #[arg(long, value_name = "FILE.json", default_value = "machine.json")]
    out: PathBuf,
}

/// How long an op is repeated, in seconds.
const OP_S: f64 = 0.1;

/// How long the largest product is repeated, so that the device's clocks are those of a long run.
const SUSTAINED_S: f64 = 1.0;

/// What is printed last: a figure, its unit, what it is to be seen beside.
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    beside: String,
}

#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, beside: impl Into<String>) {
        self.0.push(Row { name: name.into(), value, unit, beside: beside.into() });
    }

    fn share(&mut self, name: impl Into<String>, value: f64, unit: &'static str, whole: f64, of: &str) {
        self.add(name, value, unit, format!("{:.2} of {of}", value / whole));
    }
}

/// Measures this machine, writes its profile and prints the figures.
///
/// # Errors
/// No such device, memory that cannot be had, a file that cannot be written.
pub fn run(options: &MachineOptions) -> Result<()> {
    crate::check::threads(options.threads)?;
    let start = Instant::now();
    let (profile, table) = measure(options)?;
    profile.check().context("internal error: a figure cannot be")?;
    std::fs::write(&options.out, serde_json::to_string_pretty(&profile)? + "\n")
        .with_context(|| format!("writing {}", options.out.display()))?;
    tell!("{}, measured in {:.0} s, written to {}", profile.name, start.elapsed().as_secs_f64(), options.out.display());
    for Row { name, value, unit, beside } in &table.0 {
        let decimals = if *value < 10.0 { 3 } else { 1 };
        tell!("{name:<44} {value:>10.decimals$} {unit:<8} {beside}");
    }
    Ok(())
}

fn measure(options: &MachineOptions) -> Result<(MachineProfile, Table)> {
    let device = super::measured(options.device);
    let gpu = device != Device::Cpu;
    let (shapes, dtype) = if gpu { (ops::GPU, DType::Bf16) } else { (ops::CPU, setup::dtype(None, false)) };
    let tasks = Tasks::new(dtype)?;
    let stage =
        Stage::new(device, tasks.model.clone(), tasks.bytes, &tasks.zeros, &all_ops(&shapes, dtype), options.threads)?;
    tasks.prepare(&stage)?;
    say!("measuring {} and {} threads in {dtype}", stage.device, stage.threads);

    let mut table = Table::default();
    let mut profile = MachineProfile {
        name: format!("{}, {} threads, {dtype}", stage.device, stage.threads),
        h2d_gb_s: 1.0,
        d2h_gb_s: 1.0,
        both_ways_gb_s: 1.0,
        compute_tflops: ComputeRate::Flat(1.0),
        device_gb_s: 1.0,
        ops: BTreeMap::new(),
        host_tflops: 1.0,
        host_gb_s: 1.0,
        host_cores_gb_s: None,
        tasks: BTreeMap::new(),
        // Not measured: nothing that is simulated so far reads files or has peers in a step.
        file_gb_s: 1.0,
        peer_gb_s: 100.0,
        launch_us: 0.0,
        event_us: 0.0,
        hop_us: None,
        device_is_host: stage.on_host,
    };
    link(&stage, &mut profile, &mut table)?;
    host(&stage, &tasks, &mut profile, &mut table)?;
    delays(&stage, &tasks, &mut profile, &mut table)?;
    products(&stage, &shapes, dtype, &mut profile, &mut table)?;
    rows(&stage, &shapes, dtype, &mut profile, &mut table)?;
    attention(&stage, &shapes, dtype, &mut profile, &mut table)?;
    Ok((profile, table))
}

fn all_ops(shapes: &Shapes, dtype: DType) -> Vec<Op> {
    let attention = shapes.documents.iter().flat_map(|&d| shapes.attention(dtype, d));
    let products = shapes.products.iter().flat_map(|&p| linear(dtype, p));
    shapes.rows(dtype).into_iter().chain(attention).chain(products).collect()
}

fn link(stage: &Stage, profile: &mut MachineProfile, table: &mut Table) -> Result<()> {
    say!("  link");
    let gb_s = |seconds: f64, copies: f64| copies * COPY_BYTES as f64 / seconds / 1e9;
    profile.h2d_gb_s = gb_s(stage.time("copies up", H2D, 0.4, copy_up)?, 1.0);
    profile.d2h_gb_s = gb_s(stage.time("copies down", D2H, 0.4, copy_down)?, 1.0);
    let both = stage.time("copies both ways", H2D, 0.4, |b| {
        copy_up(b);
        copy_down(b);
    })?;
    profile.both_ways_gb_s = gb_s(both, 2.0).min(profile.h2d_gb_s + profile.d2h_gb_s);
    table.add("link, up", profile.h2d_gb_s, "GB/s", "");
    table.add("link, down", profile.d2h_gb_s, "GB/s", "");
    let sum = profile.h2d_gb_s + profile.d2h_gb_s;
    table.share("link, both at once", profile.both_ways_gb_s, "GB/s", sum, "up plus down");
    let half = Span::new(DEVICE, 0, COPY_BYTES);
    let other = Span::new(DEVICE, COPY_BYTES, COPY_BYTES);
    let copy = stage.time("copies on the device", COMPUTE, 0.2, |b| b.copy(COMPUTE, half, other))?;
    profile.device_gb_s = gb_s(copy, 2.0);
    table.add("device copy, read and written", profile.device_gb_s, "GB/s", "");
    Ok(())
}

fn host(stage: &Stage, tasks: &Tasks, profile: &mut MachineProfile, table: &mut Table) -> Result<()> {
    say!("  host tasks");
    let rates = tasks.rates(stage)?;
    let update = rates[0].1;
    for (name, rate) in rates {
        let beside = format!("{:.2} of update, {:.0}% of the cores", rate.gb_s / update.gb_s, 100.0 * rate.cores);
        table.add(name, rate.gb_s, "GB/s", beside);
        profile.tasks.insert(name.into(), rate);
    }
    let fastest = profile.tasks.values().map(|rate| rate.gb_s).fold(0.0, f64::max);
    profile.host_cores_gb_s = Some(update.gb_s);
    if stage.on_host {
        // Its copies take a thread each, of the same cores.
        let copy = TaskRate { gb_s: 2.0 * profile.h2d_gb_s, cores: 1.0 / stage.threads as f64 };
        profile.tasks.insert("copy".into(), copy);
        profile.host_gb_s = fastest.max(2.0 * profile.both_ways_gb_s);
        table.add("host memory", profile.host_gb_s, "GB/s", "the fastest task");
        return Ok(());
    }
    let mut most = fastest;
    for (ways, what, alone) in [(1, "up", profile.h2d_gb_s), (2, "both ways", profile.both_ways_gb_s)] {
        let (by_cores, link) = tasks.beside_link(stage, ways, update, alone)?;
        table.share(format!("update beside copies {what}"), by_cores, "GB/s", update.gb_s, "update alone");
        table.share(format!("copies {what} beside update"), link, "GB/s", alone, "copies alone");
        most = most.max(by_cores + link);
    }
    profile.host_gb_s = most;
    table.add("host memory, cores and link together", profile.host_gb_s, "GB/s", "");
    Ok(())
}

fn delays(stage: &Stage, tasks: &Tasks, profile: &mut MachineProfile, table: &mut Table) -> Result<()> {
    say!("  launches and events");
    let (a, b) = (Span::new(DEVICE, 0, 256), Span::new(DEVICE, 1 << 20, 256));
    let (_, losses, sum) = tasks.small();
    let up = Span::new(UP, 0, 256);
    let us = |seconds: f64| 1e6 * seconds;
    profile.launch_us = us(stage.time("launches", COMPUTE, 0.02, |p| p.copy(COMPUTE, a, b))?);
    // Chains, by the clock: each command waits for the one before.
    let chain = |name: &str, links: usize, add: &dyn Fn(&mut megatrain_scheduler::Builder<Op, _>)| -> Result<f64> {
        const ROUNDS: usize = 500;
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let report = stage.run(name, |p| (0..ROUNDS).for_each(|_| add(p)))?;
            best = best.min(us(report.seconds) / (ROUNDS * links) as f64);
        }
        Ok(best)
    };
    // Up, then on the device: the next round's copy up overwrites what this one reads.
    let event = chain("events", 2, &|p| {
        p.copy(H2D, up, a);
        p.copy(COMPUTE, a, b);
    })?;
    profile.event_us = (event - profile.launch_us).max(0.0);
    // Down, a task, up again: the next round's copy down overwrites what the task reads and is read by nobody else.
    let hop = chain("hops", 3, &|p| {
        p.copy(D2H, Span::new(DEVICE, 0, losses.len_bytes), losses);
        p.host(UPDATE, tasks.small().0);
        p.copy(H2D, sum, Span::new(DEVICE, 0, sum.len_bytes));
    })?;
    // Three hops a round (down to task, task to up, up to down, of which the last is the device's), two launches.
    let hops = (3.0 * hop - 2.0 * profile.launch_us - profile.event_us) / 2.0;
    profile.hop_us = Some(hops.max(0.0));
    table.add("launch", profile.launch_us, "us", "a tiny copy on the device, back to back");
    table.add("event, stream to stream", profile.event_us, "us", "");
    table.add("hop, device to host task or back", hops.max(0.0), "us", "");
    Ok(())
}

/// Seconds of one op on random operands, with documents of so many tokens.
fn time_op(stage: &Stage, op: &Op, document: usize, target_s: f64) -> Result<f64> {
    stage.randomize(op.operands().iter().map(|(t, _)| t.span.end_bytes()).max().unwrap_or(0))?;
    for (t, access) in op.operands() {
        if t.dtype == DType::I32 && access == Access::Read {
            stage.upload(&t, &integers(op, &t, document))?;
        }
    }
    stage.time(op.name(), COMPUTE, target_s, |b| b.launch(COMPUTE, *op))
}

fn products(
    stage: &Stage,
    shapes: &Shapes,
    dtype: DType,
    profile: &mut MachineProfile,
    table: &mut Table,
) -> Result<()> {
    say!("  matrix products");
    let mut curve = Vec::new();
    let mut peak = 0.0;
    for (i, &sizes) in shapes.products.iter().enumerate() {
        let ops = linear(dtype, sizes);
        let mut seconds = 0.0;
        for op in &ops {
            seconds += time_op(stage, op, 1, if i == 0 { SUSTAINED_S / 3.0 } else { OP_S })?;
        }
        let flops: f64 = ops.iter().map(|op| op.work().flops).sum();
        let tflops = flops / seconds / 1e12;
        peak = if i == 0 { tflops } else { peak };
        let [m, n, k] = sizes;
        table.share(format!("linear layer {m} x {n} x {k}, 3 products"), tflops, "TFLOP/s", peak, "the largest");
        curve.push((flops / 3.0, tflops));
    }
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    profile.host_tflops = if stage.on_host { peak } else { profile.host_tflops };
    profile.compute_tflops = ComputeRate::Curve(curve);
    Ok(())
}

fn rows(stage: &Stage, shapes: &Shapes, dtype: DType, profile: &mut MachineProfile, table: &mut Table) -> Result<()> {
    say!("  row-wise ops");
    for op in shapes.rows(dtype) {
        let gb_s = op.work().bytes / time_op(stage, &op, 1, OP_S)? / 1e9;
        table.share(op.name(), gb_s, "GB/s", profile.device_gb_s, "the device copy");
        profile.ops.insert(op.name().into(), OpRate { tflops: None, gb_s: Some(gb_s) });
    }
    Ok(())
}

fn attention(
    stage: &Stage,
    shapes: &Shapes,
    dtype: DType,
    profile: &mut MachineProfile,
    table: &mut Table,
) -> Result<()> {
    say!("  attention");
    let peak = profile.compute_tflops.at(f64::MAX);
    let mut curves: BTreeMap<&'static str, Vec<(f64, f64)>> = BTreeMap::new();
    for &document in shapes.documents {
        for op in shapes.attention(dtype, document) {
            let work = crate::simulation::work_in_documents(&op, document);
            let tflops = work.flops / time_op(stage, &op, document, OP_S)? / 1e12;
            table.share(format!("{}, documents of {document}", op.name()), tflops, "TFLOP/s", peak, "products");
            curves.entry(op.name()).or_default().push((work.flops / work.bytes, tflops));
        }
    }
    for (name, curve) in curves {
        profile.ops.insert(name.into(), OpRate { tflops: Some(ComputeRate::Curve(curve)), gb_s: None });
    }
    Ok(())
}
