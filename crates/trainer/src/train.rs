//! The training run: data, plan, steps, evaluation, export.

use crate::metrics::StepMetrics;
use crate::options::{Device, Schedule, TrainOptions};
use crate::report::{DataFacts, Facts, Outcome, Recorder, Views, memory::peak_resident_bytes};
use crate::session::{Placement, Run, Session, planned_bytes};
use crate::setup::{self, Source, StepShape};
use crate::target::Target;
use crate::tasks::{OptimStep, StepResult, StepTasks};
use crate::{check, interrupt, weights};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use megatrain_base::fmt_bytes;
use megatrain_data::{Batches, Documents, PackOptions, Packer, ReadOptions, StepBatch};
use megatrain_exec::RunReport;
use megatrain_optim::{AdamW, LrSchedule, ScheduleKind, ScheduleOptions, Verdict};
use megatrain_planner::{Model, Program};
use megatrain_scheduler::Timeline;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Steps in flight at once: while one is updated the next is staged and begins its forward pass.
const IN_FLIGHT: usize = 2;

/// Steps in a row that may be skipped before the run gives up.
const MAX_SKIPS: u64 = 10;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Steps done, skipped ones included.
    pub steps: u64,
    /// Of them, skipped.
    pub skipped: u64,
    /// Loss of the first step.
    pub first_loss: Option<f64>,
    /// Loss of the last step.
    pub last_loss: f64,
    /// The program of a full step.
    pub program: Option<Arc<Program>>,
    /// Held-out loss before and after, if data was held out.
    pub held_out: Option<(f64, f64)>,
    /// Tokens a second over the whole run, padding not counted.
    pub tokens_per_s: f64,
    /// The exported model.
    pub model_dir: PathBuf,
    /// Whether Ctrl-C ended the run.
    pub interrupted: bool,
}

/// Trains as the options say.
///
/// # Errors
/// Whatever is wrong with options, files or the machine, before training where it can be known; later, what broke.
pub fn train(options: &TrainOptions) -> Result<Summary> {
    check::options(options)?;
    let source = Source::from_options(options)?;
    let documents = read_data(options, &source)?;
    train_on(options, &source, documents, DataKind::Files)
}

/// The documents the options name.
pub(crate) fn read_data(options: &TrainOptions, source: &Source) -> Result<Documents> {
    let paths = options.data.as_deref().unwrap_or_default();
    let read = ReadOptions { append_eos: true, vocab_size: Some(source.model.config.vocab) };
    let (documents, report) = megatrain_data::read(paths, source.tokenizer.as_deref(), &read)?;
    say!(
        "data     {} file(s), {} document(s), {} tokens, {} of them targets{}",
        report.files,
        documents.docs.len(),
        report.tokens,
        report.targets,
        match report.skips.is_empty() {
            true => String::new(),
            false => format!("; {}", report.skips.summary(&documents.files)),
        }
    );
    Ok(documents)
}

/// Where documents come from, and with it what is done with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataKind {
    /// Files: a pre-tokenized line is a sequence of its own.
    Files,
    /// Made by the demonstration: short ones share a sequence.
    Demonstration,
    /// Made by a benchmark: as files, and no model is saved.
    Benchmark {
        /// See [`Placement::alias_blocks`].
        alias_blocks: Option<usize>,
    },
}

