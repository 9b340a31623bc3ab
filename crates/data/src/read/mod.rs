//! From paths to [`Documents`]: which files, what they hold, and what of it is wrong, with file and line.

mod files;
mod record;
mod text;

use crate::document::{Document, Documents, IGNORE};
use crate::error::{self, Error};
use crate::tokenizer::TextTokenizer;
use files::Format;
use record::{Content, Record};
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadReport {
    /// Files read.
    pub files: u64,
    /// Texts.
    pub texts: u64,
    /// Pre-tokenized lines.
    pub lines: u64,
    /// Records left out because their text is empty.
    pub skipped_empty: u64,
    /// Tokens, end tokens included.
    pub tokens: u64,
    /// Tokens to be learnt, before any cutting.
    pub targets: u64,
}

/// Reads files and directories into documents, in order: paths as given, a directory's files by name.
///
/// - `.txt`: the whole file is one document; `\r\n` becomes `\n`.
/// - `.jsonl`: a JSON object a line, blank lines apart: `{"text": "..."}`, or
///   `{"input_ids": [...], "labels": [...]}` with labels *unshifted* (at each place the id of that place, or -100 where
///   nothing is trained; without `labels`, everything is). A file holds one kind; other keys are ignored.
/// - `.json`: an array of such objects.
///
/// Texts are encoded in parallel; `tokenizer` may be absent where all data is pre-tokenized.
pub fn read(
    paths: &[PathBuf],
    tokenizer: Option<&dyn TextTokenizer>,
    options: &ReadOptions,
) -> Result<(Documents, ReadReport), Error> {
    if paths.is_empty() {
        return Err(Error::Invalid("no data: give --data files or directories (.txt, .jsonl, .json)".to_owned()));
    }
    let mut reader = Reader { tokenizer, options, documents: Documents::default(), report: ReadReport::default() };
    for (path, format) in files::find(paths)? {
        reader.read_file(&path, format)?;
    }
    let Reader { documents, mut report, .. } = reader;
    report.files = documents.files.len() as u64;
    report.tokens = documents.tokens();
    report.targets = documents.docs.iter().map(|doc| doc.targets(0, doc.tokens.len())).sum();
    if documents.docs.is_empty() {
        return Err(Error::Invalid(format!(
            "the data holds no documents: all {} texts are empty",
            report.skipped_empty
        )));
    }
    Ok((documents, report))
}

struct Reader<'a> {
    tokenizer: Option<&'a dyn TextTokenizer>,
    options: &'a ReadOptions,
    documents: Documents,
    report: ReadReport,
}

impl Reader<'_> {
    fn read_file(&mut self, path: &Path, format: Format) -> Result<(), Error> {
        let bytes = std::fs::read(path).map_err(error::io(path, "reading"))?;
        let content = text::decode(path, &bytes)?;
        if content.trim().is_empty() {
            return Err(error::file(path, "the file is empty; remove it or leave it out"));
        }
        let records = match format {
            Format::Text => vec![Record { line: 0, content: Content::Text(content.replace("\r\n", "\n")) }],
            Format::Lines => record::lines(path, content)?,
            Format::Array => record::array(path, content)?,
        };
        drop(bytes);
        record::one_kind(path, &records)?;
        let file = self.documents.files.len() as u32;
        self.documents.files.push(path.to_owned());

        let (mut texts, mut lines) = (Vec::new(), Vec::new());
        for Record { line, content } in records {
            match content {
                Content::Text(text) if text.is_empty() => self.report.skipped_empty += 1,
                Content::Text(text) => {
                    texts.push(text);
                    lines.push(line);
                }
                Content::Tokens { tokens, labels } => {
                    self.in_range(path, line, "input_ids", &tokens)?;
                    self.in_range(path, line, "labels", &labels)?;
                    self.report.lines += 1;
                    self.documents.docs.push(Document { tokens, labels: Some(labels), file, line });
                }
            }
        }
        if texts.is_empty() {
            return Ok(());
        }
        let eos = self.end_token(path)?;
        let tokenizer = self.tokenizer.expect("end_token() has refused text without a tokenizer");
        for (mut tokens, line) in tokenizer.encode_batch(&texts)?.into_iter().zip(lines) {
            tokens.extend(eos.filter(|eos| tokens.last() != Some(eos)));
            if tokens.is_empty() {
                self.report.skipped_empty += 1;
                continue;
            }
            self.in_range(path, line, "an encoded text", &tokens)?;
            self.report.texts += 1;
            self.documents.docs.push(Document { tokens, labels: None, file, line });
        }
        Ok(())
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

    fn in_range(&self, path: &Path, line: u64, what: &str, ids: &[i32]) -> Result<(), Error> {
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
        Err(if line > 0 { error::line(path, line, problem) } else { error::file(path, problem) })
    }
}
