//! From options to what a run needs: the model and where it comes from, the tokenizer, the planner's settings.

use crate::options::{ActivationLevel, Dtype, ExecutorMode, Slots, TrainOptions, Update};
use crate::session::{Memory, Placement, arena_plan};
use anyhow::{Context, Result, anyhow, bail};
use megatrain_arena::Limits;
use megatrain_base::DType;
use megatrain_checkpoint::{FloatDType, ModelDir};
use megatrain_cpu::{ExecutorOptions, Mode};
use megatrain_data::{ByteTokenizer, TextTokenizer, Tokenizer};
use megatrain_layers::{Activations, ModelConfig, preset_names};
use megatrain_planner::{ActivationChoice, Model, Plan, Settings, SlotCount, UpdatePolicy};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Share of the free memory that a plan takes by itself at most; the rest is for the data, the page cache and others.
const MEMORY_SHARE: f64 = 0.8;

/// Bytes of logits and their gradients alive at once.
const LOGITS_BYTES: usize = 256 << 20;

/// The same on a GPU, which needs more rows to be busy.
const GPU_LOGITS_BYTES: usize = 4 << 30;

/// Micro-batches in a step at most: its program lists the commands of each.
const MAX_MICRO_BATCHES: usize = 4096;

/// Tokens in a micro-batch at most: planning takes time quadratic in them, some seconds here.
const MAX_MICRO_TOKENS: usize = 1 << 22;

/// A model with its origin.
pub struct Source {
    /// Templates and units.
    pub model: Arc<Model>,
    /// The directory it is read from; `None` for random weights.
    pub dir: Option<ModelDir>,
    /// Its `config.json`.
    pub config: Value,
    /// Text to ids; `None` where the directory has no tokenizer.
    pub tokenizer: Option<Arc<dyn TextTokenizer>>,
}

impl Source {
    /// Opens a model directory; reads no weights.
    ///
    /// # Errors
    /// Whatever is wrong with the directory, its configuration, tensors or tokenizer.
    pub fn open(path: &Path) -> Result<Source> {
        let dir = ModelDir::open(path)?;
        let in_config = || format!("in {}", dir.config_path().display());
        let config = ModelConfig::from_hf(dir.config()).with_context(in_config)?;
        let model = Arc::new(Model::new(&config));
        dir.check(&crate::weights::expected(&model), &crate::weights::aliases(&model))?;
        let tokenizer = match path.join("tokenizer.json").exists() {
            true => Some(Arc::new(Tokenizer::load(path)?) as Arc<dyn TextTokenizer>),
            false => None,
        };
        let config = dir.config().clone();
        Ok(Source { model, dir: Some(dir), config, tokenizer })
    }

    /// A built-in architecture with random weights, over bytes.
    ///
    /// # Errors
    /// An unknown name.
    pub fn preset(name: &str) -> Result<Source> {
        let config = ModelConfig::preset(name).ok_or_else(|| {
            let names: Vec<_> = preset_names().collect();
            anyhow!("there is no preset `{name}`; there are {}", names.join(", "))
        })?;
        let mut json = config.to_hf();
        if let Value::Object(map) = &mut json {
            map.insert("eos_token_id".into(), ByteTokenizer::EOS_ID.into());
        }
        Ok(Source {
            model: Arc::new(Model::new(&config)),
            dir: None,
            config: json,
            tokenizer: Some(Arc::new(ByteTokenizer)),
        })
    }

    /// What the options name.
    ///
    /// # Errors
    /// As [`Source::open`] and [`Source::preset`]; or neither was named.
    pub fn from_options(options: &TrainOptions) -> Result<Source> {
        match (&options.model, &options.preset) {
            (Some(path), _) => Source::open(path),
            (None, Some(name)) => Source::preset(name),
            (None, None) => bail!(
                "no model: give --model DIR (a Hugging Face model directory) or --preset NAME (random weights; --preset help lists them)"
            ),
        }
    }

    /// Files that an export of this model needs beside weights and configuration and that no directory provides.
    pub fn extras(&self) -> crate::weights::Extras {
        match self.dir {
            Some(_) => Vec::new(),
            None => ByteTokenizer::files().into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect(),
        }
    }

    /// The element type of exported weights, where no other is asked for.
    pub fn export_dtype(&self) -> FloatDType {
        match &self.dir {
            Some(dir) => dir.main_dtype().unwrap_or(FloatDType::F32),
            None => FloatDType::F32,
        }
    }
}

