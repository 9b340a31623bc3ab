//! Fields of records: taken out, of the right kind, or a fault that names them.

use super::{Fault, fault};
use crate::read::json::describe;
use serde_json::{Map, Value};

/// A text that may be absent: absent, null and "" are the same.
pub(super) fn optional_text(record: &mut Map<String, Value>, key: Option<&str>) -> Result<Option<String>, Fault> {
    match key.and_then(|key| record.get_mut(key).map(|value| (key, value.take()))) {
        None | Some((_, Value::Null)) => Ok(None),
        Some((_, Value::String(text))) => Ok((!text.is_empty()).then_some(text)),
        Some((key, other)) => wrong_kind(key, "a string", &other),
    }
}

/// A text that must be there and must not be empty.
pub(super) fn text(record: &mut Map<String, Value>, key: &str) -> Result<String, Fault> {
    match record.get_mut(key).map(Value::take) {
        None => fault("field missing", format!("\"{key}\" is missing")),
        Some(Value::Null) => fault("field null", format!("\"{key}\" is null")),
        Some(Value::String(text)) if text.is_empty() => fault("field empty", format!("\"{key}\" is empty")),
        Some(Value::String(text)) => Ok(text),
        Some(other) => wrong_kind(key, "a string", &other),
    }
}

/// A list that may be absent; null is the same.
pub(super) fn optional_list(record: &mut Map<String, Value>, key: Option<&str>) -> Result<Vec<Value>, Fault> {
    match key.and_then(|key| record.get_mut(key).map(|value| (key, value.take()))) {
        None | Some((_, Value::Null)) => Ok(Vec::new()),
        Some((_, Value::Array(list))) => Ok(list),
        Some((key, other)) => wrong_kind(key, "a list", &other),
    }
}

pub(super) fn wrong_kind<T>(what: &str, wanted: &str, value: &Value) -> Result<T, Fault> {
    fault("wrong kind of field", format!("\"{what}\" must be {wanted}, not {}", describe(value)))
}
