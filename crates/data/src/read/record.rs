//! JSON records: one object each, a text or token ids with labels.

use crate::error::{self, Error};
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::Path;

/// A record and the line it begins on, counted from 1.
#[derive(Debug)]
pub(super) struct Record {
    pub line: u64,
    pub content: Content,
}

/// What a record holds.
#[derive(Debug)]
pub(super) enum Content {
    Text(String),
    /// Equally many of both, at least one.
    Tokens {
        tokens: Vec<i32>,
        labels: Vec<i32>,
    },
}

impl Content {
    fn kind(&self) -> &'static str {
        match self {
            Content::Text(_) => "\"text\"",
            Content::Tokens { .. } => "\"input_ids\"",
        }
    }
}

/// The records of a `.jsonl` file; blank lines are passed over but counted.
pub(super) fn lines(path: &Path, content: &str) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    for (i, text) in content.lines().enumerate() {
        if !text.trim().is_empty() {
            records.push(parse(path, i as u64 + 1, text)?);
        }
    }
    Ok(records)
}

/// The records of a `.json` file, which must be one array.
pub(super) fn array(path: &Path, content: &str) -> Result<Vec<Record>, Error> {
    if !content.trim_start().starts_with('[') {
        let problem = "this is not a JSON array of records; if it has one object a line, name it .jsonl";
        return Err(error::file(path, problem));
    }
    let elements: Vec<&RawValue> = serde_json::from_str(content)
        .map_err(|e| error::line(path, e.line() as u64, format!("not valid JSON: {}", reason(&e))))?;
    if elements.is_empty() {
        return Err(error::file(path, "the array has no records; remove the file or leave it out"));
    }
    let (mut records, mut line, mut done) = (Vec::with_capacity(elements.len()), 1, 0);
    for element in elements {
        // Elements borrow from `content`, so the distance of their addresses is their place in it.
        let offset = element.get().as_ptr().addr() - content.as_ptr().addr();
        line += content.as_bytes()[done..offset].iter().filter(|&&b| b == b'\n').count() as u64;
        done = offset;
        records.push(parse(path, line, element.get())?);
    }
    Ok(records)
}

/// Refuses a file that mixes texts and token ids: one of them is a mistake.
pub(super) fn one_kind(path: &Path, records: &[Record]) -> Result<(), Error> {
    let Some(first) = records.first() else { return Ok(()) };
    let kind = first.content.kind();
    match records.iter().find(|record| record.content.kind() != kind) {
        None => Ok(()),
        Some(other) => {
            let problem = format!(
                "this record has {}, but line {} has {kind}; put the two kinds in separate files",
                other.content.kind(),
                first.line
            );
            Err(error::line(path, other.line, problem))
        }
    }
}

fn parse(path: &Path, line: u64, json: &str) -> Result<Record, Error> {
    let fail = |problem: String| Err(error::line(path, line, problem));
    let value: Value = match serde_json::from_str(json) {
        Ok(value) => value,
        Err(e) => {
            let hint = if e.is_eof() { "; a record must be whole on its line" } else { "" };
            return fail(format!("not valid JSON: {}{hint}", reason(&e)));
        }
    };
    let Value::Object(object) = &value else {
        return fail(format!("a record must be an object with \"text\" or \"input_ids\", not {}", describe(&value)));
    };
    let content = match (object.get("text"), object.get("input_ids")) {
        (Some(Value::String(_)), Some(_)) => {
            return fail("the record has both \"text\" and \"input_ids\"; keep one".to_owned());
        }
        (Some(Value::String(text)), None) => Content::Text(text.clone()),
        (Some(other), None) => return fail(format!("\"text\" must be a string, not {}", describe(other))),
        (_, Some(ids)) => {
            let tokens = match ids_of("input_ids", ids) {
                Ok(tokens) => tokens,
                Err(problem) => return fail(problem),
            };
            if tokens.is_empty() {
                return fail("\"input_ids\" is empty; remove the record".to_owned());
            }
            let labels = match object.get("labels").map(|labels| ids_of("labels", labels)) {
                None => tokens.clone(),
                Some(Ok(labels)) => labels,
                Some(Err(problem)) => return fail(problem),
            };
            if labels.len() != tokens.len() {
                return fail(format!(
                    "\"labels\" has {} places, \"input_ids\" {}; each token needs its own label (unshifted), -100 \
                     where nothing is trained",
                    labels.len(),
                    tokens.len()
                ));
            }
            let masked = object.get("attention_mask").and_then(Value::as_array);
            if masked.is_some_and(|mask| mask.iter().any(|m| m.as_i64() == Some(0))) {
                return fail("\"attention_mask\" has zeros; remove the padding from the record".to_owned());
            }
            Content::Tokens { tokens, labels }
        }
        (None, None) => {
            let keys: Vec<_> = object.keys().take(6).map(String::as_str).collect();
            return fail(format!(
                "the record has neither \"text\" nor \"input_ids\", but: {}; render other forms to \"text\" first",
                if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") }
            ));
        }
    };
    Ok(Record { line, content })
}

fn ids_of(key: &str, value: &Value) -> Result<Vec<i32>, String> {
    let list = value.as_array().ok_or_else(|| format!("\"{key}\" must be a list of ids, not {}", describe(value)))?;
    let ids = list.iter().enumerate().map(|(i, id)| {
        let number = id.as_i64().and_then(|id| i32::try_from(id).ok());
        number.ok_or_else(|| match id.is_number() {
            true => format!("place {i} of \"{key}\" is {id}, not a token id"),
            false => format!("place {i} of \"{key}\" is {}, not a token id", describe(id)),
        })
    });
    ids.collect()
}

/// What a JSON value is, for messages.
fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The parser's reason without its position, which is relative to the record.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    format!("{} (column {})", &text[..end], error.column())
}