/// The compute dtype: as asked, or bf16 where it is multiplied in hardware.
pub fn dtype(asked: Option<Dtype>, gpu: bool) -> DType {
    match asked {
        Some(Dtype::F32) => DType::F32,
        Some(Dtype::Bf16) => DType::Bf16,
        None if gpu || megatrain_cpu::kernels::bf16_is_fast() => DType::Bf16,
        None => DType::F32,
    }
}

/// Executor options.
pub fn executor(options: &TrainOptions) -> ExecutorOptions {
    ExecutorOptions {
        mode: match options.executor.unwrap_or(ExecutorMode::Threads) {
            ExecutorMode::Threads => Mode::Threads,
            ExecutorMode::Inline => Mode::Inline,
            ExecutorMode::Shuffle(seed) => Mode::Shuffle(seed),
        },
        // Two readings of a clock for each command either way; the report shows them.
        trace: true,
        threads: options.threads.unwrap_or(0),
        ..ExecutorOptions::default()
    }
}

/// Sequences in an optimizer step and in a micro-batch.
///
/// # Errors
/// Sizes of zero, a micro-batch larger than the step, more micro-batches than one program can list.
pub fn batch_sizes(options: &TrainOptions) -> Result<(usize, usize)> {
    let batch_size = options.batch_size.unwrap_or(4);
    let micro_batch_size = options.micro_batch_size.unwrap_or(batch_size.min(4));
    for (flag, value) in [("--batch-size", batch_size), ("--micro-batch-size", micro_batch_size)] {
        if value == 0 {
            bail!("{flag} must be at least 1");
        }
    }
    if micro_batch_size > batch_size {
        bail!("--micro-batch-size {micro_batch_size} is larger than --batch-size {batch_size}; lower it");
    }
    let micro_batches = batch_size.div_ceil(micro_batch_size);
    if micro_batches > MAX_MICRO_BATCHES {
        bail!(
            "--batch-size {batch_size} takes {micro_batches} micro-batches of --micro-batch-size {micro_batch_size}, and a step \
             may have {MAX_MICRO_BATCHES}; lower the first or raise the second"
        );
    }
    Ok((batch_size, micro_batch_size))
}

/// The shape of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepShape {
    /// Tokens in a sequence.
    pub seq_len: usize,
    /// Sequences in an optimizer step.
    pub batch_size: usize,
    /// Sequences computed together.
    pub micro_batch_size: usize,
}

impl StepShape {
    /// From options and the model's limit.
    ///
    /// # Errors
    /// As [`batch_sizes`], or sequences longer than the model was made for.
    pub fn new(options: &TrainOptions, config: &ModelConfig) -> Result<StepShape> {
        let seq_len = options.seq_len.unwrap_or(512.min(config.max_positions));
        let (batch_size, micro_batch_size) = batch_sizes(options)?;
        if seq_len < 2 {
            bail!("--seq-len {seq_len} is too short: a token needs one before it to be predicted from; use at least 2");
        }
        if seq_len > config.max_positions {
            bail!(
                "--seq-len {seq_len} is longer than the model's max_position_embeddings of {}; lower it",
                config.max_positions
            );
        }
        config.check_context(seq_len).with_context(|| format!("--seq-len {seq_len}"))?;
        if seq_len.checked_mul(micro_batch_size).is_none_or(|tokens| tokens > MAX_MICRO_TOKENS) {
            bail!(
                "--micro-batch-size {micro_batch_size} times --seq-len {seq_len} is more than the {MAX_MICRO_TOKENS} tokens \
                 that a micro-batch may have; lower one of them"
            );
        }
        Ok(StepShape { seq_len, batch_size, micro_batch_size })
    }

    /// Tokens a micro-batch has room for.
    pub fn micro_tokens(&self) -> usize {
        self.seq_len * self.micro_batch_size
    }

    /// Micro-batches in a full step.
    pub fn micro_batches(&self) -> usize {
        self.batch_size.div_ceil(self.micro_batch_size)
    }
}

