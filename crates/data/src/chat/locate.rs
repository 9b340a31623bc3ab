//! Which part of a rendered conversation is which message's: the place to learn.
//!
//! For the assistant's message `k` of `n`, where the template has no marks:
//!
//! 1. *Begin*: behind `render(messages[..k], add_generation_prompt)`, if the whole rendering begins with that. It is what
//!    the model is given when it has to answer.
//! 2. Else (the prompt holds what a finished turn does not, as `<think>`): where the whole rendering first differs from one
//!    in which only this content is another; or before that, where prompt and whole part, rounded down to where tokens
//!    begin in both, if they share more than `render(messages[..k])`.
//! 3. *End*: at the end of `render(messages[..=k])`, if the whole rendering begins with that: behind the end of the turn,
//!    and what white space the template puts there.
//! 4. Else (the template alters turns once others follow, or closes a conversation with a token of its own): behind this
//!    content in the whole rendering, as far as what follows there is what followed it in `render(messages[..=k])`,
//!    rounded down to where tokens begin in both, so that `<|` of `<|user|>` is not taken for that of `<|endoftext|>`.
//!
//! If rule 4 finds no common end, the message cannot be located, and the reason is said. Other roles' messages begin by
//! rule 2 and end as the assistant's: the header stays out, the end of the turn is in.

use super::template::{Rendered, Template, Variables};
use crate::conversation::{Message, Role};
use crate::tokenizer::{Piece, TextTokenizer};
use minijinja::Value;
use std::cell::Cell;
use std::ops::Range;

/// A message as templates see it: keys with nothing are left out, thoughts have the names that templates know.
pub(super) fn message_value(message: &Message, content: &str) -> Value {
    let mut pairs: Vec<(&str, Value)> =
        vec![("role", Value::from(message.role.name())), ("content", Value::from(content))];
    let mut add = |name, value: Option<Value>| pairs.extend(value.map(|value| (name, value)));
    add("name", message.name.as_deref().map(Value::from));
    add("tool_call_id", message.tool_call_id.as_deref().map(Value::from));
    add("reasoning_content", message.reasoning.as_deref().map(Value::from));
    add("thinking", message.reasoning.as_deref().map(Value::from));
    let calls = message.tool_calls.as_ref().filter(|calls| !calls.is_null());
    add("tool_calls", calls.map(super::template::from_json));
    Value::from_pairs(pairs)
}

/// A rendered conversation whose messages are to be found.
pub(super) struct Locator<'a> {
    pub template: &'a Template,
    pub tokenizer: &'a dyn TextTokenizer,
    pub variables: &'a Variables,
    pub messages: &'a [Message],
    /// `messages` as the template sees them.
    pub values: &'a [Value],
    /// The whole conversation.
    pub full: &'a Rendered,
    /// Its tokens.
    pub pieces: &'a [Piece],
    /// How many turns were found by rule 2 or 4 alone.
    pub altered_turns: Cell<u64>,
}