/// Trains on these documents.
///
/// # Errors
/// As [`train`].
pub fn train_on(options: &TrainOptions, source: &Source, documents: Documents, kind: DataKind) -> Result<Summary> {
    check::options(options)?;
    let shape = StepShape::new(options, &source.model.config)?;
    let (max_norm, _) = setup::clip_and_policy(options)?;
    let seed = options.seed.unwrap_or(0);
    let (documents, held_out) = match options.held_out.unwrap_or(0.0) {
        0.0 => (documents, None),
        fraction => {
            let (train, held) = documents.split_held_out(fraction, seed)?;
            (train, Some(Arc::new(held)))
        }
    };
    let pack = |documents: Arc<Documents>, shuffle: bool| {
        Packer::new(
            documents,
            PackOptions { seq_len: shape.seq_len, seed, shuffle, pack_lines: kind == DataKind::Demonstration },
        )
    };
    let held_out_documents = held_out.as_ref().map_or(0, |held: &Arc<Documents>| held.docs.len() as u64);
    let data = DataFacts { held_out: held_out_documents, ..DataFacts::of(&documents) };
    let packer = pack(Arc::new(documents), !options.no_shuffle.unwrap_or(false))?;
    let held_out = held_out
        .map(|held| pack(held, false).context("in the part of the data that --held-out keeps apart"))
        .transpose()?;
    let mut batches = Batches::new(packer, shape.batch_size)?;
    if batches.sequences_in_epoch() < shape.batch_size {
        say!(
            "note     the data has only {} sequence(s) an epoch, so steps are smaller than --batch-size {}",
            batches.sequences_in_epoch(),
            shape.batch_size
        );
    }
    let epochs = options.epochs.unwrap_or(1);
    let steps = options.steps.unwrap_or((batches.steps_in_epoch() as u64).saturating_mul(epochs));
    let schedule = schedule(options, steps)
        .with_context(|| format!("--warmup and --lr-schedule over {steps} steps (--steps or --epochs)"))?;
    let peak_lr = options.lr.unwrap_or(if source.dir.is_some() { 2e-5 } else { 1e-3 });
    let adamw = check::adamw(options);
    check::optimizer(&adamw, peak_lr)?;

    let out = check::out(options);
    let trace = options.trace.as_deref().map(TraceFile::create).transpose()?;
    let (target, plan) = Target::choose(options.device.unwrap_or(Device::Auto))?
        .plan(&source.model, |target| setup::settings(options, &source.model, shape, target.gpu().is_some()))?;
    let mut placement = target.placement(options.threads.unwrap_or(0));
    if let DataKind::Benchmark { alias_blocks } = kind {
        placement = Placement { alias_blocks, ..placement };
    }
    say!("{}", setup::print_plan(&plan, placement, false));
    let planned_bytes = planned_bytes(&plan, placement);
    let facts = Facts::new(options, &plan, placement, steps, data);
    let gpu = target.gpu().cloned();
    let gpu_free_bytes = gpu.as_ref().map(|gpu| gpu.memory_bytes()).transpose()?.map_or(0, |(free, _)| free);
    reset_memory_use();
    let memory = setup::load(source, plan, placement, seed)?;
    let session = target.start(memory, options)?;
    // Only now: a run that fails to load keeps the figures of the one before.
    let views = match kind {
        DataKind::Benchmark { .. } => Views::MetricsOnly,
        DataKind::Files | DataKind::Demonstration => Views::All,
    };
    let mut recorder = Recorder::begin(&out, facts, views)?;

    let mut trainer = Trainer {
        session: &session,
        model: source.model.clone(),
        shape,
        programs: HashMap::new(),
        applied: Arc::default(),
        adamw,
        max_norm,
        flops_per_token: source.model.config.flops_per_token(shape.seq_len),
    };
    let evaluate = |trainer: &mut Trainer<'_>| -> Result<Option<f64>> {
        held_out.as_ref().map(|held| trainer.evaluate(held)).transpose()
    };
    let before = evaluate(&mut trainer)?;
    if let Some(loss) = before {
        say!("held-out loss before training: {loss:.4}");
        recorder.evaluation(0, loss)?;
    }
    interrupt::install()?;
    let mut summary = trainer.steps(&mut batches, steps, schedule, peak_lr, &mut recorder)?;
    if let (Some(before), Some(after)) = (before, evaluate(&mut trainer)?) {
        say!("held-out loss after training: {after:.4} (before: {before:.4})");
        recorder.evaluation(summary.steps, after)?;
        summary.held_out = Some((before, after));
    }

    say!("memory   {}", memory_use(planned_bytes));
    if let Some(gpu) = &gpu {
        let (free, _) = gpu.memory_bytes()?;
        let plan = session.plan();
        let heap = plan.regions()[plan.device_region().0 as usize].len_bytes;
        let used = gpu_free_bytes.saturating_sub(free);
        recorder.device_used(used);
        say!("         {} of the GPU, {} of it planned as device heap", fmt_bytes(used), fmt_bytes(heap));
    }
    if let (Some(trace), Some(timeline)) = (trace, recorder.timeline()) {
        trace.write(timeline)?;
    }
    if matches!(kind, DataKind::Benchmark { .. }) {
        return Ok(summary);
    }
    summary.model_dir = out.join("model");
    weights::export(
        &session,
        &summary.model_dir,
        source.dir.as_ref(),
        &source.config,
        source.export_dtype(),
        source.extras(),
    )?;
    say!("model    saved to {}", summary.model_dir.display());
    if recorder.finish(if summary.interrupted { Outcome::Interrupted } else { Outcome::Finished }) {
        say!("report   {}", out.join(crate::report::PAGE).display());
    }
    Ok(summary)
}

/// Forgets the largest resident set of earlier runs in this process. Where the system cannot, the figure printed later
/// includes them.
fn reset_memory_use() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The process's largest resident set beside the plan.
fn memory_use(planned: u64) -> String {
    match peak_resident_bytes() {
        Some(bytes) => format!(
            "{} resident at the most, {} planned ({:+.1}%)",
            fmt_bytes(bytes),
            fmt_bytes(planned),
            100.0 * (bytes as f64 / planned as f64 - 1.0)
        ),
        None => format!("{} planned", fmt_bytes(planned)),
    }
}

