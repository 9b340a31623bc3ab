//! Whole training runs as the command makes them: options and documents in, metrics and a model directory out.

use megatrain_data::Documents;
use megatrain_trainer::data::{Packing, RunData};
use megatrain_trainer::options::{Dtype, Schedule, TrainOptions};
use megatrain_trainer::setup::Source;
use megatrain_trainer::train::{DataKind, Summary, train_on};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

/// What a run left. Its files are removed with it.
#[derive(Debug)]
pub struct Run {
    /// What it came to, or why it ended.
    pub summary: anyhow::Result<Summary>,
    /// The steps in `metrics.jsonl`, line by line.
    pub metrics: Vec<Value>,
    dir: TempDir,
}

/// Trains in f32 on sequences of 16 in the order given, at a constant rate, on one thread, where `change` says nothing else.
///
/// # Panics
/// If there are no metrics.
pub fn run(source: &Source, documents: Documents, change: impl FnOnce(&mut TrainOptions)) -> Run {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = TrainOptions {
        dtype: Some(Dtype::F32),
        seq_len: Some(16),
        no_shuffle: Some(true),
        lr_schedule: Some(Schedule::Constant),
        threads: Some(1),
        out: Some(dir.path().to_owned()),
        ..TrainOptions::default()
    };
    change(&mut options);
    let packing = Packing { texts: true, lines: false };
    let summary = RunData::from_documents(documents, packing, &options, source)
        .and_then(|data| train_on(&options, source, data, DataKind::Own));
    let text = std::fs::read_to_string(dir.path().join("metrics.jsonl")).expect("metrics.jsonl");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a JSON line"));
    let metrics = lines.filter(|line| line.get("loss").is_some()).collect();
    Run { summary, metrics, dir }
}

impl Run {
    /// What the run came to.
    ///
    /// # Panics
    /// If it failed.
    pub fn summary(&self) -> &Summary {
        self.summary.as_ref().unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// The trained model's directory.
    pub fn model(&self) -> PathBuf {
        self.dir.path().join("model")
    }

    /// A number of the metrics of step `step`, counted from 0.
    ///
    /// # Panics
    /// If it is none.
    pub fn number(&self, step: usize, key: &str) -> f64 {
        let line = &self.metrics[step];
        line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"))
    }
}

/// Pre-tokenized documents, which are a sequence each.
pub fn lines(documents: impl IntoIterator<Item = Vec<i32>>) -> Documents {
    let lines = documents.into_iter().map(|tokens| (tokens.clone(), tokens));
    Documents::from_lines("made for the test", lines).expect("documents with tokens")
}
