//! `megatrain bench cpu`: whole training steps on the CPU executor, beside the machine's matrix-product peak and, where a
//! command for it is given, beside a peer on the same model, batches and threads.

use crate::data::{Packing, RunData};
use crate::options::{Dtype, Schedule, TrainOptions};
use crate::setup::{self, Source};
use crate::train::{self, DataKind};
use crate::{check, simulation, weights};
use anyhow::{Context, Result, bail};
use clap::Args;
use megatrain_data::{Documents, Random};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of the benchmark.
#[derive(Args, Clone, Debug)]
pub struct BenchOptions {
    /// Hugging Face model directory [default: the preset with random weights].
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Built-in architecture.
    #[arg(long, value_name = "NAME", default_value = "smollm2-135m")]
    preset: String,
    /// Sequences in a step.
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch_size: usize,
    /// Tokens in a sequence.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    seq_len: usize,
    /// Steps for each dtype; the first is not counted.
    #[arg(long, value_name = "N", default_value_t = 6)]
    steps: u64,
    /// Only this dtype [default: both].
    #[arg(long, value_name = "f32|bf16")]
    dtype: Option<Dtype>,
    /// Threads; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Command of a peer, run as `CMD MODEL_DIR BATCHES.jsonl --dtype float32|bfloat16 --threads N`; it prints a JSON
    /// line a step with `tokens_per_s` and `loss`. BATCHES.jsonl: `{"input_ids": [[...]], "labels": [[...]]}` a step.
    #[arg(long, value_name = "CMD")]
    peer: Option<String>,
}

struct Figures {
    tokens_per_s: f64,
    last_loss: f64,
}

/// Runs the benchmark and prints its table.
///
/// # Errors
/// Too few steps, or whatever a training run or the peer fails with.
pub fn run(options: &BenchOptions) -> Result<()> {
    if options.steps < 2 {
        bail!("--steps must be at least 2: the first step is not counted");
    }
    check::threads(options.threads)?;
    let work = Workplace::new()?;
    let source = match &options.model {
        Some(dir) => Source::open(dir)?,
        None => Source::preset(&options.preset)?,
    };
    let batches = batches(options, source.model.config.vocab);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build()?;
    let threads = pool.current_num_threads();
    let peer_model = match (&options.peer, &options.model) {
        (None, _) => None,
        (Some(_), Some(dir)) => Some(dir.clone()),
        (Some(_), None) => Some(random_model(&source, &work.path)?),
    };
    tell!(
        "whole steps of {} x {} tokens, {threads} thread(s), {} parameters, median of {} steps",
        options.batch_size,
        options.seq_len,
        source.model.params(),
        options.steps - 1
    );
    for dtype in options.dtype.map_or(vec![Dtype::F32, Dtype::Bf16], |d| vec![d]) {
        let peak = pool.install(|| simulation::matmul_tflops(setup::dtype(Some(dtype), false)));
        let ours = train_steps(options, &source, dtype, &batches, &work.path)?;
        let tflops = ours.tokens_per_s * source.model.config.flops_per_token(options.seq_len) / 1e12;
        tell!(
            "{dtype:?}: {:.1} tokens/s, {tflops:.3} TFLOP/s, {:.0}% of the matrix-product peak of {peak:.3} TFLOP/s, last loss {:.4}",
            ours.tokens_per_s,
            100.0 * tflops / peak,
            ours.last_loss
        );
        if let (Some(command), Some(model)) = (&options.peer, &peer_model) {
            let peer = peer_steps(command, model, dtype, threads, &batches, &work.path)?;
            tell!(
                "      peer: {:.1} tokens/s, last loss {:.4}; ours is {:.2} times as fast",
                peer.tokens_per_s,
                peer.last_loss,
                ours.tokens_per_s / peer.tokens_per_s
            );
        }
    }
    Ok(())
}

/// A folder that goes when the benchmark ends.
pub(super) struct Workplace {
    pub(super) path: PathBuf,
}

