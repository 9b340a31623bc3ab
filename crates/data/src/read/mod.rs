//! From paths to [`Sample`]s one by one, and to [`Documents`]: which files, what they hold, and what of it is wrong, with
//! file and line.

mod bytes;
mod draw;
mod files;
mod format;
mod json;
mod registry;
mod samples;
mod source;
#[cfg(feature = "arrow")]
mod table;
mod zstd;

pub use format::{AlpacaColumns, Format, MessageColumns, Tags};
pub use registry::Registry;
pub use samples::{Mix, SampleOptions, Samples};
pub use source::{DataSource, SourceReport};

use crate::conversation::Sample;
use crate::document::{Documents, DocumentsBuilder, IGNORE};
use crate::error::{self, Error};
use crate::skip::{Skip, Skips};
use crate::tokenizer::TextTokenizer;
use std::path::{Path, PathBuf};

/// How files become documents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOptions {
    /// Whether each text ends with the tokenizer's end token (exactly one, however the text itself ends).
    pub append_eos: bool,
    /// Size of the model's vocabulary, which no id may reach. None where there is no model yet.
    pub vocab_size: Option<usize>,
}

/// What was read, for the person to compare with what was meant.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadReport {
    /// Files read.
    pub files: u64,
    /// Texts.
    pub texts: u64,
    /// Pre-tokenized lines.
    pub lines: u64,
    /// Tokens, end tokens included.
    pub tokens: u64,
    /// Tokens to be learnt, before any cutting.
    pub targets: u64,
    /// Records left out, each with its reason.
    pub skips: Skips,
}

/// Texts are encoded in parallel once this much of them was read.
const ENCODE_BYTES: usize = 8 << 20;

/// Reads files and directories of texts and token ids into documents, in order: paths as given, a directory's files by
/// name. [`Samples`] says what is read how; a conversation needs a chat template first and is an error here.
///
/// Texts are encoded in parallel; `tokenizer` may be absent where all data is pre-tokenized.
pub fn read(
    paths: &[PathBuf],
    tokenizer: Option<&dyn TextTokenizer>,
    options: &ReadOptions,
) -> Result<(Documents, ReadReport), Error> {
    let sources: Vec<DataSource> = paths.iter().map(DataSource::new).collect();
    let mut samples = Samples::new(&sources, &SampleOptions::default())?;
    let documents = DocumentsBuilder::in_memory(samples.files().to_vec());
    let mut reader = Reader { tokenizer, options, documents, report: ReadReport::default(), texts: Texts::default() };
    for sample in &mut samples {
        reader.take(sample?)?;
    }
    reader.encode()?;
    let Reader { documents, mut report, .. } = reader;
    let documents = documents.finish();
    report.files = documents.files().len() as u64;
    report.tokens = documents.tokens();
    report.targets = documents.iter().map(|doc| doc.targets(0, doc.tokens.len())).sum();
    report.skips.extend(samples.skips().clone());
    if documents.is_empty() {
        return Err(Error::Invalid("the data holds no tokens: every text is encoded as none".to_owned()));
    }
    Ok((documents, report))
}

/// Texts that wait to be encoded, each with its file and line.
#[derive(Default)]
struct Texts {
    texts: Vec<String>,
    places: Vec<(u32, u64)>,
    bytes: usize,
}

struct Reader<'a> {
    tokenizer: Option<&'a dyn TextTokenizer>,
    options: &'a ReadOptions,
    documents: DocumentsBuilder,
    report: ReadReport,
    texts: Texts,
}

impl Reader<'_> {
    fn take(&mut self, sample: Sample) -> Result<(), Error> {
        let (file, line) = sample.place();
        match sample {
            Sample::Text { text, .. } => {
                self.texts.bytes += text.len();
                self.texts.texts.push(text);
                self.texts.places.push((file, line));
                if self.texts.bytes >= ENCODE_BYTES {
                    self.encode()?;
                }
            }
            Sample::Tokens { tokens, labels, .. } => {
                self.encode()?;
                self.in_range(file, line, "input_ids", &tokens)?;
                self.in_range(file, line, "labels", &labels)?;
                self.report.lines += 1;
                self.documents.push(&tokens, Some(&labels), file, line)?;
            }
            Sample::Conversation(_) | Sample::PromptCompletion { .. } => {
                let problem = "this is a conversation or a prompt with its completion; here only \"text\" and \
                               \"input_ids\" are read: render it with the model's chat template first";
                return Err(error::line(self.path(file), line, problem));
            }
        }
        Ok(())
    }

    /// Turns the texts read so far into documents.
    fn encode(&mut self) -> Result<(), Error> {
        let Texts { texts, places, .. } = std::mem::take(&mut self.texts);
        let Some(&(file, _)) = places.first() else { return Ok(()) };
        let eos = self.end_token(self.path(file))?;
        let tokenizer = self.tokenizer.expect("end_token() has refused text without a tokenizer");
        for (mut tokens, (file, line)) in tokenizer.encode_batch(&texts)?.into_iter().zip(places) {
            tokens.extend(eos.filter(|eos| tokens.last() != Some(eos)));
            if tokens.is_empty() {
                let reason = "the text is encoded as no token".to_owned();
                self.report.skips.add(Skip { file, line, kind: "field empty".into(), reason });
                continue;
            }
            self.in_range(file, line, "an encoded text", &tokens)?;
            self.report.texts += 1;
            self.documents.push(&tokens, None, file, line)?;
        }
        Ok(())
    }

    fn path(&self, file: u32) -> &Path {
        &self.documents.files()[file as usize]
    }

    /// The token to append to texts, if any; fails where there is text but no way to encode or end it.
    fn end_token(&self, path: &Path) -> Result<Option<i32>, Error> {
        let Some(tokenizer) = self.tokenizer else {
            let problem = "this is text, but there is no tokenizer to encode it; give a model directory with a \
                           tokenizer.json, or pre-tokenized data";
            return Err(error::file(path, problem));
        };
        match (self.options.append_eos, tokenizer.eos_id()) {
            (false, _) => Ok(None),
            (true, Some(eos)) => Ok(Some(eos)),
            (true, None) => {
                let problem = "the tokenizer names no end token to append to texts; add \"eos_token\" to its \
                               tokenizer_config.json, or turn appending off";
                Err(error::file(path, problem))
            }
        }
    }

    fn in_range(&self, file: u32, line: u64, what: &str, ids: &[i32]) -> Result<(), Error> {
        let size = self.options.vocab_size.map_or(i32::MAX, |size| size.min(i32::MAX as usize) as i32);
        let bad = |id: i32| id >= size || (id < 0 && !(what == "labels" && id == IGNORE));
        let Some(i) = ids.iter().position(|&id| bad(id)) else { return Ok(()) };
        let allowed = if what == "labels" { format!(", or {IGNORE} where nothing is trained") } else { String::new() };
        let problem = format!(
            "place {i} of {what} is {}; ids must lie between 0 and {}, the model's vocabulary{allowed}; was the data \
             made with another tokenizer?",
            ids[i],
            size - 1
        );
        let path = self.path(file);
        Err(if line > 0 { error::line(path, line, problem) } else { error::file(path, problem) })
    }
}
