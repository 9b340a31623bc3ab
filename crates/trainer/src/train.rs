//! The training run: data, plan, steps, evaluation, export.

use crate::data::{self, Feed, RunData};
use crate::evaluate::Monitor;
use crate::metrics::StepMetrics;
use crate::options::{Device, Schedule, TrainOptions};
use crate::progress::StepLog;
use crate::report::{Facts, Outcome, Recorder, Views, memory::peak_resident_bytes};
use crate::session::{Placement, Run, Session, planned_bytes};
use crate::setup::{self, Source, StepShape};
use crate::target::Target;
use crate::tasks::{OptimStep, StepResult, StepTasks};
use crate::{check, interrupt, weights};
use anyhow::{Context, Error, Result, bail};
use megatrain_base::{DType, fmt_bytes};
use megatrain_checkpoint::FloatDType;
use megatrain_data::StepBatch;
use megatrain_exec::RunReport;
use megatrain_optim::{AdamW, LrSchedule, ScheduleKind, ScheduleOptions, Verdict};
use megatrain_planner::{Model, Program};
use megatrain_scheduler::Timeline;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Steps in flight at once: while one is updated the next is staged and begins its forward pass.
const IN_FLIGHT: usize = 2;

/// How long a step waits for its data before Ctrl-C is looked at.
const DATA_PATIENCE: Duration = Duration::from_millis(100);

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
    /// Loss of what is evaluated on before and after training, if anything is.
    pub held_out: Option<(f64, f64)>,
    /// Step and loss of the best evaluation after a step.
    pub best: Option<(u64, f64)>,
    /// Whether the run ended since evaluations did not get better.
    pub stopped_early: bool,
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
    check::writable(&check::out(options))?;
    let source = Source::from_options(options)?;
    let data = RunData::read(options, &source)?;
    train_on(options, &source, data, DataKind::Own)
}

/// What is done at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataKind {
    /// The model is saved.
    Own,
    /// Made by a benchmark: no model is saved.
    Benchmark {
        /// See [`Placement::alias_blocks`].
        alias_blocks: Option<usize>,
    },
}