impl Workplace {
    pub(super) fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("megatrain-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Workplace { path })
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // Nothing depends on it: what stays is a folder under the system's temporary one.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// `[step][sequence][token]`: tokens drawn evenly, so that nothing is rare or repeated.
fn batches(options: &BenchOptions, vocab: usize) -> Vec<Vec<Vec<i32>>> {
    let mut random = Random::new(0, 0);
    let mut sequence = || (0..options.seq_len).map(|_| random.below(vocab as u64) as i32).collect();
    (0..options.steps).map(|_| (0..options.batch_size).map(|_| sequence()).collect()).collect()
}

fn train_steps(
    options: &BenchOptions,
    source: &Source,
    dtype: Dtype,
    batches: &[Vec<Vec<i32>>],
    out: &Path,
) -> Result<Figures> {
    let train = TrainOptions {
        dtype: Some(dtype),
        seq_len: Some(options.seq_len),
        batch_size: Some(options.batch_size),
        steps: Some(options.steps),
        threads: Some(options.threads),
        no_shuffle: Some(true),
        lr: Some(1e-4),
        lr_schedule: Some(Schedule::Constant),
        clip: Some(1.0),
        out: Some(out.to_owned()),
        ..TrainOptions::default()
    };
    let lines = batches.iter().flatten().map(|tokens| (tokens.clone(), tokens.clone()));
    let documents = Documents::from_lines("(bench)", lines)?;
    let data = RunData::from_documents(documents, Packing { texts: true, lines: false }, &train, source)?;
    train::train_on(&train, source, data, DataKind::Benchmark { alias_blocks: None })?;
    let text = std::fs::read_to_string(out.join("metrics.jsonl"))?;
    figures(text.lines())
}

fn peer_steps(
    command: &str,
    model: &Path,
    dtype: Dtype,
    threads: usize,
    batches: &[Vec<Vec<i32>>],
    out: &Path,
) -> Result<Figures> {
    let file = out.join("batches.jsonl");
    let lines: Vec<String> =
        batches.iter().map(|step| json!({"input_ids": step, "labels": step}).to_string() + "\n").collect();
    std::fs::write(&file, lines.concat())?;
    let name = match dtype {
        Dtype::F32 => "float32",
        Dtype::Bf16 => "bfloat16",
    };
    let mut words = command.split_whitespace();
    let program = words.next().context("--peer is empty")?;
    let output = Command::new(program)
        .args(words)
        .args([model, &file])
        .args(["--dtype", name, "--threads", &threads.to_string(), "--lr", "1e-4", "--clip", "1.0"])
        .output()
        .with_context(|| format!("running the peer `{command}`"))?;
    if !output.status.success() {
        bail!("the peer `{command}` failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    figures(text.lines().filter(|l| l.starts_with('{')))
}

/// The median speed after the first step.
fn figures<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Figures> {
    let lines: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>().context("reading the steps")?;
    let number =
        |line: &Value, key: &str| line[key].as_f64().with_context(|| format!("a step without `{key}`: {line}"));
    let mut speeds = lines.iter().skip(1).map(|l| number(l, "tokens_per_s")).collect::<Result<Vec<f64>>>()?;
    speeds.sort_by(f64::total_cmp);
    let (Some(last), false) = (lines.last(), speeds.is_empty()) else {
        bail!("fewer than two steps were reported");
    };
    Ok(Figures { tokens_per_s: speeds[speeds.len() / 2], last_loss: number(last, "loss")? })
}

/// Writes the preset's random weights as a model directory for the peer.
fn random_model(source: &Source, work: &Path) -> Result<PathBuf> {
    let mut settings = megatrain_planner::Settings::new(megatrain_base::DType::F32, 32, 1);
    settings.train = false;
    let plan = setup::plan(&source.model, settings)?;
    let session = setup::load(source, plan, Default::default(), 0)?.start(Default::default())?;
    let out = work.join("model");
    weights::export(&session, &out, None, &source.config, None, source.extras())?;
    Ok(out)
}