/// Largest norm, and the update policy that goes with it.
///
/// # Errors
/// Clipping together with the eager policy, which knows no norm before it updates.
pub fn clip_and_policy(options: &TrainOptions) -> Result<(Option<f64>, UpdatePolicy)> {
    let eager = options.update == Some(Update::Eager);
    let clip = options.clip.unwrap_or(if eager { 0.0 } else { 1.0 });
    if !(clip.is_finite() && clip >= 0.0) {
        bail!("--clip {clip} is no norm; give a number above 0, or 0 for no clipping");
    }
    if eager && clip > 0.0 {
        bail!(
            "--update eager updates units before the global norm is known, so it cannot clip to {clip}; use --update after-norm, or --clip 0"
        );
    }
    let policy = match options.update.unwrap_or(Update::Auto) {
        Update::Eager => UpdatePolicy::Eager,
        Update::Auto if clip == 0.0 => UpdatePolicy::Eager,
        Update::Auto | Update::AfterNorm => UpdatePolicy::AfterNorm,
    };
    Ok(((clip > 0.0).then_some(clip), policy))
}

/// The planner's settings for a training run.
///
/// # Errors
/// Options that contradict each other.
pub fn settings(options: &TrainOptions, model: &Model, shape: StepShape, gpu: bool) -> Result<Settings> {
    let (_, update) = clip_and_policy(options)?;
    let mut settings = Settings::new(dtype(options.dtype, gpu), shape.micro_tokens(), shape.micro_batches());
    settings.update = update;
    settings.spill = options.spill.unwrap_or(false);
    settings.activations = match options.activations.unwrap_or(ActivationLevel::Auto) {
        ActivationLevel::Auto => ActivationChoice::Auto,
        ActivationLevel::Keep => ActivationChoice::All(Activations::Keep),
        ActivationLevel::Partial => ActivationChoice::All(Activations::Partial),
        ActivationLevel::Recompute => ActivationChoice::All(Activations::Recompute),
    };
    settings.slots = match options.slots {
        None => SlotCount::Count(2),
        Some(Slots::Count(n)) => SlotCount::Count(n),
        Some(Slots::All) => SlotCount::All,
    };
    let logits_bytes = if gpu { GPU_LOGITS_BYTES } else { LOGITS_BYTES };
    settings.logits_rows = (logits_bytes / (8 * model.config.vocab)).clamp(32, 4096);
    if !gpu {
        // The optimizer shares the cores with the kernels: no reason to put a unit off.
        settings.rates.update_params = f64::INFINITY;
    }
    if let Some(bytes) = options.device_memory {
        settings.device_memory_bytes = bytes.0;
    }
    Ok(settings)
}

/// A plan within the device budget, or, where none was given, within what the machine has free.
///
/// # Errors
/// Nothing fits.
pub fn plan(model: &Arc<Model>, settings: Settings) -> Result<Arc<Plan>> {
    let model = Model::clone(model);
    if settings.device_memory_bytes != u64::MAX {
        return Ok(Arc::new(Plan::new(model, settings)?));
    }
    let free = Limits::read()?.bounds.iter().map(|b| b.available_bytes()).min().unwrap_or(u64::MAX);
    let budget = (free as f64 * MEMORY_SHARE) as u64;
    let generous = Plan::new(model.clone(), settings.clone())?;
    let total: u64 = generous.regions().iter().map(|r| r.len_bytes).sum();
    if total <= budget {
        return Ok(Arc::new(generous));
    }
    let device = generous.regions()[generous.device_region().0 as usize].len_bytes;
    let host = total - device;
    let frugal = Settings { device_memory_bytes: budget.saturating_sub(host), ..settings };
    // If nothing fits beside the host's regions, the arena's check says so with all the figures.
    Ok(Arc::new(Plan::new(model, frugal).unwrap_or(generous)))
}

/// Commits a plan's memory and fills it with the source's weights.
///
/// # Errors
/// What does not fit or cannot be read.
pub fn load(source: &Source, plan: Arc<Plan>, placement: Placement<'_>, seed: u64) -> Result<Memory> {
    let mut memory = Memory::commit(plan, placement)?;
    match &source.dir {
        Some(dir) => crate::weights::load(&mut memory, dir)?,
        None => crate::weights::random(&mut memory, seed)?,
    }
    Ok(memory)
}

/// The printed plan.
pub fn print_plan(plan: &Plan, placement: Placement<'_>, verbose: bool) -> String {
    let arena = arena_plan(plan, placement);
    if verbose { format!("{plan}\n{arena:#}") } else { format!("{plan}\n{arena}") }
}
