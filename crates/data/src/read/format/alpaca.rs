//! Alpaca records: an instruction, what it is about, an answer; earlier pairs and a system message before them.

use super::fields::{self, wrong_kind};
use super::{AlpacaColumns, Fault, fault, tools};
use crate::conversation::{Conversation, Message, Role, Sample};
use serde_json::{Map, Value};

/// The person says `instruction`, a line break and `input`, as far as they are there and not empty.
pub(super) fn sample(
    mut record: Map<String, Value>,
    columns: &AlpacaColumns,
    file: u32,
    line: u64,
) -> Result<Sample, Fault> {
    let mut messages = Vec::new();
    if let Some(system) = fields::optional_text(&mut record, columns.system.as_deref())? {
        messages.push(Message::new(Role::System, system));
    }
    for (i, pair) in fields::optional_list(&mut record, columns.history.as_deref())?.into_iter().enumerate() {
        let (question, answer) = history_pair(pair, i)?;
        messages.extend([Message::new(Role::User, question), Message::new(Role::Assistant, answer)]);
    }
    let prompt = fields::optional_text(&mut record, columns.prompt.as_deref())?;
    let query = fields::optional_text(&mut record, columns.query.as_deref())?;
    let said = match (prompt, query) {
        (Some(prompt), Some(query)) => format!("{prompt}\n{query}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => {
            let keys = [&columns.prompt, &columns.query].into_iter().flatten().map(|key| format!("\"{key}\""));
            let keys = keys.collect::<Vec<_>>().join(" and ");
            return fault("field empty", format!("{keys} are absent or empty: nothing is asked"));
        }
    };
    messages.push(Message::new(Role::User, said));
    messages.push(Message::new(Role::Assistant, fields::text(&mut record, &columns.response)?));
    let tools = columns.tools.as_ref().and_then(|key| record.get_mut(key)).map(Value::take);
    Ok(Sample::Conversation(Conversation { messages, tools: tools::definitions(tools)?, file, line }))
}

fn history_pair(pair: Value, i: usize) -> Result<(String, String), Fault> {
    let Value::Array(texts) = pair else { return wrong_kind(&format!("history[{i}]"), "a list of two strings", &pair) };
    match <[Value; 2]>::try_from(texts) {
        Ok([_, Value::String(answer)]) if answer.is_empty() => {
            fault("field empty", format!("\"history[{i}]\" has an empty answer"))
        }
        Ok([Value::String(question), Value::String(answer)]) => Ok((question, answer)),
        _ => fault("wrong kind of field", format!("\"history[{i}]\" must be two strings: what was asked and answered")),
    }
}
