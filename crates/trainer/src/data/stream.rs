//! `--streaming`: the records of a data set as a stream of documents, and what was read of it.

use super::report::DataReport;
use super::{Packing, Reader, pack_options};
use crate::options::TrainOptions;
use crate::report::DataFacts;
use crate::setup::StepShape;
use anyhow::{Context, Result, bail};
use megatrain_base::fmt_bytes;
use megatrain_data::{
    DataSource, DocumentSource, Documents, DocumentsBuilder, PackOptions, Room, Samples, StepBatch, StreamBatches,
    StreamOptions,
};
use std::path::PathBuf;
use std::time::Duration;

/// Documents in a window, where nothing else is asked for: LLaMA-Factory's default.
const BUFFER_SIZE: usize = 16384;

/// Tokens in a window: 64 MiB with labels.
const BUFFER_TOKENS: u64 = 8 << 20;

/// Tokens in the first window: read in a fraction of a second, and enough to fill sequences well.
const FIRST_TOKENS: u64 = 64 << 10;

/// Waits shorter than this in all are not worth a word.
const NOTICEABLE: Duration = Duration::from_millis(500);

/// Steps from records that are read and encoded meanwhile, and the account of it.
pub struct Streamed {
    batches: StreamBatches<Records>,
    account: Account,
    files: Vec<PathBuf>,
    seq_len: usize,
    /// Until the first window was there.
    first_wait: Duration,
    /// Handed out in steps.
    sequences: u64,
    tokens: u64,
}

/// What was read in the first pass over the data, as far as it was handed out.
#[derive(Default)]
struct Account {
    report: DataReport,
    facts: DataFacts,
}

impl Streamed {
    /// Begins to read, says what, and waits for the first window.
    ///
    /// # Errors
    /// Files that are not there; whatever is wrong with the records of the first window.
    pub fn begin(
        options: &TrainOptions,
        sources: Vec<DataSource>,
        reader: Reader,
        shape: StepShape,
    ) -> Result<Streamed> {
        if let Some(source) = sources.iter().find(|source| source.num_samples.is_some()) {
            bail!(
                "{}: \"num_samples\" of dataset_info.json draws among all records, and --streaming does not have them; leave \
                 out one of the two",
                source.path.display()
            );
        }
        let samples = reader.samples(&sources)?;
        let (files, (_, bytes)) = (samples.files().to_vec(), samples.progress());
        let buffer_size = options.buffer_size.unwrap_or(BUFFER_SIZE);
        say!(
            "data     streaming {} file(s), {}, in windows of up to {buffer_size} documents (--buffer-size) or {:.1} million \
             tokens; {}",
            files.len(),
            fmt_bytes(bytes),
            BUFFER_TOKENS as f64 / 1e6,
            match options.no_shuffle {
                Some(true) => "in file order",
                _ => "shuffled within each",
            }
        );
        let stream = StreamOptions {
            pack: pack_options(options, shape, Packing::ALL),
            batch_size: shape.batch_size,
            buffer_size,
            buffer_tokens: BUFFER_TOKENS,
            first_tokens: FIRST_TOKENS,
        };
        let records = Records {
            reader,
            sources,
            options: options.clone(),
            samples: None,
            report: DataReport::default(),
            documents: 0,
        };
        let mut batches = StreamBatches::new(records, stream)?;
        let bar = crate::progress::bar(1, "reading the first of the data");
        batches.ready()?;
        bar.finish_and_clear();
        let mut streamed = Streamed {
            first_wait: batches.waited(),
            batches,
            account: Account::default(),
            files,
            seq_len: shape.seq_len,
            sequences: 0,
            tokens: 0,
        };
        streamed.news();
        Ok(streamed)
    }

    /// What was read so far, counted.
    pub fn facts(&self) -> &DataFacts {
        &self.account.facts
    }

    /// Whether there are conversations in what was read.
    pub fn has_conversations(&self) -> bool {
        self.account.report.conversations > 0
    }

    /// What the first window holds.
    pub fn describe(&self) -> String {
        let (documents, sequences) = self.batches.window().unwrap_or_default();
        format!("the first window has {documents} document(s) in {sequences} sequence(s); the next ones grow")
    }

