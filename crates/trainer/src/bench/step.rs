//! `megatrain bench step`: whole optimizer steps of a published shape, random weights, random tokens, through the same
//! training loop as any run.

use super::cpu::Workplace;
use crate::data::{Packing, RunData};
use crate::options::{ActivationLevel, Bytes, Device, Dtype, Schedule, Slots, TrainOptions, Update, whole};
use crate::setup::Source;
use crate::simulation;
use crate::train::{DataKind, train_on};
use anyhow::{Context, Result, bail};
use clap::Args;
use megatrain_data::{Documents, Random};
use serde_json::Value;
use std::path::PathBuf;

/// Options of the benchmark.
#[derive(Args, Clone, Debug)]
pub struct StepOptions {
    /// Built-in architecture, with random weights.
    #[arg(long, value_name = "NAME", default_value = "qwen2.5-0.5b")]
    shape: String,
    /// Tokens in a step.
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = whole::<usize>)]
    tokens: usize,
    /// Tokens in a sequence.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = whole::<usize>)]
    seq: usize,
    /// Tokens in a micro-batch [default: 16384, or a sequence].
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    micro_tokens: Option<usize>,
    /// Steps; the first two are not counted.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = whole::<u64>)]
    steps: u64,
    /// Numbers to compute with.
    #[arg(long, value_name = "f32|bf16", default_value = "bf16")]
    dtype: Dtype,
    /// auto, cpu or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Device,
    /// Largest gradient norm; 0 for none, which lets updates run early.
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    clip: f64,
    /// When units are updated.
    #[arg(long, value_name = "POLICY")]
    update: Option<Update>,
    /// What the forward pass keeps.
    #[arg(long, value_name = "LEVEL")]
    activations: Option<ActivationLevel>,
    /// Keep activations in host memory.
    #[arg(long)]
    spill: bool,
    /// Blocks whose weights the device holds at once.
    #[arg(long, value_name = "N|all")]
    slots: Option<Slots>,
    /// Device memory the plan may use.
    #[arg(long, value_name = "BYTES")]
    device_memory: Option<Bytes>,
    /// Give block l the memory of block l % K, so that shapes larger than this machine can be timed. For timing only: what
    /// is computed means nothing.
    #[arg(long, value_name = "K", value_parser = whole::<usize>)]
    alias_layers: Option<usize>,
    /// Threads of the host tasks; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<usize>)]
    threads: usize,
    /// Text to train on, as bytes [default: random tokens].
    #[arg(long, value_name = "FILES", num_args = 1..)]
    data: Option<Vec<PathBuf>>,
    /// The machine's figures, from `bench machine --out`: the simulated step is printed beside the measured one.
    #[arg(long, value_name = "FILE.json")]
    profile: Option<PathBuf>,
    /// Write a Chrome/Perfetto trace of the last step.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Steps that are not counted: the first chooses algorithms, the second still shares the machine with its end.
const WARM_UP: usize = 2;

/// Runs the benchmark and prints its line.
///
/// # Errors
/// Sizes that do not go into one another, too few steps, or whatever a training run fails with.
pub fn run(options: &StepOptions) -> Result<()> {
    let StepOptions { tokens, seq, steps, .. } = *options;
    let micro_tokens = options.micro_tokens.unwrap_or(16384.min(tokens).max(seq));
    if seq == 0 || !micro_tokens.is_multiple_of(seq) || !tokens.is_multiple_of(seq) || micro_tokens > tokens {
        bail!(
            "--tokens {tokens} and --micro-tokens {micro_tokens} must be multiples of --seq {seq}, the second at most the first"
        );
    }
    if steps <= WARM_UP as u64 {
        bail!("--steps {steps}: give more than {WARM_UP}, which are not counted");
    }
    if options.alias_layers == Some(0) {
        bail!("--alias-layers 0 leaves no memory; give at least 1");
    }
    let source = Source::preset(&options.shape)?;
    let work = Workplace::new()?;
    let train = TrainOptions {
        batch_size: Some(tokens / seq),
        micro_batch_size: Some(micro_tokens / seq),
        seq_len: Some(seq),
        steps: Some(steps),
        dtype: Some(options.dtype),
        device: Some(options.device),
        threads: Some(options.threads),
        lr: Some(1e-5),
        lr_schedule: Some(Schedule::Constant),
        clip: Some(options.clip),
        update: options.update,
        activations: options.activations,
        spill: Some(options.spill),
        slots: options.slots,
        device_memory: options.device_memory,
        trace: options.trace.clone(),
        no_shuffle: Some(true),
        out: Some(work.path.clone()),
        ..TrainOptions::default()
    };
    let data = match &options.data {
        Some(_) => RunData::read(&TrainOptions { data: options.data.clone(), ..train.clone() }, &source)?,
        None => {
            let documents = documents(&source, steps as usize * tokens / seq, seq)?;
            RunData::from_documents(documents, Packing { texts: true, lines: false }, &train, &source)?
        }
    };
    let profile = options.profile.as_deref().map(simulation::read_profile).transpose()?;
    let summary = train_on(&train, &source, data, DataKind::Benchmark { alias_blocks: options.alias_layers })?;
    let text = std::fs::read_to_string(work.path.join("metrics.jsonl")).context("reading the steps")?;
    let mut seconds = text
        .lines()
        .skip(WARM_UP)
        .map(|line| serde_json::from_str::<Value>(line)?["seconds"].as_f64().context("a step without `seconds`"))
        .collect::<Result<Vec<f64>>>()?;
    seconds.sort_by(f64::total_cmp);
    let (median, least) = (seconds[seconds.len() / 2], seconds[0]);
    let params = source.model.params() as f64;
    let model = source.model.config.flops_per_token(seq) * tokens as f64;
    tell!(
        "{} x {tokens} tokens (seq {seq}): {median:.3} s a step (median of {}, least {least:.3}), {:.0} tokens/s, {:.1} TFLOP/s \
         as 6ND, {:.1} with attention{}",
        options.shape,
        seconds.len(),
        tokens as f64 / median,
        6.0 * params * tokens as f64 / median / 1e12,
        model / median / 1e12,
        match options.alias_layers {
            Some(k) => format!("; {k} distinct blocks of {} (timing only)", source.model.blocks()),
            None => String::new(),
        }
    );
    tell!("loss {:.4} in the first step, {:.4} in the last", summary.first_loss.unwrap_or(f64::NAN), summary.last_loss);
    if let (Some(profile), Some(program)) = (profile, &summary.program) {
        let predicted = simulation::predict(program, seq, &profile)?;
        let error = 100.0 * (predicted / median - 1.0);
        tell!("simulated {predicted:.3} s a step, {error:+.1}% of what was measured");
    }
    Ok(())
}

/// Sequences of random tokens.
fn documents(source: &Source, count: usize, seq: usize) -> Result<Documents> {
    let mut random = Random::new(1, 0);
    let vocab = source.model.config.vocab as u64;
    let lines = (0..count).map(|_| {
        let tokens: Vec<i32> = (0..seq).map(|_| (random.next_u64() % vocab) as i32).collect();
        (tokens.clone(), tokens)
    });
    Ok(Documents::from_lines("(bench)", lines)?)
}