fn schedule(options: &TrainOptions, steps: u64) -> Result<LrSchedule> {
    let kind = match options.lr_schedule.unwrap_or(Schedule::Cosine) {
        Schedule::Constant => ScheduleKind::Constant,
        Schedule::Linear => ScheduleKind::Linear,
        Schedule::Cosine => ScheduleKind::Cosine,
        Schedule::Wsd => ScheduleKind::Wsd,
    };
    let warmup_steps = options.warmup.unwrap_or(match kind {
        ScheduleKind::Constant => 0,
        _ => steps / 20,
    });
    Ok(LrSchedule::new(kind, ScheduleOptions { warmup_steps, ..ScheduleOptions::new(steps) })?)
}

/// Where the trace will go; made before the run, so that a wrong path does not wait for its end.
struct TraceFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> TraceFile<'a> {
    fn create(path: &'a Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("creating the trace --trace {}", path.display()))?;
        Ok(TraceFile { path, file })
    }

    fn write(mut self, timeline: &Timeline) -> Result<()> {
        let path = self.path.display();
        let json = timeline.to_chrome_json();
        self.file.write_all(json.as_bytes()).with_context(|| format!("writing the trace {path}"))?;
        say!("trace    of the last step in {path}");
        Ok(())
    }
}

struct Trainer<'a> {
    session: &'a Session,
    model: Arc<Model>,
    shape: StepShape,
    /// By number of micro-batches.
    programs: HashMap<usize, Arc<Program>>,
    applied: Arc<AtomicU64>,
    adamw: AdamW,
    max_norm: Option<f64>,
    flops_per_token: f64,
}

/// A step that was issued.
struct Issued {
    step: u64,
    lr: f64,
    tokens: u64,
    targets: u64,
    /// `None` for a step without targets, which computes nothing.
    run: Option<Run>,
}