    /// The next step, or None if its data does not come within this time.
    ///
    /// # Errors
    /// Whatever is wrong with the data, with file and line.
    pub fn poll_step(&mut self, wait: Duration) -> Result<Option<StepBatch>> {
        let step = self.batches.poll_step(wait)?;
        if let Some(step) = &step {
            self.sequences += step.sequences.len() as u64;
            self.tokens += step.tokens;
        }
        Ok(step)
    }

    /// What was read so far, if that has changed since the last call.
    pub fn news(&mut self) -> Option<&DataFacts> {
        let notes = self.batches.take_notes();
        let known = self.account.facts.documents;
        // Later passes read the same again.
        for (_, notes) in notes.into_iter().filter(|(epoch, _)| *epoch == 0) {
            self.account.report.merge(notes.report);
            self.account.facts.merge(notes.facts);
        }
        let partial = self.batches.epochs_done() == 0;
        let changed = self.account.facts.documents != known || self.account.facts.partial != partial;
        self.account.facts.partial = partial;
        changed.then_some(&self.account.facts)
    }

    /// What was read of the data, in lines.
    pub fn summary(&self) -> String {
        let Account { report, facts } = &self.account;
        let read = match self.batches.epochs_done() {
            0 => "not read to its end".to_owned(),
            1 => "read to its end once".to_owned(),
            times => format!("read to its end {times} times"),
        };
        let full = 100.0 * self.tokens as f64 / (self.sequences.max(1) as f64 * self.seq_len as f64);
        let waited = self.batches.waited().saturating_sub(self.first_wait);
        let waited = match waited > NOTICEABLE {
            true => format!("; steps waited {:.1} s for data", waited.as_secs_f64()),
            false => String::new(),
        };
        format!(
            "{}\n         {read}; {} sequence(s) trained, {full:.1}% full{waited}",
            report.describe(&self.files, facts),
            self.sequences
        )
    }
}

/// All records of a data set, encoded as they are asked for.
struct Records {
    reader: Reader,
    sources: Vec<DataSource>,
    options: TrainOptions,
    /// Of the pass.
    samples: Option<Samples>,
    /// Since the last window.
    report: DataReport,
    /// In this pass.
    documents: u64,
}

/// What is told about a window.
struct WindowNotes {
    report: DataReport,
    facts: DataFacts,
}

impl DocumentSource for Records {
    type Error = anyhow::Error;
    type Notes = WindowNotes;

    fn begin(&mut self) -> Result<Vec<PathBuf>> {
        let samples = self.samples.insert(self.reader.samples(&self.sources)?);
        self.documents = 0;
        Ok(samples.files().to_vec())
    }

    fn read(&mut self, room: Room, into: &mut DocumentsBuilder) -> Result<bool> {
        let samples = self.samples.as_mut().context("a pass was begun before it is read")?;
        let before = into.len();
        let more = self.reader.read_some(samples, room, into, &mut self.report)?;
        self.documents += (into.len() - before) as u64;
        if !more && self.documents == 0 {
            let mut skips = samples.take_skips();
            skips.extend(std::mem::take(&mut self.report.skips));
            let report = DataReport { skips, ..DataReport::default() };
            bail!("nothing would be learnt: {}", report.left_out(into.files()));
        }
        Ok(more)
    }

    /// Decided by what the window itself holds, so that it does not depend on where reading began.
    fn packing(&self, options: PackOptions, _: &Documents) -> PackOptions {
        let Packing { texts, lines } = Packing::new(&self.options, self.report.pretokenized > 0);
        PackOptions { pack_texts: texts, pack_lines: lines, ..options }
    }

    fn notes(&mut self, window: &Documents) -> WindowNotes {
        let mut report = std::mem::take(&mut self.report);
        if let Some(samples) = &mut self.samples {
            report.sources = samples.reports().cloned().collect();
            let mut skips = samples.take_skips();
            skips.extend(report.skips);
            report.skips = skips;
        }
        let facts = DataFacts { truncated: report.truncated(), ..DataFacts::of(window) }.with_skips(&report.skips);
        WindowNotes { report, facts }
    }
}
