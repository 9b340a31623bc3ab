//! Records into documents of tokens: read one by one, encoded many at a time on all threads, kept in order.

use super::Truncation;
use super::report::DataReport;
use super::sources::{chat_options, sample_options};
use crate::options::TrainOptions;
use crate::setup::Source;
use anyhow::{Context, Result, anyhow, bail};
use megatrain_data::chat::{TemplateChoice, built_in};
use megatrain_data::{
    ChatEncoder, ChatFiles, ChatOptions, Conversation, DataSource, Documents, DocumentsBuilder, Encoded, IGNORE,
    Message, Role, Room, Sample, SampleOptions, Samples, Skip, SkipReason, TextTokenizer, TokenCache, TokenWriter,
};
use rayon::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Records encoded at a time at the most,
const RECORDS_AT_A_TIME: usize = 1024;

/// and about so many bytes of them: records may be books.
const BYTES_AT_A_TIME: usize = 8 << 20;

/// Bytes that a token has, about: so many bytes are taken for the room of a token.
const BYTES_PER_TOKEN: u64 = 4;

/// Documents, and what is to be known about them.
pub struct Data {
    /// The documents, in the order of the records.
    pub documents: Documents,
    /// What was read and what was left out.
    pub report: DataReport,
}

/// Reads data for one model with one set of options. A clone shares what was made of tokenizer and template.
#[derive(Clone)]
pub struct Reader {
    pub(super) encoders: Option<Arc<Encoders>>,
    sample_options: SampleOptions,
    /// What becomes of token ids that are too long; None: that is an error.
    pub(super) truncation: Option<Truncation>,
    pub(super) seq_len: usize,
    pub(super) vocab: usize,
    /// Where tokens are kept from run to run, if anywhere.
    pub(super) cache: Option<TokenCache>,
}

/// What a reader reads at a time where nothing waits for it.
const ROOM: Room = Room { documents: usize::MAX, tokens: u64::MAX };

/// Text to tokens. The encoder with a chat template is made when the first conversation asks for it, so that a model's
/// damaged template troubles nobody who trains on text.
pub(super) struct Encoders {
    pub(super) tokenizer: Arc<dyn TextTokenizer>,
    /// What it was read from; None: bytes, which need no file.
    pub(super) tokenizer_file: Option<PathBuf>,
    pub(super) files: ChatFiles,
    pub(super) options: ChatOptions,
    text: ChatEncoder,
    chat: OnceLock<ChatEncoder>,
}

impl Reader {
    /// Reads the template that was named, if one was.
    ///
    /// # Errors
    /// There is no such template, or it is damaged.
    pub fn new(options: &TrainOptions, source: &Source, seq_len: usize) -> Result<Reader> {
        let template_is_named = options.template.is_some();
        let encoders = source.tokenizer.clone().map(|tokenizer| {
            let files = source.dir.as_ref().map(|dir| ChatFiles::read(dir.path())).transpose()?.unwrap_or_default();
            let chat_options = chat_options(options, seq_len)?;
            let plain = ChatOptions { template: Default::default(), ..chat_options.clone() };
            let text = ChatEncoder::new(tokenizer.clone(), &ChatFiles::default(), plain)?;
            let tokenizer_file = source.dir.as_ref().map(|dir| dir.path().join("tokenizer.json"));
            let (options, chat) = (chat_options, OnceLock::new());
            let encoders = Encoders { tokenizer, tokenizer_file, files, options, text, chat };
            if template_is_named {
                encoders.chat().context("--template")?;
            }
            Ok::<_, anyhow::Error>(Arc::new(encoders))
        });
        Ok(Reader {
            encoders: encoders.transpose()?,
            sample_options: sample_options(options)?,
            truncation: options.truncation,
            seq_len,
            vocab: source.model.config.vocab,
            cache: TokenCache::from_env(),
        })
    }

    /// The records of some sources.
    ///
    /// # Errors
    /// There are no such files.
    pub fn samples(&self, sources: &[DataSource]) -> Result<Samples> {
        Ok(Samples::new(sources, &self.sample_options)?)
    }

    /// The same reader with another place to keep tokens in than the environment says, or none.
    pub fn with_cache(self, cache: Option<TokenCache>) -> Reader {
        Reader { cache, ..self }
    }

