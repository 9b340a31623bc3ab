//! [`Recorder`]: takes what the training loop learns and writes it where people look.

use super::history::History;
use super::memory::peak_resident_bytes;
use super::tfevents::EventFile;
use super::{DataFacts, Facts, page, timeline};
use crate::metrics::{EvalMetrics, MetricsFile, SampleMetrics, StepMetrics};
use crate::usage::Usage;
use anyhow::Result;
use megatrain_exec::RunReport;
use megatrain_scheduler::Timeline;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The page is written again after this long at the soonest,
const REFRESH: Duration = Duration::from_secs(5);

/// and after so many times as long as writing it took: it must cost the run nothing.
const REFRESH_COST: u32 = 100;

/// Samples on the page; older ones stay in `metrics.jsonl`.
const SHOWN_SAMPLES: usize = 40;

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Views {
    /// `metrics.jsonl`, event files and the page.
    All,
    /// `metrics.jsonl` alone, where nobody watches.
    MetricsOnly,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// Somebody ended it; the model is saved.
    Interrupted,
    /// The data broke off; the model is saved.
    Failed,
}

/// Writes a run's figures. Dropped without [`Recorder::finish`], it marks the page as of a run that broke off.
pub struct Recorder {
    dir: PathBuf,
    views: Views,
    metrics: MetricsFile,
    events: Option<EventFile>,
    facts: Facts,
    history: History,
    usage: Usage,
    samples: Vec<SampleMetrics>,
    timeline: Option<(u64, Timeline)>,
    started: Instant,
    started_unix_s: f64,
    state: &'static str,
    written: Instant,
    write_cost: Duration,
    page_failed: bool,
}

impl Recorder {
    /// Begins the files anew.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be made.
    pub fn begin(dir: &Path, facts: Facts, views: Views) -> Result<Self> {
        let metrics = MetricsFile::create(dir)?;
        let events = match views {
            Views::All => EventFile::create(&dir.join("tensorboard"))
                .inspect_err(|error| say!("note     no TensorBoard files: {error:#}"))
                .ok(),
            Views::MetricsOnly => None,
        };
        let now = Instant::now();
        let mut recorder = Recorder {
            dir: dir.to_owned(),
            views,
            metrics,
            events,
            facts,
            history: History::default(),
            usage: Usage::default(),
            samples: Vec::new(),
            timeline: None,
            started: now,
            started_unix_s: unix_s(),
            state: "running",
            written: now,
            write_cost: Duration::ZERO,
            page_failed: false,
        };
        recorder.write_page();
        Ok(recorder)
    }

    /// Notes a step, and what its run took if it computed anything.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be written.
    pub fn step(&mut self, metrics: &StepMetrics, report: Option<RunReport>) -> Result<()> {
        self.metrics.write(metrics)?;
        self.note_events(|events| {
            let scalars = [
                ("train/loss", metrics.loss),
                ("train/grad_norm", metrics.grad_norm),
                ("train/lr", metrics.lr),
                ("train/tokens_per_s", metrics.tokens_per_s),
                ("train/model_tflops", metrics.model_tflops),
            ];
            events.scalars(metrics.step, &scalars)
        });
        self.history.step(metrics);
        if let Some(report) = report {
            // The first step also loads kernels and chooses algorithms.
            if metrics.step > 1 {
                self.usage.add(&report, metrics.seconds);
            }
            self.timeline = report.timeline.map(|timeline| (metrics.step, timeline));
        }
        self.refresh();
        Ok(())
    }

    /// Notes the mean loss of held-out data after so many steps.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be written.
    pub fn evaluation(&mut self, step: u64, loss: f64) -> Result<()> {
        let line = EvalMetrics::new(step, loss);
        self.metrics.write(&line)?;
        self.note_events(|events| {
            events.scalars(step, &[("eval/loss", line.eval_loss), ("eval/perplexity", line.perplexity)])
        });
        self.history.evaluation(step, loss);
        self.refresh();
        Ok(())
    }

    /// Notes what the model answered after so many steps.
    ///
    /// # Errors
    /// If `metrics.jsonl` cannot be written.
    pub fn sample(&mut self, step: u64, prompt: &str, sample: &str) -> Result<()> {
        let line = SampleMetrics { step, prompt: prompt.into(), sample: sample.into() };
        self.metrics.write(&line)?;
        self.note_events(|events| events.text(step, "eval/sample", &format!("**{prompt}**\n\n{sample}")));
        self.samples.push(line);
        let first = self.samples.len().saturating_sub(SHOWN_SAMPLES);
        self.samples.drain(..first);
        self.refresh();
        Ok(())
    }

    /// How busy the lanes were.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// What the last step's commands took, if the executor traces.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref().map(|(_, timeline)| timeline)
    }

    /// What the device computes at the most, in 10^12 operations a second, if that is known.
    pub fn limit_tflops(&self) -> Option<f64> {
        self.facts.limit.as_ref().map(|limit| limit.tflops)
    }

    /// Notes what was read of the data by now.
    pub fn data_read(&mut self, facts: &DataFacts) {
        let held_out = self.facts.data.held_out;
        self.facts.data = DataFacts { held_out, ..facts.clone() };
    }

    /// Notes what the run took of a GPU's memory.
    pub fn device_used(&mut self, bytes: u64) {
        self.facts.memory.device_used_bytes = Some(bytes);
    }

    /// Writes the page for the last time. Whether it could be written.
    pub fn finish(&mut self, outcome: Outcome) -> bool {
        self.state = match outcome {
            Outcome::Finished => "finished",
            Outcome::Interrupted => "interrupted",
            Outcome::Failed => "stopped",
        };
        self.write_page()
    }

    fn note_events(&mut self, note: impl FnOnce(&mut EventFile) -> Result<()>) {
        if let Some(Err(error)) = self.events.as_mut().map(note) {
            say!("note     TensorBoard files end here: {error:#}");
            self.events = None;
        }
    }

    fn refresh(&mut self) {
        if self.written.elapsed() > REFRESH.max(self.write_cost * REFRESH_COST) {
            self.write_page();
        }
    }

    fn write_page(&mut self) -> bool {
        if self.views == Views::MetricsOnly || self.page_failed {
            return false;
        }
        let start = Instant::now();
        self.facts.memory.host_used_bytes = peak_resident_bytes();
        if let Err(error) = page::write(&self.dir, &self.data()) {
            say!("note     no page of this run: {error:#}");
            self.page_failed = true;
        }
        self.written = Instant::now();
        self.write_cost = start.elapsed();
        !self.page_failed
    }

    fn data(&self) -> Value {
        let lanes = self.facts.lanes.iter().zip(self.usage.shares());
        json!({
            "format": 1,
            "state": self.state,
            "started_unix_s": self.started_unix_s,
            "updated_unix_s": unix_s(),
            "elapsed_s": self.started.elapsed().as_secs_f64(),
            "metrics_bytes": self.metrics.len_bytes(),
            "facts": self.facts,
            "history": self.history.to_json(),
            "lanes": lanes.map(|(lane, share)| json!({ "name": lane.kind.to_string(), "share": share })).collect::<Vec<_>>(),
            "timeline": self.timeline.as_ref().map(|(step, timeline)| timeline::to_json(timeline, *step)),
            "samples": self.samples,
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.state == "running" {
            self.state = "stopped";
            self.write_page();
        }
    }
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
