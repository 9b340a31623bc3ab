//! `metrics.jsonl`: a line a step.

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};
use std::fs::File;
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

/// JSON has no NaN: a figure that is none is written as text, never as a number that looks like one.
fn number<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    if x.is_finite() { s.serialize_f64(*x) } else { s.serialize_str(&x.to_string()) }
}

/// Writes `metrics.jsonl`.
pub struct MetricsFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl MetricsFile {
    /// Begins the file anew.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("making the output folder {}", dir.display()))?;
        let path = dir.join("metrics.jsonl");
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(MetricsFile { path, file: BufWriter::new(file) })
    }

    /// Appends a line and hands it to the system at once, so that another program can follow the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, metrics: &StepMetrics) -> Result<()> {
        let write = |file: &mut BufWriter<File>| {
            serde_json::to_writer(&mut *file, metrics)?;
            file.write_all(b"\n")?;
            file.flush()
        };
        write(&mut self.file).with_context(|| format!("writing {}", self.path.display()))
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
    }
}
