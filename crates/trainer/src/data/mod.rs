//! The data of a run: from options to documents of tokens, and how they are packed.

mod cached;
mod choices;
mod feed;
pub mod preview;
mod read;
mod report;
mod sources;
mod stream;

pub use choices::{TrainOn, Truncation};
pub use feed::{Feed, Training};
pub use read::{Data, Reader};
pub use report::DataReport;
pub use sources::{check, evaluation_sources, training_sources};
pub use stream::Streamed;

use crate::evaluate::Prompt;
use crate::options::TrainOptions;
use crate::report::DataFacts;
use crate::setup::{Source, StepShape};
use anyhow::{Context, Result};
use megatrain_data::{Documents, PackOptions, Packer, Samples};
use std::sync::Arc;

/// Bytes of files beyond which whoever waits for them is told how not to.
const LARGE: u64 = 500 << 20;

/// What is trained on and what is evaluated on.
pub struct RunData {
    /// To train on.
    pub training: Training,
    /// To evaluate on, if anything.
    pub evaluation: Option<Evaluation>,
    /// What is asked at each evaluation.
    pub prompts: Vec<Prompt>,
    /// What is trained on, counted.
    pub facts: DataFacts,
    /// The chat template to save with the model, where conversations were rendered with another than its own.
    pub template: Option<String>,
}

/// What is evaluated on.
pub struct Evaluation {
    /// The documents.
    pub documents: Documents,
    /// The flag that chose them, for messages.
    pub flag: &'static str,
}

/// Which documents share sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packing {
    /// Texts do.
    pub texts: bool,
    /// Documents with labels do.
    pub lines: bool,
}

impl Packing {
    /// All documents share sequences.
    pub const ALL: Packing = Packing { texts: true, lines: true };

    /// As the options say; where they say nothing, everything but token ids is packed, whose makers have packed them.
    pub fn new(options: &TrainOptions, pretokenized: bool) -> Packing {
        match options.packing {
            Some(packing) => Packing { texts: packing, lines: packing },
            None if options.group_by_length == Some(true) => Packing { texts: false, lines: false },
            None => Packing { texts: true, lines: !pretokenized },
        }
    }
}

impl RunData {
    /// Reads what the options name, and says what it is.
    ///
    /// # Errors
    /// Files that cannot be read or hold nothing to learn, with file and line; settings that name nothing there is.
    pub fn read(options: &TrainOptions, source: &Source) -> Result<RunData> {
        let shape = StepShape::new(options, &source.model.config)?;
        let reader = Reader::new(options, source, shape.seq_len)?;
        let sources = training_sources(options)?;
        let samples = reader.samples(&sources)?;
        say_passed_over(&samples);
        if options.streaming == Some(true) {
            let stream = Streamed::begin(options, sources, reader.clone(), shape)?;
            let (chats, facts) = (stream.has_conversations(), stream.facts().clone());
            let mut data = RunData::new(Training::Stream(Box::new(stream)), facts, chats, options, &reader)?;
            // There may be conversations later.
            data.template = reader.named_template();
            return Ok(data);
        }
        let (_, bytes) = samples.progress();
        let what = if bytes > LARGE { "reading data (--streaming --steps N trains meanwhile)" } else { "reading data" };
        let Data { documents, report } = reader.read(&sources, what)?;
        let facts = DataFacts { truncated: report.truncated(), ..DataFacts::of(&documents) }.with_skips(&report.skips);
        say!("data     {}", report.describe(documents.files(), &facts));
        let packing = Packing::new(options, report.pretokenized > 0);
        let chats = report.conversations > 0;
        let mut data = RunData::new(Training::Documents(documents, packing), facts, chats, options, &reader)?;
        data.template = reader.named_template().filter(|_| chats);
        Ok(data)
    }

    /// Trains on documents that come from no file; the rest is as the options say.
    ///
    /// # Errors
    /// As [`RunData::read`].
    pub fn from_documents(
        documents: Documents,
        packing: Packing,
        options: &TrainOptions,
        source: &Source,
    ) -> Result<RunData> {
        let shape = StepShape::new(options, &source.model.config)?;
        let (facts, reader) = (DataFacts::of(&documents), Reader::new(options, source, shape.seq_len)?);
        RunData::new(Training::Documents(documents, packing), facts, false, options, &reader)
    }

