//! [`DataReport`]: what was read, in sentences.

use crate::report::DataFacts;
use megatrain_data::chat::Notes;
use megatrain_data::{Encoded, Sample, SkipReason, Skips, SourceReport};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::Write;
use std::path::PathBuf;

/// What was read of a data set, what was left out, and why.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DataReport {
    /// Each source.
    pub sources: Vec<SourceReport>,
    /// Texts, kept or not.
    pub texts: u64,
    /// Conversations, kept or not.
    pub conversations: u64,
    /// Prompts with completions, kept or not.
    pub completions: u64,
    /// Records of token ids, kept or not.
    pub pretokenized: u64,
    /// Records left out, by readers and by encoding.
    pub skips: Skips,
    /// Sums of what is to be known about the kept ones, by name.
    pub notes: Vec<(Cow<'static, str>, u64)>,
}

impl DataReport {
    /// Counts a record.
    pub(super) fn count(&mut self, sample: &Sample, outcome: &Result<Encoded, SkipReason>) {
        *match sample {
            Sample::Text { .. } => &mut self.texts,
            Sample::Tokens { .. } => &mut self.pretokenized,
            Sample::Conversation(_) => &mut self.conversations,
            Sample::PromptCompletion { .. } => &mut self.completions,
        } += 1;
        let Ok(encoded) = outcome else { return };
        if self.notes.is_empty() {
            self.notes = Notes::default().named().map(|(name, count)| (name.into(), count)).into();
        }
        for (sum, (_, count)) in self.notes.iter_mut().zip(encoded.notes.named()) {
            sum.1 += count;
        }
    }

    /// Adds what was read after this, of the same sources.
    pub fn merge(&mut self, later: DataReport) {
        let DataReport { sources, texts, conversations, completions, pretokenized, skips, notes } = later;
        self.sources = sources;
        self.texts += texts;
        self.conversations += conversations;
        self.completions += completions;
        self.pretokenized += pretokenized;
        self.skips.extend(skips);
        match self.notes.is_empty() {
            true => self.notes = notes,
            false => self.notes.iter_mut().zip(notes).for_each(|(sum, (_, count))| sum.1 += count),
        }
    }

    /// Records that were cut to the length of a sequence.
    pub fn truncated(&self) -> u64 {
        self.notes.iter().filter(|(name, _)| name.starts_with("cut_")).map(|(_, count)| count).sum()
    }

    /// What was read, and what of it a person may want to change; several lines.
    pub fn describe(&self, files: &[PathBuf], facts: &DataFacts) -> String {
        let DataFacts { documents, tokens, targets, .. } = facts;
        let mut formats: Vec<_> = self.sources.iter().filter_map(|source| source.format.as_deref()).collect();
        formats.dedup();
        let mut text = format!(
            "{} file(s) ({}), {documents} document(s), {tokens} tokens, {targets} of them targets ({:.0}%)",
            files.len(),
            formats.join(", "),
            100.0 * *targets as f64 / (*tokens).max(1) as f64
        );
        for (name, count) in self.notes.iter().filter(|(_, count)| *count > 0) {
            if let Some(meaning) = meaning(name) {
                let _ = write!(text, "\n         {count} {meaning}");
            }
        }
        if !self.skips.is_empty() {
            let _ = write!(text, "\n         {}", self.left_out(files));
        }
        text
    }

    /// What was left out, by reason.
    pub fn left_out(&self, files: &[PathBuf]) -> String {
        let mut text = self.skips.summary(files).to_string().replace('\n', "\n         ");
        if self.skips.totals.contains_key("too long") {
            text += "\n           (a larger --seq-len keeps what is too long; --truncation right or left cuts it)";
        }
        text
    }
}

/// What a note's number counts, where it asks for a person's attention.
fn meaning(note: &str) -> Option<&'static str> {
    Some(match note {
        "special_in_content" => "special token(s) spelled inside messages; they became those tokens",
        "altered_turns" => "turn(s) that the template renders otherwise once others follow; learnt as rendered",
        "calls_as_text" => {
            "message(s) whose tool calls stand in their content, since the template has no place for calls"
        }
        "tools_left_out" => "conversation(s) whose tools the template does not mention",
        "thoughts_left_out" => "message(s) whose thoughts the template does not mention",
        "cut_left" => "conversation(s) or prompt(s) cut from the left to --seq-len",
        "cut_right" => "conversation(s) cut from the right to --seq-len, after an answer",
        "cut_inside" => "conversation(s) or prompt(s) cut within an answer to --seq-len; no end is learnt there",
        _ => return None,
    })
}
