//! `megatrain bench data`: how fast files become tokens and steps, beside what a GPU takes and, where a command for it is
//! given, beside a peer.

use super::cpu::Workplace;
use crate::data::{self, Packing, Reader, Streamed};
use crate::options::TrainOptions;
use crate::setup::{Source, StepShape};
use anyhow::{Context, Result, bail};
use clap::Args;
use megatrain_base::fmt_bytes;
use megatrain_data::{Batches, TokenCache};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Tokens a second that a 7B shape trained on one H200 takes (`docs/notes/gpu_training_h200_2026-11-30.md`).
const TAKEN_PER_S: f64 = 12_000.0;

/// How long a stream is measured, behind its first step.
const STREAMED: Duration = Duration::from_secs(10);

/// Options of the benchmark. Tokens are made on all cores that the process may use (`taskset` limits them).
#[derive(Args, Clone, Debug)]
pub struct DataBenchOptions {
    /// Hugging Face model directory, of which tokenizer and chat template are used.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Files or folders, as for training.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    data: Vec<PathBuf>,
    /// Chat template [default: the model's own].
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,
    /// Tokens in a sequence.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    seq_len: usize,
    /// Sequences in a step.
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch_size: usize,
    /// Only the stream: for files that would take too long to read.
    #[arg(long)]
    stream_only: bool,
    /// Command of a peer, run as `CMD MODEL_DIR FILE...`; its last line is JSON with `tokens` and `seconds`.
    #[arg(long, value_name = "CMD")]
    peer: Option<String>,
}

/// Runs the benchmark and prints its table.
///
/// # Errors
/// Files that cannot be read, or whatever the peer fails with.
pub fn run(options: &DataBenchOptions) -> Result<()> {
    let work = Workplace::new()?;
    let train = TrainOptions {
        model: Some(options.model.clone()),
        data: Some(options.data.clone()),
        template: options.template.clone(),
        seq_len: Some(options.seq_len),
        batch_size: Some(options.batch_size),
        streaming: options.stream_only.then_some(true),
        ..TrainOptions::default()
    };
    let source = Source::from_options(&train)?;
    let shape = StepShape::new(&train, &source.model.config)?;
    let reader = Reader::new(&train, &source, shape.seq_len)?;
    let (_, bytes) = reader.samples(&data::training_sources(&train)?)?.progress();
    tell!(
        "{} of data, sequences of {} tokens, {} thread(s)",
        fmt_bytes(bytes),
        shape.seq_len,
        rayon::current_num_threads()
    );
    if !options.stream_only {
        whole(&train, shape, &reader, &work.path)?;
    }
    streamed(&train, shape, reader)?;
    if let Some(command) = &options.peer {
        let (tokens, seconds) = peer(command, &options.model, &options.data)?;
        row("peer", tokens, seconds, "");
    }
    Ok(())
}

/// What happens to the data of a run that is no stream.
fn whole(options: &TrainOptions, shape: StepShape, reader: &Reader, work: &Path) -> Result<()> {
    let sources = data::training_sources(options)?;
    let begun = Instant::now();
    let mut samples = reader.samples(&sources)?;
    let mut records = 0u64;
    for sample in &mut samples {
        sample?;
        records += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    tell!(
        "{:<22} {:>13.0} records/s, {:.0} MB/s, one thread",
        "records alone",
        records as f64 / seconds,
        samples.progress().0 as f64 / seconds / 1e6
    );
    let reader = reader.clone().with_cache(None);
    let begun = Instant::now();
    let data = reader.read(&sources, "reading data")?;
    let (tokens, seconds) = (data.documents.tokens(), begun.elapsed().as_secs_f64());
    row("read and encoded", tokens, seconds, "");

    let folder = work.join("tokens");
    let reader = reader.with_cache(Some(TokenCache::at(&folder)));
    reader.read(&sources, "reading data for the cache")?;
    let begun = Instant::now();
    let cached = reader.read(&sources, "reading data")?;
    match folder.exists() {
        true => row("from the cache", cached.documents.tokens(), begun.elapsed().as_secs_f64(), ""),
        false => tell!("{:<22} files this small are not kept there", "from the cache"),
    }
    if cached.documents != data.documents {
        bail!("the cache gave other documents than the files");
    }

    let begun = Instant::now();
    let packing = Packing::new(options, cached.report.pretokenized > 0);
    let packer = data::training_packer(cached.documents, options, shape, packing)?;
    let mut batches = Batches::new(packer, shape.batch_size)?;
    row("an epoch packed", tokens, begun.elapsed().as_secs_f64(), "");
    let begun = Instant::now();
    let mut laid_out = 0;
    for _ in 0..batches.steps_in_epoch() {
        let step = batches.next_step();
        laid_out += step.tokens;
        step.micro_batches(shape.micro_batch_size, shape.seq_len)?;
    }
    row("steps laid out", laid_out, begun.elapsed().as_secs_f64(), ", one thread");
    Ok(())
}

/// What `--streaming` does.
fn streamed(options: &TrainOptions, shape: StepShape, reader: Reader) -> Result<()> {
    let begun = Instant::now();
    let mut stream = Streamed::begin(options, data::training_sources(options)?, reader, shape)?;
    let mut step = || stream.poll_step(Duration::MAX)?.context("a step, however long it takes");
    step()?;
    tell!("{:<22} {:>13.2} s after the stream began", "first streamed step", begun.elapsed().as_secs_f64());
    let (begun, mut tokens) = (Instant::now(), 0);
    while begun.elapsed() < STREAMED {
        tokens += step()?.tokens;
    }
    row("streamed", tokens, begun.elapsed().as_secs_f64(), "");
    Ok(())
}

fn row(what: &str, tokens: u64, seconds: f64, more: &str) {
    let per_s = tokens as f64 / seconds;
    tell!(
        "{what:<22} {per_s:>13.0} tokens/s, {:.0} times what a 7B shape takes on one H200{more}",
        per_s / TAKEN_PER_S
    );
}

/// Tokens and seconds of a peer.
fn peer(command: &str, model: &Path, data: &[PathBuf]) -> Result<(u64, f64)> {
    let mut words = command.split_whitespace();
    let program = words.next().context("--peer is empty")?;
    let output = Command::new(program).args(words).arg(model).args(data).output();
    let output = output.with_context(|| format!("running the peer `{command}`"))?;
    if !output.status.success() {
        bail!("the peer `{command}` failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
        .with_context(|| format!("the last line of the peer `{command}` is no JSON"))?;
    let tokens = line["tokens"].as_u64().context("the peer names no `tokens`")?;
    Ok((tokens, line["seconds"].as_f64().context("the peer names no `seconds`")?))
}
