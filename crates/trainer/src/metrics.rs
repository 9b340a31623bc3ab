//! `metrics.jsonl`: a line a step (it has `loss`), an evaluation (`eval_loss`), a sample (`sample`).

use anyhow::{Context, Result, bail};
use serde::{Serialize, Serializer};
use std::fs::{File, TryLockError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// One step as it is logged.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepMetrics {
    /// Counted from 1.
    pub step: u64,
    /// Mean loss of all targets of the step, in nats. Not finite: the text `NaN` or `inf`.
    #[serde(serialize_with = "number")]
    pub loss: f64,
    /// Global gradient norm before clipping.
    #[serde(serialize_with = "number")]
    pub grad_norm: f64,
    /// Learning rate of the step.
    pub lr: f64,
    /// Tokens computed, padding not counted.
    pub tokens: u64,
    /// Of them, with a target.
    pub targets: u64,
    /// From the end of the step before to the end of this one.
    pub seconds: f64,
    /// `tokens / seconds`.
    pub tokens_per_s: f64,
    /// Model floating-point operations (matrix products and causal attention, forward and backward once, no
    /// recomputation) a second, in units of 10^12.
    pub model_tflops: f64,
    /// Why the step changed nothing, if it did not.
    pub skipped: Option<String>,
}

/// An evaluation on held-out data.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EvalMetrics {
    /// Steps done before it; 0 before training.
    pub step: u64,
    /// Mean loss of all targets, in nats.
    #[serde(serialize_with = "number")]
    pub eval_loss: f64,
    /// `exp(eval_loss)`.
    #[serde(serialize_with = "number")]
    pub perplexity: f64,
}

impl EvalMetrics {
    /// From the mean loss.
    pub fn new(step: u64, eval_loss: f64) -> Self {
        EvalMetrics { step, eval_loss, perplexity: eval_loss.exp() }
    }
}

/// What the model wrote.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SampleMetrics {
    /// Steps done before it.
    pub step: u64,
    /// What it was given.
    pub prompt: String,
    /// What it added.
    pub sample: String,
}

/// JSON has no NaN: a figure that is none is written as text, never as a number that looks like one.
fn number<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    if x.is_finite() { s.serialize_f64(*x) } else { s.serialize_str(&x.to_string()) }
}

/// Writes `metrics.jsonl`.
pub struct MetricsFile {
    path: PathBuf,
    file: BufWriter<File>,
    len_bytes: u64,
}

impl MetricsFile {
    /// Begins the file anew. It stays locked while it is written: two runs in one folder would mix their figures and
    /// replace each other's models.
    ///
    /// # Errors
    /// If it cannot be made, or another run writes it.
    pub fn create(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("making the output folder {}", dir.display()))?;
        let path = dir.join("metrics.jsonl");
        let creating = || format!("creating {}", path.display());
        let file = File::options().write(true).create(true).truncate(false).open(&path).with_context(creating)?;
        // Not every file system has locks; without them all is as if nobody else were there.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            bail!(
                "another run is writing to {}; wait until it has ended, or give another folder with --out",
                dir.display()
            );
        }
        file.set_len(0).with_context(creating)?;
        Ok(MetricsFile { path, file: BufWriter::new(file), len_bytes: 0 })
    }

    /// Appends a line and hands it to the system at once, so that another program can follow the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut write = || {
            let mut bytes = serde_json::to_vec(line)?;
            bytes.push(b'\n');
            self.file.write_all(&bytes)?;
            self.len_bytes += bytes.len() as u64;
            self.file.flush()
        };
        write().with_context(|| format!("writing {}", self.path.display()))
    }

    /// Bytes written so far.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_is_never_written_as_one() {
        let metrics = StepMetrics {
            step: 1,
            loss: f64::NAN,
            grad_norm: f64::INFINITY,
            lr: 0.1,
            tokens: 3,
            targets: 2,
            seconds: 0.5,
            tokens_per_s: 6.0,
            model_tflops: 0.25,
            skipped: Some("reason".into()),
        };
        let line = serde_json::to_string(&metrics).unwrap();
        let want = r#"{"step":1,"loss":"NaN","grad_norm":"inf","lr":0.1,"tokens":3,"targets":2,"seconds":0.5,"tokens_per_s":6.0,"model_tflops":0.25,"skipped":"reason"}"#;
        assert_eq!(line, want);
        let line = serde_json::to_string(&EvalMetrics::new(7, f64::NAN)).unwrap();
        assert_eq!(line, r#"{"step":7,"eval_loss":"NaN","perplexity":"NaN"}"#);
    }

    #[test]
    fn a_folder_takes_one_run_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = MetricsFile::create(dir.path()).unwrap();
        first.write(&1).unwrap();
        let error = MetricsFile::create(dir.path()).err().unwrap().to_string();
        assert!(error.starts_with("another run is writing to ") && error.contains("--out"), "{error}");
        first.write(&2).unwrap();
        let path = dir.path().join("metrics.jsonl");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n2\n");
        drop(first);
        drop(MetricsFile::create(dir.path()).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
