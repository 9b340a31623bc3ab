//! What became of a sample: its tokens, or why it was left out; and the sums of both over a data set.

use crate::conversation::Sample;
use crate::document::IGNORE;
use crate::error::Error;
use crate::skip::{Skip, Skips};
use std::fmt;

/// A sample as tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Encoded {
    /// Token ids, at least two.
    pub tokens: Vec<i32>,
    /// Beside each token itself, *unshifted*, the id to learn there or [`IGNORE`].
    pub labels: Vec<i32>,
    /// What a person may want to know.
    pub notes: Notes,
}

impl Encoded {
    /// How many tokens are learnt. The first never is: nothing comes before it.
    pub fn targets(&self) -> usize {
        self.labels.iter().skip(1).filter(|&&label| label != IGNORE).count()
    }
}

/// Peculiarities of a sample, or their sums over many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Notes {
    /// Begin tokens put in front, since the tokenizer asks for one and the template wrote none.
    pub begin_added: u64,
    /// Spellings of special tokens inside messages. They become those tokens, as in transformers.
    pub special_in_content: u64,
    /// Learnt tokens that also hold text of what is not learnt.
    pub straddling: u64,
    /// Turns that the template renders differently once others follow, found by the fallback rules.
    pub altered_turns: u64,
    /// Messages whose calls of tools stand in their content as JSON, since the template has no place for calls.
    pub calls_as_text: u64,
    /// Samples whose tools the template does not mention.
    pub tools_left_out: u64,
    /// Messages whose thoughts (`reasoning_content`) the template does not mention.
    pub thoughts_left_out: u64,
    /// Samples that lost turns at the beginning.
    pub cut_left: u64,
    /// Samples that lost turns at the end.
    pub cut_right: u64,
    /// Samples that end within a turn.
    pub cut_inside: u64,
}

impl Notes {
    /// The notes by name, in a fixed order.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("begin_added", self.begin_added),
            ("special_in_content", self.special_in_content),
            ("straddling", self.straddling),
            ("altered_turns", self.altered_turns),
            ("calls_as_text", self.calls_as_text),
            ("tools_left_out", self.tools_left_out),
            ("thoughts_left_out", self.thoughts_left_out),
            ("cut_left", self.cut_left),
            ("cut_right", self.cut_right),
            ("cut_inside", self.cut_inside),
        ]
    }

    fn add(&mut self, other: &Notes) {
        self.begin_added += other.begin_added;
        self.special_in_content += other.special_in_content;
        self.straddling += other.straddling;
        self.altered_turns += other.altered_turns;
        self.calls_as_text += other.calls_as_text;
        self.tools_left_out += other.tools_left_out;
        self.thoughts_left_out += other.thoughts_left_out;
        self.cut_left += other.cut_left;
        self.cut_right += other.cut_right;
        self.cut_inside += other.cut_inside;
    }
}

const NO_TEMPLATE: &str = "no chat template";

/// Why a sample was left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SkipReason {
    /// There is no template; the text says what to do.
    NoTemplate(String),
    /// The template refused the conversation, or failed at it.
    Template(String),
    /// No rule tells which part of the rendering a message is.
    Unlocatable(String),
    /// Longer than allowed, and not to be cut or not to be cut any shorter.
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// The most allowed.
        max: usize,
    },
    /// Nothing in it would be learnt.
    NoTargets(String),
    /// The text cannot be encoded.
    Text(String),
}

impl SkipReason {
    /// A few words, equal for all samples of a kind.
    pub fn kind(&self) -> &'static str {
        match self {
            SkipReason::NoTemplate(_) => NO_TEMPLATE,
            SkipReason::Template(_) => "refused by the chat template",
            SkipReason::Unlocatable(_) => "assistant's text not found in the rendering",
            SkipReason::TooLong { .. } => "too long",
            SkipReason::NoTargets(_) => "nothing to learn",
            SkipReason::Text(_) => "not encodable",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SkipReason::TooLong { tokens, max } => write!(f, "too long: {tokens} tokens, at most {max} are allowed"),
            SkipReason::NoTemplate(text)
            | SkipReason::Template(text)
            | SkipReason::Unlocatable(text)
            | SkipReason::NoTargets(text)
            | SkipReason::Text(text) => write!(f, "{}: {text}", self.kind()),
        }
    }
}

/// Sums over samples. Those of parts can be added to those of the whole in any grouping.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChatReport {
    /// Samples seen.
    pub samples: u64,
    /// Samples encoded.
    pub encoded: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Their targets.
    pub targets: u64,
    /// Sums of their notes.
    pub notes: Notes,
    /// Samples left out.
    pub skips: Skips,
}

impl ChatReport {
    /// Counts a sample.
    pub fn record(&mut self, sample: &Sample, outcome: &Result<Encoded, SkipReason>) {
        self.samples += 1;
        match outcome {
            Ok(encoded) => {
                self.encoded += 1;
                self.tokens += encoded.tokens.len() as u64;
                self.targets += encoded.targets() as u64;
                self.notes.add(&encoded.notes);
            }
            Err(reason) => {
                let (file, line) = sample.place();
                self.skips.add(Skip { file, line, kind: reason.kind().into(), reason: reason.to_string() });
            }
        }
    }

    /// Adds the sums of samples that come after these.
    pub fn extend(&mut self, later: ChatReport) {
        self.samples += later.samples;
        self.encoded += later.encoded;
        self.tokens += later.tokens;
        self.targets += later.targets;
        self.notes.add(&later.notes);
        self.skips.extend(later.skips);
    }

    /// An error where conversations met no template, or where nothing at all is learnt, with the commonest reason.
    pub fn check(&self) -> Result<(), Error> {
        let first = |kind: &str| self.skips.listed.iter().find(|skip| skip.kind == kind);
        if let Some(skip) = first(NO_TEMPLATE) {
            return Err(Error::Invalid(skip.reason.clone()));
        }
        if self.targets > 0 {
            return Ok(());
        }
        let commonest = self.skips.totals.iter().max_by_key(|(_, count)| **count);
        let reason = match commonest.and_then(|(kind, count)| Some((count, first(kind)?))) {
            None => "there are no samples".to_owned(),
            Some((count, skip)) => {
                let (line, reason) = (skip.line, &skip.reason);
                format!("{count} of {} samples left out; the first, line {line}: {reason}", self.samples)
            }
        };
        Err(Error::Invalid(format!("nothing would be learnt: {reason}")))
    }
}
