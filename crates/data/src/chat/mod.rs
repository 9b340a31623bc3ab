//! From conversations to tokens and targets: chat templates, masks, lengths.
//!
//! [`ChatEncoder`] renders a [`Conversation`] with the model's chat template, encodes the text, and says which tokens are
//! learnt. The README beside this file has the rules. Nothing here reads data files.

// Lists of spans often have one.
#![allow(clippy::single_range_in_vec_init)]

mod date;
mod encoded;
mod locate;
mod mask;
mod options;
mod python;
mod scene;
mod source;
mod template;
#[cfg(test)]
mod tests;

pub use encoded::{ChatReport, Encoded, Notes, SkipReason};
pub use options::{ChatOptions, TemplateChoice, TooLong, TrainOn};
pub use source::{ChatFiles, NamedTemplate, built_in, built_in_names};

use crate::conversation::{Conversation, Message, Role, Sample};
use crate::document::IGNORE;
use crate::error::{self, Error};
use crate::tokenizer::{Piece, TextTokenizer};
use locate::message_value;
use mask::{Mask, SpecialSpellings};
use minijinja::Value;
use rayon::prelude::*;
use scene::Scene;
use std::borrow::Cow;
use std::sync::Arc;
use template::{RenderError, Template, Variables, from_json};

/// Turns samples into tokens with labels. Equal settings and samples give equal tokens, on any number of threads.
pub struct ChatEncoder {
    tokenizer: Arc<dyn TextTokenizer>,
    options: ChatOptions,
    /// For conversations without tools, and with.
    templates: Result<[Arc<Template>; 2], String>,
    variables: Variables,
    special: SpecialSpellings,
    warnings: Vec<String>,
}

/// A conversation as text and tokens.
struct Laid {
    values: Vec<Value>,
    full: template::Rendered,
    pieces: Vec<Piece>,
    /// The begin token, where it has to be put in front.
    begin: Option<i32>,
    learn: Vec<bool>,
    notes: Notes,
}

impl Laid {
    fn len(&self) -> usize {
        self.pieces.len() + usize::from(self.begin.is_some())
    }
}

