//! The data of a run: from options to documents of tokens, and how they are packed.

mod choices;
pub mod preview;
mod read;
mod report;
mod sources;

pub use choices::{TrainOn, Truncation};
pub use read::{Data, Reader};
pub use report::DataReport;
pub use sources::{check, evaluation_sources, training_sources};

use crate::evaluate::Prompt;
use crate::options::TrainOptions;
use crate::report::DataFacts;
use crate::setup::{Source, StepShape};
use anyhow::{Context, Result};
use megatrain_data::{Documents, PackOptions, Packer};
use std::sync::Arc;

/// What is trained on and what is evaluated on.
pub struct RunData {
    /// To train on.
    pub training: Documents,
    /// To evaluate on, if anything.
    pub evaluation: Option<Evaluation>,
    /// What is asked at each evaluation.
    pub prompts: Vec<Prompt>,
    /// Which documents share sequences.
    pub packing: Packing,
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
        let mut reader = Reader::new(options, source, shape.seq_len)?;
        let Data { documents, report } = reader.read(&training_sources(options)?, "reading data")?;
        say!("data     {}", report.describe(&documents));
        let packing = Packing::new(options, report.pretokenized > 0);
        let chats = report.conversations > 0;
        let mut data = RunData::new(documents, packing, chats, options, &mut reader)?;
        data.template = reader.named_template().filter(|_| chats);
        data.facts = DataFacts { truncated: report.truncated(), ..data.facts }.with_skips(&report.skips);
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
        RunData::new(documents, packing, false, options, &mut Reader::new(options, source, shape.seq_len)?)
    }

    /// `chats`: whether conversations are trained, so that prompts are a user's messages.
    fn new(
        documents: Documents,
        packing: Packing,
        chats: bool,
        options: &TrainOptions,
        reader: &mut Reader,
    ) -> Result<RunData> {
        let prompt = |text: &String| Ok(Prompt { text: text.clone(), tokens: reader.prompt(text, chats)? });
        let prompts: Result<_> = options.eval_prompts.iter().flatten().map(prompt).collect();
        let prompts = prompts.context("--eval-prompts")?;
        let (training, evaluation) = match (evaluation_sources(options)?, options.held_out.unwrap_or(0.0)) {
            (Some(sources), _) => {
                let read = reader.read(&sources, "reading evaluation data");
                let Data { documents: held, report } = read.context("--eval-data")?;
                say!("eval     {}", report.describe(&held));
                (documents, Some(Evaluation { documents: held, flag: "--eval-data" }))
            }
            (None, 0.0) => (documents, None),
            (None, fraction) => {
                let (training, held) = documents.split_held_out(fraction, options.seed.unwrap_or(0))?;
                let flag = "the part of the data that --held-out keeps apart";
                (training, Some(Evaluation { documents: held, flag }))
            }
        };
        let held_out = evaluation.as_ref().map_or(0, |held| held.documents.len() as u64);
        let facts = DataFacts { held_out, ..DataFacts::of(&training) };
        Ok(RunData { training, evaluation, prompts, packing, facts, template: None })
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
    let options = PackOptions {
        seq_len: shape.seq_len,
        seed: options.seed.unwrap_or(0),
        shuffle: !options.no_shuffle.unwrap_or(false),
        pack_texts: packing.texts,
        pack_lines: packing.lines,
        group_by_length: options
            .group_by_length
            .unwrap_or(false)
            .then_some(shape.batch_size.saturating_mul(GROUPED_BATCHES)),
    };
    Ok(Packer::new(Arc::new(documents), options)?)
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