impl Trainer<'_> {
    fn steps(
        &mut self,
        batches: &mut Batches,
        steps: u64,
        schedule: LrSchedule,
        peak_lr: f64,
        recorder: &mut Recorder,
    ) -> Result<Summary> {
        let mut log = StepLog::new(steps, recorder.limit_tflops());
        let mut summary = Summary::default();
        let (mut in_flight, mut skips) = (VecDeque::new(), 0);
        let (start, mut last_end, mut tokens) = (Instant::now(), Instant::now(), 0);
        let mut issued = 0;
        loop {
            // Once the run is asked to end nothing is begun; what was begun is finished.
            while in_flight.len() < IN_FLIGHT && issued < steps && !interrupt::requested() {
                issued += 1;
                let lr = schedule.lr(peak_lr, issued - 1);
                in_flight.push_back(self.issue(issued, lr, batches.next_step())?);
            }
            let Some(oldest) = in_flight.pop_front() else { break };
            let (line, report) = self.finish(oldest, &mut last_end)?;
            tokens += line.tokens;
            summary.steps += 1;
            let computed = report.is_some();
            recorder.step(&line, report)?;
            log.step(&line);
            if let Some(reason) = &line.skipped {
                log.note(&format!("step {}: skipped, nothing was changed: {reason}", line.step));
                summary.skipped += 1;
            }
            // A step without targets says nothing about the gradients.
            if !computed {
                continue;
            }
            summary.first_loss.get_or_insert(line.loss);
            summary.last_loss = line.loss;
            skips = if line.skipped.is_some() { skips + 1 } else { 0 };
            if skips == MAX_SKIPS {
                bail!(
                    "{MAX_SKIPS} steps in a row had NaN or infinite gradients, the last at step {}; nothing was changed by \
                     them. Lower --lr, or look for bad values in the data or the model",
                    line.step
                );
            }
        }
        summary.interrupted = issued < steps;
        if summary.interrupted {
            log.note(&format!("interrupted after step {issued}; saving the model"));
        }
        log.finish();
        summary.program = self.programs.values().max_by_key(|program| program.commands.len()).cloned();
        if let Some(program) = &summary.program {
            recorder.usage().say(program);
        }
        summary.tokens_per_s = tokens as f64 / start.elapsed().as_secs_f64();
        Ok(summary)
    }

    /// Issues a step.
    fn issue(&mut self, step: u64, lr: f64, batch: StepBatch) -> Result<Issued> {
        let (tokens, targets) = (batch.tokens, batch.targets);
        if targets == 0 {
            return Ok(Issued { step, lr, tokens, targets, run: None });
        }
        let micros = batch.micro_batches(self.shape.micro_batch_size, self.shape.seq_len)?;
        let plan = self.session.plan();
        let program = match self.programs.get(&micros.len()) {
            Some(program) => program.clone(),
            None => {
                let program = plan.train(micros.len())?;
                self.programs.insert(micros.len(), program.clone());
                program
            }
        };
        let optim = OptimStep { adamw: self.adamw, lr, max_norm: self.max_norm, applied: self.applied.clone() };
        let tasks = StepTasks::new(self.model.clone(), micros, Some(optim));
        let run = self.session.issue(&program, tasks)?;
        Ok(Issued { step, lr, tokens, targets, run: Some(run) })
    }

    /// Waits for a step. No report if it computed nothing.
    fn finish(&self, issued: Issued, last_end: &mut Instant) -> Result<(StepMetrics, Option<RunReport>)> {
        let Issued { step, lr, tokens, targets, run } = issued;
        let (result, report) = match run {
            Some(run) => {
                let (result, report) = run.wait().with_context(|| format!("step {step}"))?;
                (result, Some(report))
            }
            None => (StepResult::without_targets(), None),
        };
        let seconds = last_end.elapsed().as_secs_f64();
        *last_end = Instant::now();
        let skipped = match &result.verdict {
            Some(Verdict::Skip(reason)) => Some(reason.to_string()),
            _ => None,
        };
        let line = StepMetrics {
            step,
            loss: result.loss_sum() / targets as f64,
            grad_norm: result.grad_norm(),
            lr,
            tokens,
            targets,
            seconds,
            tokens_per_s: tokens as f64 / seconds,
            model_tflops: self.flops_per_token * tokens as f64 / seconds / 1e12,
            skipped,
        };
        Ok((line, report))
    }

    /// Mean loss of all targets of a data set.
    fn evaluate(&mut self, packer: &Packer) -> Result<f64> {
        let epoch = packer.epoch(0);
        let sequences: Vec<_> = (0..epoch.len()).map(|i| epoch.sequence(i)).collect();
        let group = self.session.plan().group();
        say!("evaluating {} held-out sequence(s)", sequences.len());
        let bar = crate::progress::bar(sequences.len() as u64, "evaluating");
        let (mut sum, mut targets) = (0.0, 0);
        for part in sequences.chunks(self.shape.micro_batch_size * group) {
            let micros = part
                .chunks(self.shape.micro_batch_size)
                .map(|sequences| megatrain_data::MicroBatch::assemble(sequences, self.shape.micro_tokens()))
                .collect::<Result<Vec<_>, _>>()?;
            let program = self.session.plan().evaluate(micros.len())?;
            let tasks = StepTasks::new(self.model.clone(), micros, None);
            targets += tasks.targets();
            sum += self.session.run(&program, tasks)?.0.loss_sum();
            bar.inc(part.len() as u64);
        }
        bar.finish_and_clear();
        Ok(sum / targets as f64)
    }
}

/// Steps as a person follows them: a bar on a terminal, lines elsewhere.
struct StepLog {
    bar: Option<ProgressBar>,
    steps: u64,
    smoothed: Option<f64>,
    last_line: Option<Instant>,
    limit_tflops: Option<f64>,
}

impl StepLog {
    fn new(steps: u64, limit_tflops: Option<f64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(4));
            let style = ProgressStyle::with_template("step {pos}/{len} [{bar:24}] {msg} eta {eta}");
            bar.set_style(style.expect("a constant template").progress_chars("=> "));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        StepLog { bar, steps, smoothed: None, last_line: None, limit_tflops }
    }

    fn step(&mut self, line: &StepMetrics) {
        let loss = match self.smoothed {
            Some(smoothed) if line.loss.is_finite() => 0.9 * smoothed + 0.1 * line.loss,
            _ => line.loss,
        };
        self.smoothed = loss.is_finite().then_some(loss).or(self.smoothed);
        let share = self
            .limit_tflops
            .map_or(String::new(), |limit| format!(" ({:.0}% of the limit)", 100.0 * line.model_tflops / limit));
        let text = format!(
            "loss {:.4} (smoothed {loss:.4}) norm {:.3} lr {:.2e} {:.0} tokens/s {:.3} TFLOP/s{share}",
            line.loss, line.grad_norm, line.lr, line.tokens_per_s, line.model_tflops
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(line.step);
                bar.set_message(text);
            }
            None => {
                let due = self.last_line.is_none_or(|at| at.elapsed() >= Duration::from_secs(5));
                if due || line.step == self.steps {
                    say!("step {}/{} {text}", line.step, self.steps);
                    self.last_line = Some(Instant::now());
                }
            }
        }
    }

    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say!("{text}"),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}