    /// `chats`: whether conversations are trained, so that prompts are a user's messages.
    fn new(
        training: Training,
        facts: DataFacts,
        chats: bool,
        options: &TrainOptions,
        reader: &Reader,
    ) -> Result<RunData> {
        let prompt = |text: &String| Ok(Prompt { text: text.clone(), tokens: reader.prompt(text, chats)? });
        let prompts: Result<_> = options.eval_prompts.iter().flatten().map(prompt).collect();
        let prompts = prompts.context("--eval-prompts")?;
        let held_out = options.held_out.unwrap_or(0.0);
        let (training, evaluation, facts) = match (evaluation_sources(options)?, training) {
            (Some(sources), training) => {
                let flag = match (&options.eval_data, &options.eval_dataset) {
                    (Some(_), Some(_)) => "--eval-data and --eval-dataset",
                    (None, Some(_)) => "--eval-dataset",
                    _ => "--eval-data",
                };
                let read = reader.read(&sources, "reading evaluation data");
                let Data { documents: held, report } = read.context(flag)?;
                say!("eval     {}", report.describe(held.files(), &DataFacts::of(&held)));
                (training, Some(Evaluation { documents: held, flag }), facts)
            }
            (None, Training::Documents(documents, packing)) if held_out > 0.0 => {
                let (training, held) = documents.split_held_out(held_out, options.seed.unwrap_or(0))?;
                let flag = "the part of the data that --held-out keeps apart";
                let facts = facts.counting(&training);
                (Training::Documents(training, packing), Some(Evaluation { documents: held, flag }), facts)
            }
            (None, training) => (training, None, facts),
        };
        let held_out = evaluation.as_ref().map_or(0, |held| held.documents.len() as u64);
        Ok(RunData { training, evaluation, prompts, facts: DataFacts { held_out, ..facts }, template: None })
    }
}

/// Says which files of folders are no data.
fn say_passed_over(samples: &Samples) {
    if let Some(passed_over) = samples.passed_over() {
        say!("note     {passed_over}");
    }
}

/// How full the sequences of the first epoch are, in a sentence.
pub fn describe_packing(packer: &Packer, shape: StepShape) -> String {
    let documents = packer.documents();
    let epoch = packer.epoch(0);
    let room = epoch.len() as f64 * shape.seq_len as f64;
    format!(
        "{} document(s) in {} sequence(s) of at most {} tokens, {:.1}% full; {} step(s) of up to {} sequences an epoch",
        documents.len(),
        epoch.len(),
        shape.seq_len,
        100.0 * documents.tokens() as f64 / room,
        epoch.len().div_ceil(shape.batch_size),
        shape.batch_size
    )
}

/// The sequences to train on, in every epoch's order.
///
/// # Errors
/// There is nothing to learn, or a pre-tokenized line is too long.
pub fn training_packer(
    documents: Documents,
    options: &TrainOptions,
    shape: StepShape,
    packing: Packing,
) -> Result<Packer> {
    Ok(Packer::new(Arc::new(documents), pack_options(options, shape, packing))?)
}

/// How documents become sequences to train on.
fn pack_options(options: &TrainOptions, shape: StepShape, packing: Packing) -> PackOptions {
    PackOptions {
        seq_len: shape.seq_len,
        seed: options.seed.unwrap_or(0),
        shuffle: !options.no_shuffle.unwrap_or(false),
        pack_texts: packing.texts,
        pack_lines: packing.lines,
        group_by_length: options
            .group_by_length
            .unwrap_or(false)
            .then_some(shape.batch_size.saturating_mul(GROUPED_BATCHES)),
    }
}

/// Batches whose sequences are ordered by length at a time: the usual number of Hugging Face's trainer.
const GROUPED_BATCHES: usize = 50;

/// The sequences to evaluate on. Packed in any case: documents do not see each other, so the loss is the same.
///
/// # Errors
/// There is nothing to predict, or a pre-tokenized line is too long.
pub fn evaluation_packer(evaluation: Evaluation, shape: StepShape) -> Result<Packer> {
    let options = PackOptions {
        seq_len: shape.seq_len,
        seed: 0,
        shuffle: true,
        pack_texts: true,
        pack_lines: true,
        group_by_length: None,
    };
    Packer::new(Arc::new(evaluation.documents), options).with_context(|| format!("in {}", evaluation.flag))
}