    /// Reads and encodes all records, on one thread and on the others: the next are read while some are encoded.
    pub(super) fn read_all(
        &self,
        mut samples: Samples,
        writer: &mut TokenWriter,
        what: &'static str,
    ) -> Result<DataReport> {
        let (_, total_bytes) = samples.progress();
        let bar = crate::progress::bar(total_bytes, what);
        let files: Arc<[PathBuf]> = samples.files().into();
        let mut report = DataReport::default();
        let mut some = take(&mut samples, ROOM)?;
        while !some.is_empty() {
            let mut documents = DocumentsBuilder::in_memory(files.clone());
            let (next, encoded) =
                rayon::join(|| take(&mut samples, ROOM), || self.encode(some, &mut documents, &mut report));
            encoded?;
            writer.append(&documents.finish())?;
            some = next?;
            bar.set_position(samples.progress().0);
        }
        bar.finish_and_clear();
        report.sources = samples.reports().cloned().collect();
        let mut skips = samples.skips().clone();
        skips.extend(std::mem::take(&mut report.skips));
        report.skips = skips;
        if writer.is_empty() {
            bail!("nothing would be learnt: {}", report.left_out(&files));
        }
        Ok(report)
    }

    /// Reads and encodes some of the next records, and whether there were any.
    ///
    /// # Errors
    /// What cannot be read or encoded, with file and line.
    pub(super) fn read_some(
        &self,
        samples: &mut Samples,
        room: Room,
        documents: &mut DocumentsBuilder,
        report: &mut DataReport,
    ) -> Result<bool> {
        let some = take(samples, room)?;
        let any = !some.is_empty();
        self.encode(some, documents, report)?;
        Ok(any)
    }

    /// Encodes records and appends them as documents.
    fn encode(&self, samples: Vec<Sample>, documents: &mut DocumentsBuilder, report: &mut DataReport) -> Result<()> {
        if let Some(words) = samples.iter().find(|sample| !matches!(sample, Sample::Tokens { .. })) {
            let (file, line) = words.place();
            let Some(encoders) = &self.encoders else {
                bail!(
                    "{}: this is text, but there is no tokenizer to encode it; give a model directory with a \
                     tokenizer.json, or pre-tokenized data",
                    documents.origin(file, line)
                );
            };
            let chat = |sample: &Sample| matches!(sample, Sample::Conversation(_));
            if samples.iter().any(chat) {
                encoders.chat()?;
            }
            let ended = |sample: &&Sample| matches!(sample, Sample::Text { .. } | Sample::PromptCompletion { .. });
            if let Some(text) = samples.iter().find(ended).filter(|_| encoders.tokenizer.eos_id().is_none()) {
                let (file, line) = text.place();
                bail!(
                    "{}: the tokenizer names no end token to append to texts; add \"eos_token\" to its \
                     tokenizer_config.json",
                    documents.origin(file, line)
                );
            }
        }
        let encoders = self.encoders.as_ref();
        let encode = |sample: &Sample| match sample {
            Sample::Tokens { tokens, labels, .. } => self.token_ids(tokens, labels),
            _ => encoders.expect("checked above").encode(sample),
        };
        let outcomes: Vec<_> = samples.par_iter().map(encode).collect();
        for (sample, outcome) in samples.iter().zip(outcomes) {
            let (file, line) = sample.place();
            report.count(sample, &outcome);
            let Encoded { tokens, labels, .. } = match outcome {
                Ok(encoded) => encoded,
                Err(SkipReason::NoTemplate(problem)) => {
                    bail!("{}: {problem} (--template NAME or --template FILE.jinja)", documents.origin(file, line))
                }
                Err(reason) => {
                    report.skips.add(Skip { file, line, kind: reason.kind().into(), reason: reason.to_string() });
                    continue;
                }
            };
            let (what, inside) = match sample {
                Sample::Tokens { .. } => ("input_ids", false),
                _ => ("what is encoded", true),
            };
            let problem =
                self.out_of_range(what, &tokens, inside).or_else(|| self.out_of_range("labels", &labels, inside));
            if let Some(problem) = problem {
                bail!("{}: {problem}", documents.origin(file, line));
            }
            // A text may be cut anywhere, so it has no labels of its own.
            let labels = (!matches!(sample, Sample::Text { .. })).then_some(&labels[..]);
            documents.push(&tokens, labels, file, line)?;
        }
        Ok(())
    }

    /// Token ids as they come; too long ones only where it was said what becomes of them.
    fn token_ids(&self, tokens: &[i32], labels: &[i32]) -> Result<Encoded, SkipReason> {
        let max = self.seq_len;
        let all = 0..tokens.len();
        let kept = match self.truncation.filter(|_| tokens.len() > max) {
            None => all,
            Some(Truncation::Drop) => return Err(SkipReason::TooLong { tokens: tokens.len(), max }),
            Some(Truncation::Right) => 0..max,
            Some(Truncation::Left) => tokens.len() - max..tokens.len(),
        };
        Ok(Encoded { tokens: tokens[kept.clone()].to_vec(), labels: labels[kept].to_vec(), ..Encoded::default() })
    }