/// Trains on this data.
///
/// # Errors
/// As [`train`].
pub fn train_on(options: &TrainOptions, source: &Source, data: RunData, kind: DataKind) -> Result<Summary> {
    check::options(options)?;
    let shape = StepShape::new(options, &source.model.config)?;
    let (max_norm, _) = setup::clip_and_policy(options)?;
    let seed = options.seed.unwrap_or(0);
    let mut monitor = Monitor {
        evaluation: data.evaluation.map(|held| data::evaluation_packer(held, shape)).transpose()?,
        prompts: data.prompts,
        every: options.eval_steps,
        patience: options.early_stopping_patience,
        tokenizer: source.tokenizer.clone(),
        best: Default::default(),
        first_and_last: None,
    };
    monitor.check_prompts(shape.micro_tokens().min(source.model.config.max_positions))?;
    let mut feed = data.training.feed(options, shape)?;
    say!("packing  {}", feed.describe(shape));
    let steps = options.steps.or_else(|| feed.steps_in(options.epochs.unwrap_or(1), shape));
    let steps = steps.context("--streaming needs --steps")?;
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
    let save_dtype = options.save_dtype.and_then(|dtype| FloatDType::from_compute(setup::dtype(Some(dtype), false)));
    let saved_in = save_dtype.unwrap_or_else(|| source.export_dtype());
    if kind == DataKind::Own && plan.settings.dtype == DType::F32 && saved_in != FloatDType::F32 {
        say!(
            "note     computed in f32 and saved in {}: the saved model is rounded, which can lose much of what small updates \
             changed, and the losses shown are of the model before that. --save-dtype f32 saves it as it is, --dtype bf16 \
             shows losses of the rounded one",
            saved_in.config_name()
        );
    }
    let planned_bytes = planned_bytes(&plan, placement);
    let facts = Facts::new(options, &plan, placement, steps, data.facts);
    let gpu = target.gpu().cloned();
    let gpu_free_bytes = gpu.as_ref().map(|gpu| gpu.memory_bytes()).transpose()?.map_or(0, |(free, _)| free);
    reset_memory_use();
    let memory = setup::load(source, plan, placement, seed)?;
    let session = target.start(memory, options)?;
    let views = match kind {
        DataKind::Benchmark { .. } => Views::MetricsOnly,
        DataKind::Own => Views::All,
    };
    // Only now: a run that fails to load keeps the figures of the one before, and its best model.
    let mut recorder = Recorder::begin(&out, facts, views)?;
    if kind == DataKind::Own {
        put_earlier_best_aside(&out)?;
    }

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
    interrupt::install()?;
    monitor.run(&session, &source.model, shape, 0, &mut recorder)?;
    let save_best = monitor.every.is_some() && options.save_best.unwrap_or(true);
    let best_dir = save_best.then(|| out.join("best-model"));
    let mut extras = source.extras();
    extras.extend(data.template.map(|text| ("chat_template.jinja".to_owned(), text.into_bytes())));
    let export =
        |dir: &Path| weights::export(&session, dir, source.dir.as_ref(), &source.config, save_dtype, extras.clone());
    let mut evaluations = Evaluations { monitor, best_dir, export: &export, done: 0, seconds: 0.0 };
    let (mut summary, broken) = trainer.steps(&mut feed, steps, schedule, peak_lr, &mut recorder, &mut evaluations)?;
    summary.held_out = evaluations.monitor.first_and_last;
    summary.best = evaluations.monitor.best.lowest;
    if let (Some((before, after)), Some((step, lowest))) = (summary.held_out, summary.best) {
        say!(
            "eval     loss {before:.4} before training, {after:.4} after it; the lowest was {lowest:.4} after step {step}"
        );
    }

    if let Some(read) = feed.summary() {
        say!("data     {read}");
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
    // What no step has changed is no reason to replace an earlier run's model.
    if summary.steps > 0 {
        summary.model_dir = out.join("model");
        export(&summary.model_dir)?;
        say!("model    saved to {}", summary.model_dir.display());
    }
    let outcome = match (&broken, summary.interrupted) {
        (Some(_), _) => Outcome::Failed,
        (None, true) => Outcome::Interrupted,
        (None, false) => Outcome::Finished,
    };
    if recorder.finish(outcome) {
        say!("report   {}", out.join(crate::report::PAGE).display());
    }
    match broken {
        None => Ok(summary),
        Some(error) if summary.steps == 0 => Err(error.context("the data broke off before the first step")),
        Some(error) => Err(error.context(format!(
            "the data broke off after step {} of {steps}; the model as it was then is saved in {}",
            summary.steps,
            out.join("model").display()
        ))),
    }
}

/// Renames the best model of an earlier run, so that it is not taken for this one's, which may have none. What the run
/// before that one left there is replaced: the first best model of this run would have replaced it, too.
fn put_earlier_best_aside(out: &Path) -> Result<()> {
    let (best, aside) = (out.join("best-model"), out.join(check::EARLIER_BEST));
    if !best.exists() {
        return Ok(());
    }
    if aside.exists() {
        std::fs::remove_dir_all(&aside).with_context(|| format!("removing {}", aside.display()))?;
    }
    std::fs::rename(&best, &aside).with_context(|| format!("renaming {} to {}", best.display(), aside.display()))?;
    say!("note     {} is of an earlier run; it is {} now", best.display(), aside.display());
    Ok(())
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

/// Evaluations between the steps, and what follows from them.
struct Evaluations<'a> {
    monitor: Monitor,
    /// Where the best model goes, if it is kept.
    best_dir: Option<PathBuf>,
    export: &'a dyn Fn(&Path) -> Result<()>,
    /// The step after which the last was.
    done: u64,
    /// Time spent.
    seconds: f64,
}

impl Evaluations<'_> {
    /// Whether one has to come before the step after this one.
    fn due(&self, step: u64) -> bool {
        step > self.done && self.monitor.due(step)
    }

    /// Evaluates and keeps the model if it is the best so far. Whether the run is to end.
    fn run(&mut self, trainer: &Trainer<'_>, step: u64, recorder: &mut Recorder) -> Result<bool> {
        let start = Instant::now();
        let verdict = self.monitor.run(trainer.session, &trainer.model, trainer.shape, step, recorder)?;
        if let Some(dir) = self.best_dir.as_deref().filter(|_| verdict.improved) {
            (self.export)(dir)?;
            say!("         the best so far, saved to {}", dir.display());
        }
        self.done = step;
        self.seconds += start.elapsed().as_secs_f64();
        Ok(verdict.stop)
    }
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
    /// Runs the steps, and tells what is wrong with data that broke off after some of them.
    fn steps(
        &mut self,
        feed: &mut Feed,
        steps: u64,
        schedule: LrSchedule,
        peak_lr: f64,
        recorder: &mut Recorder,
        evaluations: &mut Evaluations<'_>,
    ) -> Result<(Summary, Option<Error>)> {
        let mut log = StepLog::new(steps, recorder.limit_tflops());
        let mut summary = Summary::default();
        let (mut in_flight, mut skips) = (VecDeque::new(), 0);
        let (start, mut last_end, mut tokens) = (Instant::now(), Instant::now(), 0);
        let (mut issued, mut broken) = (0, None);
        loop {
            if in_flight.is_empty() && evaluations.due(issued) {
                summary.stopped_early = log.pause(|| evaluations.run(self, issued, recorder))? && issued < steps;
                last_end = Instant::now();
            }
            // Once the run is to end nothing is begun; what was begun is finished.
            let ends = summary.stopped_early || broken.is_some() || interrupt::requested();
            let mut waits = false;
            while in_flight.len() < IN_FLIGHT && issued < steps && !ends && !evaluations.due(issued) {
                // Whoever has a step to finish does not wait for the data of the next.
                let patience = if in_flight.is_empty() { DATA_PATIENCE } else { Duration::ZERO };
                match feed.poll_step(patience) {
                    Ok(Some(batch)) => {
                        issued += 1;
                        let lr = schedule.lr(peak_lr, issued - 1);
                        in_flight.push_back(self.issue(issued, lr, batch)?);
                    }
                    Ok(None) => waits = true,
                    Err(error) => broken = Some(error),
                }
                if waits || broken.is_some() {
                    break;
                }
            }
            if let Some(facts) = feed.news() {
                recorder.data_read(facts);
            }
            let Some(oldest) = in_flight.pop_front() else {
                match waits {
                    true => continue,
                    false => break,
                }
            };
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
        // Nothing was learnt, so there is nothing to save.
        if let Some(error) = broken.take_if(|_| summary.first_loss.is_none()) {
            return Err(error);
        }
        if summary.steps > 0 && summary.first_loss.is_none() {
            bail!(
                "nothing was learnt: none of the {} step(s) had a target; look at what is trained with `megatrain data preview`",
                summary.steps
            );
        }
        summary.interrupted = issued < steps && !summary.stopped_early && broken.is_none();
        if summary.stopped_early {
            log.note(&format!(
                "stopped after step {issued}: {} evaluation(s) without a lower loss (--early-stopping-patience)",
                evaluations.monitor.best.since
            ));
        }
        if summary.interrupted {
            log.note(&format!("interrupted after step {issued}; saving the model"));
        }
        if broken.is_some() {
            log.note(&format!("the data cannot be read on after step {issued}; saving the model"));
        }
        log.finish();
        if evaluations.done < issued && !evaluations.monitor.is_idle() {
            evaluations.run(self, issued, recorder)?;
        }
        summary.program = self.programs.values().max_by_key(|program| program.commands.len()).cloned();
        if let Some(program) = &summary.program {
            recorder.usage().say(program);
        }
        summary.tokens_per_s = tokens as f64 / (start.elapsed().as_secs_f64() - evaluations.seconds);
        Ok((summary, broken))
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
}