impl Locator<'_> {
    /// The bytes of `full` that belong to the wanted messages, in order.
    pub fn wanted(&self, wanted: &[bool]) -> Result<Vec<Range<usize>>, String> {
        let exactly_the_assistants =
            self.messages.iter().zip(wanted).all(|(message, &wanted)| wanted == (message.role == Role::Assistant));
        if self.template.has_marks && exactly_the_assistants {
            return Ok(self.full.marks.clone());
        }
        let mut spans = Vec::new();
        for k in (0..self.messages.len()).filter(|&k| wanted[k]) {
            spans.extend(self.message(k)?);
        }
        Ok(spans)
    }

    /// The bytes of `full` that are message `k`'s, its end of turn among them.
    pub fn message(&self, k: usize) -> Result<Vec<Range<usize>>, String> {
        if self.template.has_marks && self.messages[k].role == Role::Assistant {
            return self.marks(k);
        }
        let problem = |problem: String| format!("message {} ({}): {problem}", k + 1, self.messages[k].role);
        let start = self.start(k).map_err(problem)?;
        let end = self.end(k, start).map_err(problem)?;
        Ok(vec![start..end])
    }

    fn render(&self, messages: &[Value], prompt: bool) -> Result<Rendered, String> {
        self.template.render(messages, prompt, self.variables).map_err(|e| e.to_string())
    }

    /// The generation blocks of message `k`: those that come with it.
    fn marks(&self, k: usize) -> Result<Vec<Range<usize>>, String> {
        let count = |end: usize| match end {
            0 => Ok(0),
            end if end == self.messages.len() => Ok(self.full.marks.len()),
            end => Ok::<_, String>(self.render(&self.values[..end], false)?.marks.len()),
        };
        let marks = self.full.marks.get(count(k)?..count(k + 1)?);
        let problem = "the template marks an earlier turn otherwise once later ones follow";
        marks.map(<[_]>::to_vec).ok_or_else(|| format!("message {}: {problem}", k + 1))
    }

    fn start(&self, k: usize) -> Result<usize, String> {
        let full = &self.full.text;
        let mut shared = None;
        if self.messages[k].role == Role::Assistant {
            // Not every template can render what is no whole conversation; the other rule may still do.
            let prompt = self.render(&self.values[..k], true);
            if let Some(prompt) = prompt.as_ref().ok().filter(|prompt| full.starts_with(&prompt.text)) {
                return Ok(prompt.text.len());
            }
            self.altered_turns.set(self.altered_turns.get() + 1);
            shared = prompt.and_then(|prompt| self.shared_prompt(k, &prompt.text)).unwrap_or_default();
        }
        let other = self.with_other_content(k, self.messages.len())?;
        let content = Some(common_prefix(full, &other)).filter(|_| *full != other);
        let start = shared.into_iter().chain(content).min();
        start.ok_or_else(|| "the template leaves its content out".to_owned())
    }

    /// Where prompt and whole rendering part, if they share more than the turns before.
    fn shared_prompt(&self, k: usize, prompt: &str) -> Result<Option<usize>, String> {
        let full = &self.full.text;
        let turns = self.render(&self.values[..k], false)?.text;
        if !full.starts_with(&turns) || !prompt.starts_with(&turns) {
            return Ok(None);
        }
        let shared = self.common_tokens(&full[turns.len()..], &prompt[turns.len()..], turns.len())?;
        Ok((shared > 0).then_some(turns.len() + shared))
    }

    /// Bytes that both begin with, rounded down to where tokens begin in both. `a` is the end of the whole rendering from
    /// byte `at`.
    fn common_tokens(&self, a: &str, b: &str, at: usize) -> Result<usize, String> {
        let pieces = self.tokenizer.pieces(b).map_err(|e| e.to_string())?;
        let begins = |pieces: &[Piece], place: usize, end: usize| {
            place == end || pieces.binary_search_by_key(&place, |piece| piece.start).is_ok()
        };
        let mut common = common_prefix(a, b);
        while common > 0 && !(begins(self.pieces, at + common, at + a.len()) && begins(&pieces, common, b.len())) {
            common -= 1;
        }
        Ok(common)
    }

    fn end(&self, k: usize, start: usize) -> Result<usize, String> {
        let full = &self.full.text;
        if k + 1 == self.messages.len() {
            return Ok(full.len());
        }
        let upto = self.render(&self.values[..=k], false)?.text;
        if upto.len() >= start && full.starts_with(&upto) {
            return Ok(upto.len());
        }
        self.altered_turns.set(self.altered_turns.get() + 1);
        let content_end = common_end(full, &self.with_other_content(k, self.messages.len())?).max(start);
        let tail_start = common_end(&upto, &self.with_other_content(k, k + 1)?);
        let common = self.common_tokens(&full[content_end..], &upto[tail_start..], content_end)?;
        if common == 0 && tail_start < upto.len() {
            let problem =
                "the template renders it differently once later turns follow, and no end of turn is common to both";
            return Err(problem.to_owned());
        }
        Ok(content_end + common)
    }

    /// The first `count` messages, with content of message `k` that shares neither its first nor its last letter.
    fn with_other_content(&self, k: usize, count: usize) -> Result<String, String> {
        let message = &self.messages[k];
        let content = message.content.trim();
        let used = [content.chars().next(), content.chars().last()];
        let other = ["x", "y", "z"].into_iter().find(|other| !used.contains(&other.chars().next()));
        let mut values = self.values[..count].to_vec();
        values[k] = message_value(message, other.expect("two letters leave one of three"));
        Ok(self.render(&values, false)?.text)
    }
}

/// Bytes that both begin with, whole characters only.
fn common_prefix(a: &str, b: &str) -> usize {
    let mut common = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    while !a.is_char_boundary(common) {
        common -= 1;
    }
    common
}

/// Where in `a` the part begins that both end with, whole characters only, and not before they first differ.
fn common_end(a: &str, b: &str) -> usize {
    let most = a.len().min(b.len()) - common_prefix(a, b);
    let common = a.bytes().rev().zip(b.bytes().rev()).take(most).take_while(|(a, b)| a == b).count();
    let mut at = a.len() - common;
    while !a.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_parts_are_whole_characters() {
        assert_eq!(common_prefix("abé", "abè"), 2, "é and è share a byte");
        assert_eq!(common_end("xé-", "x-"), 3);
        assert_eq!(common_end("aXb", "aYYb"), 2);
        assert_eq!(common_end("aa", "aaa"), 2, "the common prefix is not counted twice");
        assert_eq!(common_end("ĩ", "ũ"), 2, "last bytes equal, characters not");
    }
}