    fn out_of_range(&self, what: &str, ids: &[i32], ours: bool) -> Option<String> {
        let bad = |id: i32| usize::try_from(id).map_or(!(what == "labels" && id == IGNORE), |id| id >= self.vocab);
        let place = ids.iter().position(|&id| bad(id))?;
        let allowed = if what == "labels" { format!(", or {IGNORE} where nothing is trained") } else { String::new() };
        let advice = match ours {
            true => "tokenizer.json and config.json must come from the same model",
            false => "was the data made with another tokenizer?",
        };
        Some(format!(
            "place {place} of {what} is {}; ids must lie between 0 and {}, the model's vocabulary{allowed}; {advice}",
            ids[place],
            self.vocab - 1
        ))
    }

    /// The tokens of a prompt, and how it reads to the model: as a user's message before the assistant's answer where
    /// `chat`, else as it stands.
    ///
    /// # Errors
    /// There is no tokenizer, or the template refuses the message.
    pub fn prompt(&self, text: &str, chat: bool) -> Result<Vec<i32>> {
        let encoders = self.encoders.as_ref().context("the model has no tokenizer.json to read prompts with")?;
        let mut tokens = match chat {
            false => encoders.tokenizer.encode(text)?,
            true => {
                let messages = vec![Message::new(Role::User, text)];
                let conversation = Conversation { messages, ..Conversation::default() };
                let rendered = encoders.chat()?.render(&conversation, true).map_err(|reason| anyhow!("{reason}"))?;
                let mut tokens: Vec<i32> =
                    encoders.tokenizer.pieces(&rendered)?.into_iter().map(|piece| piece.id).collect();
                let begin = encoders.tokenizer.begin_id().filter(|begin| tokens.first() != Some(begin));
                tokens.splice(0..0, begin);
                tokens
            }
        };
        if tokens.is_empty() {
            tokens.extend(encoders.tokenizer.eos_id());
        }
        Ok(tokens)
    }

    /// The text of a template that was named and is not the model's default: what the trained model has to carry.
    pub fn named_template(&self) -> Option<String> {
        let encoders = self.encoders.as_ref()?;
        match &encoders.options.template {
            TemplateChoice::Model => None,
            TemplateChoice::Text { text, .. } => Some(text.clone()),
            TemplateChoice::Named(name) => {
                let own = encoders.files.template(name).map(|template| template.text.clone());
                own.or_else(|| built_in(name).map(str::to_owned))
            }
        }
    }
}

/// Some of the next records, as many as are encoded at a time; none at the end.
fn take(samples: &mut Samples, room: Room) -> Result<Vec<Sample>> {
    let bytes = room.tokens.saturating_mul(BYTES_PER_TOKEN).min(BYTES_AT_A_TIME as u64) as usize;
    let (mut some, mut taken) = (Vec::new(), 0);
    while some.len() < room.documents.min(RECORDS_AT_A_TIME)
        && taken < bytes
        && let Some(sample) = samples.next().transpose()?
    {
        taken += sample.size_bytes();
        some.push(sample);
    }
    Ok(some)
}

impl Encoders {
    /// Everything that the tokens of conversations and completions depend on besides them and the tokenizer, as a text.
    pub(super) fn settings(&self) -> String {
        let chat = ChatEncoder::new(self.tokenizer.clone(), &self.files, self.options.clone());
        // With a template that is damaged, no conversation can be encoded, so what it depends on does not matter.
        let chat = chat.map_or_else(|problem| problem.to_string(), |chat| chat.settings());
        format!("{chat} {}", self.text.settings())
    }

    /// The encoder of conversations.
    pub(super) fn chat(&self) -> Result<&ChatEncoder> {
        if let Some(chat) = self.chat.get() {
            return Ok(chat);
        }
        let chat = ChatEncoder::new(self.tokenizer.clone(), &self.files, self.options.clone())?;
        for warning in chat.warnings() {
            say!("note     {warning}");
        }
        Ok(self.chat.get_or_init(|| chat))
    }

    fn encode(&self, sample: &Sample) -> Result<Encoded, SkipReason> {
        match sample {
            Sample::Conversation(_) => self.chat.get().unwrap_or(&self.text).encode_sample(sample),
            _ => self.text.encode_sample(sample),
        }
    }
}
