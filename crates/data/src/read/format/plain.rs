//! Records without a conversation: texts, token ids, prompts with completions.

use super::fields::{self, wrong_kind};
use super::messages;
use super::{Fault, MessageColumns, fault, tools, turns};
use crate::conversation::{Conversation, Sample};
use crate::document::IGNORE;
use crate::read::json::describe;
use serde_json::{Map, Value};

pub(super) fn text(mut record: Map<String, Value>, column: &str, file: u32, line: u64) -> Result<Sample, Fault> {
    Ok(Sample::Text { text: fields::text(&mut record, column)?, file, line })
}

pub(super) fn tokens(record: Map<String, Value>, file: u32, line: u64) -> Result<Sample, Fault> {
    let fail = |reason: &str| fault(BAD_IDS, reason);
    let Some(ids) = record.get("input_ids") else { return fail("\"input_ids\" is missing") };
    let tokens = ids_of("input_ids", ids)?;
    if tokens.is_empty() {
        return fail("\"input_ids\" is empty; remove the record");
    }
    let labels = match record.get("labels") {
        None | Some(Value::Null) => tokens.clone(),
        Some(labels) => ids_of("labels", labels)?,
    };
    if labels.len() != tokens.len() {
        return fail(&format!(
            "\"labels\" has {} places, \"input_ids\" {}; each token needs its own label (unshifted), -100 where nothing \
             is trained",
            labels.len(),
            tokens.len()
        ));
    }
    if has_zeros(record.get("attention_mask")) {
        return fail("\"attention_mask\" has zeros; remove the padding from the record");
    }
    let mask = MASKS.into_iter().find(|key| labels == tokens && has_zeros(record.get(*key)));
    if let Some(mask) = mask {
        return fail(&format!(
            "\"{mask}\" says what is learnt, which is read from \"labels\" alone; give those, -100 where nothing is trained"
        ));
    }
    if shifted(&tokens, &labels) {
        return fail(
            "\"labels\" are shifted: each is the next token. Give those of the tokens themselves, -100 where nothing is \
             trained; the shift is made here",
        );
    }
    Ok(Sample::Tokens { tokens, labels, file, line })
}

/// What TRL and others write beside ids instead of labels.
const MASKS: [&str; 3] = ["completion_mask", "assistant_masks", "loss_mask"];

/// Whether a list has a 0, which some programs write as 0.0 or false.
fn has_zeros(mask: Option<&Value>) -> bool {
    let zero = |value: &Value| value.as_f64() == Some(0.0) || value.as_bool() == Some(false);
    mask.and_then(Value::as_array).is_some_and(|mask| mask.iter().any(zero))
}

/// Whether labels are those of the next tokens, and by no chance those of their own.
fn shifted(tokens: &[i32], labels: &[i32]) -> bool {
    let (mut next, mut own) = (0, 0);
    for (i, label) in labels.iter().enumerate().filter(|(_, label)| **label != IGNORE) {
        match tokens.get(i + 1) {
            Some(following) if label == following => next += 1,
            // What follows the last token is not in the record.
            None => {}
            Some(_) => return false,
        }
        own += usize::from(*label == tokens[i]);
    }
    next > 1 && own < next
}

const BAD_IDS: &str = "bad token ids";

fn ids_of(key: &str, value: &Value) -> Result<Vec<i32>, Fault> {
    let Some(list) = value.as_array() else {
        return fault(BAD_IDS, format!("\"{key}\" must be a list of ids, not {}", describe(value)));
    };
    let ids = list.iter().enumerate().map(|(i, id)| match id.as_i64().and_then(|id| i32::try_from(id).ok()) {
        Some(id) => Ok(id),
        None if id.is_number() => fault(BAD_IDS, format!("place {i} of \"{key}\" is {id}, not a token id")),
        None => fault(BAD_IDS, format!("place {i} of \"{key}\" is {}, not a token id", describe(id))),
    });
    ids.collect()
}

/// Two texts are joined as they stand; of two lists of messages, the completion's are learnt.
pub(super) fn prompt_completion(mut record: Map<String, Value>, file: u32, line: u64) -> Result<Sample, Fault> {
    if let Some(Value::Array(completion)) = record.get_mut("completion") {
        let completion = std::mem::take(completion);
        let prompt = match record.get_mut("prompt").map(Value::take) {
            Some(Value::Array(prompt)) => prompt,
            Some(other) => return wrong_kind("prompt", "a list of messages, as \"completion\" is", &other),
            None => return fault("field missing", "\"prompt\" is missing"),
        };
        let columns = MessageColumns::openai();
        let mut all = messages::parse(prompt, &columns.tags, 0)?;
        all.iter_mut().for_each(|message| message.train = Some(false));
        let learnt = messages::parse(completion, &columns.tags, all.len())?;
        all.extend(learnt);
        turns::check(&all)?;
        let tools = tools::definitions(record.get_mut("tools").map(Value::take))?;
        return Ok(Sample::Conversation(Conversation { messages: all, tools, file, line }));
    }
    let completion = fields::text(&mut record, "completion")?;
    let prompt = match record.get_mut("prompt").map(Value::take) {
        None => return fault("field missing", "\"prompt\" is missing"),
        Some(Value::Null) => return fault("field null", "\"prompt\" is null; make it \"\" if there is none"),
        Some(Value::String(prompt)) => prompt,
        Some(other) => return wrong_kind("prompt", "a string, as \"completion\" is", &other),
    };
    Ok(Sample::PromptCompletion { prompt, completion, file, line })
}
