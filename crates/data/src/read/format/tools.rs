//! Tools: their definitions and calls of them, in the one shape that chat templates take.

use super::fields::wrong_kind;
use super::{Fault, fault};
use crate::read::json::describe;
use serde_json::{Map, Value, json};

/// Definitions of tools: a list, or a string that holds one as JSON. Absent, null, "" and an empty list are None.
///
/// A bare `{"name", "description", "parameters"}` is wrapped as `{"type": "function", "function": ...}`, the shape that
/// `apply_chat_template` passes on.
pub(super) fn definitions(tools: Option<Value>) -> Result<Option<Value>, Fault> {
    let tools = match tools {
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(e) => return fault("bad tools", format!("\"tools\" is a string but not JSON: {e}")),
        },
        None => return Ok(None),
        Some(value) => value,
    };
    let list = match tools {
        Value::Null => return Ok(None),
        Value::Array(list) => list,
        other => return wrong_kind("tools", "a list of definitions", &other),
    };
    let wrapped = list.into_iter().enumerate().map(|(i, tool)| match &tool {
        Value::Object(object) if object.get("function").is_some_and(Value::is_object) => Ok(tool),
        Value::Object(object) if object.get("name").is_some_and(Value::is_string) => {
            Ok(json!({"type": "function", "function": tool}))
        }
        Value::Object(_) => fault("bad tools", format!("tools[{i}] has neither \"function\" nor \"name\"")),
        other => fault("bad tools", format!("tools[{i}] must be an object, not {}", describe(other))),
    });
    let wrapped = wrapped.collect::<Result<Vec<_>, _>>()?;
    Ok((!wrapped.is_empty()).then_some(Value::Array(wrapped)))
}

/// OpenAI's `tool_calls`, with arguments as objects. Absent, null and an empty list are None.
pub(super) fn calls(calls: Option<Value>) -> Result<Option<Value>, Fault> {
    let list = match calls {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list,
        Some(other) => return wrong_kind("tool_calls", "a list", &other),
    };
    let calls = list.into_iter().map(call).collect::<Result<Vec<_>, _>>()?;
    Ok((!calls.is_empty()).then_some(Value::Array(calls)))
}

/// The calls that a ShareGPT `function_call` message writes as JSON: one, or a list.
pub(super) fn written_calls(content: &str) -> Result<Value, Fault> {
    let list = match serde_json::from_str(content) {
        Ok(Value::Array(list)) if !list.is_empty() => list,
        Ok(one @ Value::Object(_)) => vec![one],
        Ok(other) => {
            return fault("bad tool call", format!("the call must be an object or a list, not {}", describe(&other)));
        }
        Err(e) => return fault("bad tool call", format!("the call is not JSON: {e}")),
    };
    Ok(Value::Array(list.into_iter().map(call).collect::<Result<Vec<_>, _>>()?))
}

/// One call: `{"name", "arguments"}`, bare or as the `function` of an object that may have an `id`.
fn call(call: Value) -> Result<Value, Fault> {
    let Value::Object(mut outer) = call else {
        return fault("bad tool call", format!("a call must be an object, not {}", describe(&call)));
    };
    if let Some(Value::Object(function)) = outer.get_mut("function") {
        let function = function_of(std::mem::take(function))?;
        outer.insert("function".to_owned(), function);
        return Ok(Value::Object(outer));
    }
    Ok(json!({"type": "function", "function": function_of(outer)?}))
}

fn function_of(mut function: Map<String, Value>) -> Result<Value, Fault> {
    let Some(name) = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()) else {
        return fault("bad tool call", "a call has no \"name\"");
    };
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(value) => value,
            Err(e) => return fault("bad tool call", format!("the arguments of \"{name}\" are not JSON: {e}")),
        },
        Some(value) => value.clone(),
    };
    if !arguments.is_object() {
        let kind = describe(&arguments);
        return fault("bad tool call", format!("the arguments of \"{name}\" must be an object, not {kind}"));
    }
    function.insert("arguments".to_owned(), arguments);
    Ok(Value::Object(function))
}