impl ChatEncoder {
    /// Reads the templates and tries them on a small conversation. `tokenizer` and `files` are the model's, both read from
    /// its directory.
    ///
    /// Errors: a template that is asked for by name and does not exist; mistakes in a template, with line and column. That a
    /// model has no template at all is no error until a conversation meets it.
    pub fn new(
        tokenizer: Arc<dyn TextTokenizer>,
        files: &ChatFiles,
        mut options: ChatOptions,
    ) -> Result<ChatEncoder, Error> {
        let mut variables: Variables =
            files.special_tokens.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str()))).collect();
        for (name, value) in &options.variables {
            if ["messages", "tools", "documents", "add_generation_prompt"].contains(&name.as_str()) {
                return Err(Error::Invalid(format!("the template variable \"{name}\" is not for settings")));
            }
            variables.insert(name.clone(), from_json(value));
        }
        let now = *options.now.get_or_insert_with(|| date::now() / 86_400 * 86_400);
        let read = |origin: &str, text: &str| {
            let template = Template::new(text, now).map_err(|e| error::file(origin, format!("chat template: {e}")))?;
            Ok::<_, Error>((Arc::new(template), origin.to_owned()))
        };
        let own = |name: &str| files.template(name).map(|own| read(&own.path.display().to_string(), &own.text));
        let one = |template: (Arc<Template>, String)| [template.clone(), template];
        let templates = match &options.template {
            TemplateChoice::Text { origin, text } => Ok(one(read(origin, text)?)),
            TemplateChoice::Named(name) => match (own(name), built_in(name)) {
                (Some(own), _) => Ok(one(own?)),
                (None, Some(text)) => Ok(one(read(&format!("built-in template {name}"), text)?)),
                (None, None) => {
                    let problem = format!("there is no chat template \"{name}\"; {}", known(files));
                    return Err(Error::Invalid(problem));
                }
            },
            TemplateChoice::Model => match (own("default"), own("tool_use")) {
                (Some(default), tools) => {
                    let default = default?;
                    Ok([default.clone(), tools.unwrap_or(Ok(default))?])
                }
                (None, _) => Err(format!(
                    "the model has no chat template of its own (chat_template.jinja, or \"chat_template\" in \
                     tokenizer_config.json); name one. {}",
                    known(files)
                )),
            },
        };
        let special = SpecialSpellings::new(tokenizer.special_tokens());
        let kept = match &templates {
            Ok(both) => Ok(both.clone().map(|(template, _)| template)),
            Err(problem) => Err(problem.clone()),
        };
        let mut encoder = ChatEncoder { tokenizer, options, templates: kept, variables, special, warnings: Vec::new() };
        for (template, origin) in templates.iter().flatten().take(if same(&templates) { 1 } else { 2 }) {
            encoder.try_out(template, origin)?;
        }
        Ok(encoder)
    }

    /// The encoder of a model directory.
    #[cfg(feature = "tokenizer")]
    pub fn load(model_dir: impl AsRef<std::path::Path>, options: ChatOptions) -> Result<ChatEncoder, Error> {
        let tokenizer = crate::Tokenizer::load(&model_dir)?;
        ChatEncoder::new(Arc::new(tokenizer), &ChatFiles::read(model_dir)?, options)
    }

    /// The tokenizer that it encodes with.
    pub fn tokenizer(&self) -> &dyn TextTokenizer {
        &*self.tokenizer
    }

    /// What a person should know about the template before training.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Everything that tokens depend on besides samples and tokenizer, as a text: for the key of a cache.
    pub fn settings(&self) -> String {
        let mut options = self.options.clone();
        let templates: Vec<&str> = self.templates.iter().flatten().map(|template| template.source.as_str()).collect();
        let dated = templates.iter().any(|source| source.contains("strftime_now"));
        options.now = options.now.filter(|_| dated);
        format!("{templates:?} {options:?} {:?}", self.variables)
    }

    /// Encodes a sample. Texts get their begin and end tokens, as everywhere in this crate, and may be of any length, like
    /// pre-tokenized sequences: packing knows what to do with them.
    pub fn encode_sample(&self, sample: &Sample) -> Result<Encoded, SkipReason> {
        match sample {
            Sample::Conversation(conversation) => self.encode(conversation),
            Sample::PromptCompletion { prompt, completion, .. } => self.encode_completion(prompt, completion),
            Sample::Tokens { tokens, labels, .. } => {
                finish(Encoded { tokens: tokens.clone(), labels: labels.clone(), notes: Notes::default() })
            }
            Sample::Text { text, .. } => {
                let mut tokens = self.tokenizer.encode(text).map_err(|e| SkipReason::Text(e.to_string()))?;
                tokens.extend(self.tokenizer.eos_id().filter(|eos| tokens.last() != Some(eos)));
                finish(Encoded { labels: tokens.clone(), tokens, notes: Notes::default() })
            }
        }
    }

    /// [`ChatEncoder::encode_sample`] on many samples in parallel, in order, with the sums.
    pub fn encode_all(&self, samples: &[Sample]) -> (Vec<Result<Encoded, SkipReason>>, ChatReport) {
        let outcomes: Vec<_> = samples.par_iter().map(|sample| self.encode_sample(sample)).collect();
        let mut report = ChatReport::default();
        samples.iter().zip(&outcomes).for_each(|(sample, outcome)| report.record(sample, outcome));
        (outcomes, report)
    }

    /// The text that the template makes of a conversation, or of its beginning with `add_generation_prompt`.
    pub fn render(&self, conversation: &Conversation, add_generation_prompt: bool) -> Result<String, SkipReason> {
        let (template, variables) = self.template_of(conversation)?;
        let messages = self.fitted(template, &conversation.messages, &mut Notes::default());
        let values: Vec<Value> = messages.iter().map(|message| message_value(message, &message.content)).collect();
        let rendered = template.render(&values, add_generation_prompt, &variables);
        rendered.map(|rendered| rendered.text).map_err(|e| self.refused(e))
    }

    /// Why a template rendered nothing. Most of what is undefined there is a token that the tokenizer does not name.
    fn refused(&self, error: RenderError) -> SkipReason {
        let problem = error.problem;
        let missing: Vec<_> =
            ["bos_token", "eos_token"].into_iter().filter(|token| !self.variables.contains_key(*token)).collect();
        SkipReason::Template(match problem.contains("undefined") && !missing.is_empty() {
            true => format!("{problem} (tokenizer_config.json names no {})", missing.join(" and no ")),
            false => problem,
        })
    }

    /// Encodes a conversation.
    pub fn encode(&self, conversation: &Conversation) -> Result<Encoded, SkipReason> {
        let (template, variables) = self.template_of(conversation)?;
        let mut notes = Notes::default();
        if variables.contains_key("tools") && !template.uses_tools {
            notes.tools_left_out = 1;
        }
        let messages = self.fitted(template, &conversation.messages, &mut notes);
        let wanted = self.wanted(&messages);
        if !wanted.contains(&true) {
            let problem = "no message of the conversation is to be learnt; roles, \"train\" and \"weight\" decide";
            return Err(SkipReason::NoTargets(problem.to_owned()));
        }
        let scene = Scene { encoder: self, template, variables: &variables, notes };
        let laid = scene.lay_out(&messages, &wanted)?;
        let max = self.options.max_tokens.unwrap_or(usize::MAX);
        let laid = if laid.len() <= max {
            laid
        } else {
            match self.options.too_long {
                TooLong::Drop => return Err(SkipReason::TooLong { tokens: laid.len(), max }),
                TooLong::CutRight => scene.cut_right(&messages, laid, max)?,
                TooLong::CutLeft => scene.cut_left(&messages, &wanted, laid.len(), max)?,
            }
        };
        self.finish(laid)
    }

    /// Encodes two texts, joined as they stand, with an end token; the completion is learnt, and the end.
    pub fn encode_completion(&self, prompt: &str, completion: &str) -> Result<Encoded, SkipReason> {
        let text = format!("{prompt}{completion}");
        let mut pieces = self.pieces(&text)?;
        let mask = Mask::new(&pieces, &[prompt.len()..text.len()]);
        let mut learn = mask.learn;
        let mut notes = Notes { straddling: mask.straddling, ..Notes::default() };
        notes.special_in_content = self.special.count(&text);
        if let Some(id) = self.tokenizer.eos_id().filter(|&eos| pieces.last().is_none_or(|last| last.id != eos)) {
            pieces.push(Piece { id, start: text.len(), end: text.len() });
            learn.push(true);
        }
        let begin = self.begin(&pieces);
        let tokens = pieces.len() + usize::from(begin.is_some());
        let max = self.options.max_tokens.unwrap_or(usize::MAX);
        if tokens > max {
            // At least one token of the prompt stays, if there is one.
            let given = learn.iter().take_while(|learn| !**learn).count();
            let excess = tokens - max;
            match self.options.too_long {
                TooLong::CutLeft if excess < given.max(1) => {
                    pieces.drain(..excess);
                    learn.drain(..excess);
                    notes.cut_left = 1;
                }
                TooLong::CutRight => {
                    let keep = max.saturating_sub(usize::from(begin.is_some()));
                    pieces.truncate(keep);
                    learn.truncate(keep);
                    notes.cut_inside = 1;
                }
                TooLong::CutLeft | TooLong::Drop => return Err(SkipReason::TooLong { tokens, max }),
            }
        }
        if self.options.train_on == TrainOn::Everything {
            learn.fill(true);
        }
        self.finish(Laid { values: Vec::new(), full: Default::default(), pieces, begin, learn, notes })
    }

    /// The template for a conversation, and what it sees besides the messages.
    fn template_of(&self, conversation: &Conversation) -> Result<(&Template, Cow<'_, Variables>), SkipReason> {
        let [plain, with_tools] = self.templates.as_ref().map_err(|e| SkipReason::NoTemplate(e.clone()))?;
        let tools = conversation.tools.as_ref();
        let Some(tools) = tools.filter(|tools| tools.as_array().is_some_and(|list| !list.is_empty())) else {
            return Ok((plain, Cow::Borrowed(&self.variables)));
        };
        let mut variables = self.variables.clone();
        variables.insert("tools".to_owned(), from_json(tools));
        Ok((with_tools, Cow::Owned(variables)))
    }

    /// The messages, calls of tools written into their contents where the template has no place for calls: one JSON object
    /// `{"name", "arguments"}` a line.
    fn fitted<'a>(&self, template: &Template, messages: &'a [Message], notes: &mut Notes) -> Cow<'a, [Message]> {
        notes.special_in_content = messages
            .iter()
            .map(|m| self.special.count(&m.content) + m.reasoning.as_ref().map_or(0, |text| self.special.count(text)))
            .sum();
        if !template.mentions("reasoning_content") && !template.mentions("thinking") {
            notes.thoughts_left_out = messages.iter().filter(|message| message.reasoning.is_some()).count() as u64;
        }
        let calls = |message: &Message| message.tool_calls.as_ref().is_some_and(|calls| !calls.is_null());
        if template.mentions("tool_calls") || !messages.iter().any(calls) {
            return Cow::Borrowed(messages);
        }
        let mut messages = messages.to_vec();
        for message in messages.iter_mut().filter(|message| calls(message)) {
            let calls = message.tool_calls.take().unwrap_or_default();
            let lines = calls.as_array().into_iter().flatten().map(|call| {
                let function = from_json(call.get("function").unwrap_or(call));
                python::JsonStyle::default().dumps(&function).unwrap_or_default()
            });
            let content = std::mem::take(&mut message.content);
            let parts: Vec<String> =
                Some(content).filter(|content| !content.is_empty()).into_iter().chain(lines).collect();
            message.content = parts.join("\n");
            notes.calls_as_text += 1;
        }
        Cow::Owned(messages)
    }

    /// Which messages are learnt, by policy and by what they say themselves.
    fn wanted(&self, messages: &[Message]) -> Vec<bool> {
        let last = messages.iter().rposition(|message| message.role == Role::Assistant);
        let by_policy = |k: usize, message: &Message| match self.options.train_on {
            TrainOn::Assistant => message.role == Role::Assistant,
            TrainOn::LastAssistant => Some(k) == last,
            TrainOn::Everything => true,
        };
        messages.iter().enumerate().map(|(k, m)| m.train.unwrap_or_else(|| by_policy(k, m))).collect()
    }

    fn pieces(&self, text: &str) -> Result<Vec<Piece>, SkipReason> {
        self.tokenizer.pieces(text).map_err(|e| SkipReason::Text(e.to_string()))
    }

    /// The begin token, where the tokenizer wants one and the text has none.
    fn begin(&self, pieces: &[Piece]) -> Option<i32> {
        self.tokenizer.begin_id().filter(|&begin| pieces.first().is_none_or(|first| first.id != begin))
    }

    fn finish(&self, laid: Laid) -> Result<Encoded, SkipReason> {
        let Laid { pieces, begin, learn, mut notes, .. } = laid;
        notes.begin_added = u64::from(begin.is_some());
        let learn_begin = self.options.train_on == TrainOn::Everything;
        let (mut tokens, mut labels) = (Vec::with_capacity(pieces.len() + 1), Vec::with_capacity(pieces.len() + 1));
        tokens.extend(begin);
        labels.extend(begin.map(|begin| if learn_begin { begin } else { IGNORE }));
        for (piece, learn) in pieces.iter().zip(learn) {
            tokens.push(piece.id);
            labels.push(if learn { piece.id } else { IGNORE });
        }
        finish(Encoded { tokens, labels, notes })
    }

    /// Tries a template on one question and answer: mistakes of the template are errors, doubts become warnings.
    fn try_out(&mut self, template: &Template, origin: &str) -> Result<(), Error> {
        let messages = [Message::new(Role::User, "a"), Message::new(Role::Assistant, "b")];
        let wanted = [false, true];
        let values: Vec<Value> = messages.iter().map(|message| message_value(message, &message.content)).collect();
        match template.render(&values, true, &self.variables) {
            Err(e) if e.is_mistake => return Err(error::file(origin, format!("chat template: {e}"))),
            // A template may want more than this, such as a system message.
            Err(_) => return Ok(()),
            Ok(_) => {}
        }
        let scene = Scene { encoder: self, template, variables: &self.variables, notes: Notes::default() };
        let Ok(laid) = scene.lay_out(&messages, &wanted) else { return Ok(()) };
        let special = self.tokenizer.special_tokens();
        let spelled = |id: i32| special.iter().find(|(special, _)| *special == id).map(|(_, text)| text.as_str());
        let learnt = laid.pieces.iter().zip(&laid.learn).filter(|(_, learn)| **learn);
        let end = learnt.filter_map(|(piece, _)| Some((piece.id, spelled(piece.id)?))).next_back();
        let warning = match end {
            None => Some(format!(
                "{origin}: the assistant's turns end without a special token of this tokenizer, so a model may not learn \
                 where to stop"
            )),
            Some((id, text)) if !self.tokenizer.stop_ids().contains(&id) => Some(format!(
                "{origin}: the assistant's turns end with {text}, which is not among the tokens at which this model stops; \
                 set \"eos_token_id\" in generation_config.json"
            )),
            Some(_) => None,
        };
        self.warnings.extend(warning);
        Ok(())
    }
}

/// A sample's tokens if anything is learnt from them.
fn finish(encoded: Encoded) -> Result<Encoded, SkipReason> {
    match encoded.targets() {
        0 => Err(SkipReason::NoTargets(format!("none of its {} tokens is learnt", encoded.tokens.len()))),
        _ => Ok(encoded),
    }
}

/// The names that can be chosen, for messages.
fn known(files: &ChatFiles) -> String {
    let own: Vec<&str> = files.templates.iter().map(|template| template.name.as_str()).collect();
    let built_in: Vec<&str> = built_in_names().collect();
    let own = if own.is_empty() { String::new() } else { format!("the model's own: {}; ", own.join(", ")) };
    format!("{own}built in: {}", built_in.join(", "))
}

/// Whether both templates are one.
fn same(templates: &Result<[(Arc<Template>, String); 2], String>) -> bool {
    templates.as_ref().is_ok_and(|[(a, _), (b, _)]| Arc::ptr_eq(a, b))
}
