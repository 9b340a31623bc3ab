//! Records that hold a list of messages: ShareGPT's and OpenAI's, which differ in keys and names of roles.

use super::fields::{self, wrong_kind};
use super::{Fault, MessageColumns, Tags, fault, tools, turns};
use crate::conversation::{Conversation, Message, Role, Sample};
use crate::read::json::describe;
use serde_json::{Map, Value};

pub(super) fn sample(
    mut record: Map<String, Value>,
    columns: &MessageColumns,
    file: u32,
    line: u64,
) -> Result<Sample, Fault> {
    let key = &columns.messages;
    let list = match record.get_mut(key).map(Value::take) {
        None => return fault("field missing", format!("\"{key}\" is missing")),
        Some(Value::Null) => return fault("field null", format!("\"{key}\" is null")),
        Some(Value::Array(list)) if list.is_empty() => return fault("field empty", format!("\"{key}\" is empty")),
        Some(Value::Array(list)) => list,
        Some(other) => return wrong_kind(key, "a list of messages", &other),
    };
    let mut messages = parse(list, &columns.tags, 0)?;
    // Before the system message of another key is put first, so that numbers are those of the list.
    turns::check(&messages)?;
    let system = fields::optional_text(&mut record, columns.system.as_deref())?;
    if let Some(system) = system.filter(|_| messages[0].role != Role::System) {
        messages.insert(0, Message::new(Role::System, system));
    }
    let tools = columns.tools.as_ref().and_then(|key| record.get_mut(key)).map(Value::take);
    Ok(Sample::Conversation(Conversation { messages, tools: tools::definitions(tools)?, file, line }))
}

/// The messages of a list; `before` messages come before it, for their numbers in what is said about them.
pub(super) fn parse(list: Vec<Value>, tags: &Tags, before: usize) -> Result<Vec<Message>, Fault> {
    let one = |(i, value)| {
        message(value, tags).map_err(|Fault { kind, reason }| {
            let reason = format!("message {}: {reason}", before + i + 1);
            Fault { kind, reason }
        })
    };
    list.into_iter().enumerate().map(one).collect()
}

fn message(value: Value, tags: &Tags) -> Result<Message, Fault> {
    let Value::Object(mut object) = value else {
        return fault("wrong kind of field", format!("it must be an object, not {}", describe(&value)));
    };
    let name = fields::text(&mut object, &tags.role)?;
    let is = |names: &[String]| names.contains(&name);
    let calls_in_content = is(&tags.function);
    let role = if is(&tags.user) {
        Role::User
    } else if is(&tags.assistant) || calls_in_content {
        Role::Assistant
    } else if is(&tags.observation) {
        Role::Tool
    } else if is(&tags.system) {
        Role::System
    } else {
        let known = [&tags.system, &tags.user, &tags.assistant, &tags.function, &tags.observation];
        let known: Vec<&str> = known.into_iter().flatten().map(String::as_str).collect();
        return fault("unknown role", format!("its role is \"{name}\"; known are {}", known.join(", ")));
    };
    let mut tool_calls = tools::calls(object.get_mut("tool_calls").map(Value::take))?;
    if let Some(call) = object.get_mut("function_call").map(Value::take).filter(|call| !call.is_null()) {
        tool_calls = tools::calls(Some(Value::Array(vec![call])))?;
    }
    let mut content = content(object.get_mut(&tags.content).map(Value::take), &tags.content)?;
    if calls_in_content {
        tool_calls = Some(tools::written_calls(&content.take().unwrap_or_default())?);
    }
    if tool_calls.is_some() && role != Role::Assistant {
        return fault("bad tool call", format!("it is the {role}'s, but only an assistant calls tools"));
    }
    let content = match content {
        Some(content) => content,
        None if tool_calls.is_some() => String::new(),
        None => return fault("field null", format!("\"{}\" is null or missing", tags.content)),
    };
    if content.is_empty() && tool_calls.is_none() && role == Role::Assistant {
        return fault("field empty", format!("\"{}\" is empty: nothing is answered", tags.content));
    }
    let mut reasoning = None;
    for key in ["reasoning_content", "reasoning", "thinking"] {
        reasoning = reasoning.or(fields::optional_text(&mut object, Some(key))?);
    }
    let train = train(&object)?;
    let name = fields::optional_text(&mut object, Some("name"))?;
    let tool_call_id = fields::optional_text(&mut object, Some("tool_call_id"))?;
    Ok(Message { role, content, tool_calls, tool_call_id, name, reasoning, train })
}

/// A string, or a list of parts that are all text. None: null or absent.
fn content(value: Option<Value>, key: &str) -> Result<Option<String>, Fault> {
    let parts = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return wrong_kind(key, "a string or a list of parts", &other),
    };
    let mut text = String::new();
    for part in parts {
        match (part.get("type").and_then(Value::as_str), part.get("text").or(Some(&part)).and_then(Value::as_str)) {
            (Some("text") | None, Some(part)) => text.push_str(part),
            (Some(other), _) if other != "text" => {
                return fault("not text", format!("\"{key}\" has a part of type \"{other}\"; only text is trained"));
            }
            _ => return fault("wrong kind of field", format!("\"{key}\" has a part without a \"text\"")),
        }
    }
    Ok(Some(text))
}

/// What the message says of its being learnt: `train` (Axolotl), `loss` (ms-swift) or `weight` (OpenAI), which must not
/// disagree.
fn train(object: &Map<String, Value>) -> Result<Option<bool>, Fault> {
    let said = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(train)) => Ok(Some(*train)),
        Some(other) => wrong_kind(key, "true or false", other),
    };
    let train = match (said("train")?, said("loss")?) {
        (Some(train), Some(loss)) if train != loss => {
            return fault("wrong kind of field", "\"train\" and \"loss\" disagree");
        }
        (train, loss) => train.or(loss),
    };
    let weight = match object.get("weight") {
        None | Some(Value::Null) => None,
        Some(weight) => match weight.as_f64() {
            Some(0.0) => Some(false),
            Some(1.0) => Some(true),
            _ => return fault("wrong kind of field", format!("\"weight\" is {weight}; it can be 0 or 1")),
        },
    };
    if object.get("train_detail").is_some_and(|detail| !detail.is_null()) {
        return fault("unsupported field", "\"train_detail\" is not supported; split the message or use \"train\"");
    }
    match (train, weight) {
        (Some(train), Some(weight)) if train != weight => {
            fault("wrong kind of field", "\"train\" and \"weight\" disagree")
        }
        _ => Ok(train.or(weight)),
    }
}
