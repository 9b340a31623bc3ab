//! Prints what conversations become, a line each, as Hugging Face trainers know it:
//! `{"input_ids": [...], "labels": [...]}`, or `{"skipped": "reason"}`.
//!
//! `cargo run --release -p megatrain-data --example encode_chats -- MODEL_DIR CHATS.jsonl [TEMPLATE [LABELS]]`, where
//! CHATS.jsonl has `{"messages": [...], "tools": [...]}` a line, TEMPLATE is a name or a file, and LABELS is `assistant`,
//! `last` or `everything`.

use megatrain_data::chat::{TemplateChoice, TrainOn};
use megatrain_data::{ChatEncoder, ChatOptions, Conversation, Message, Role, Sample};
use serde_json::{Value, json};
use std::error::Error;
use std::io::Write;

fn message(value: &Value) -> Result<Message, Box<dyn Error>> {
    let role: Role = serde_json::from_value(value["role"].clone())?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    Ok(Message {
        tool_calls: value.get("tool_calls").cloned(),
        name: text("name"),
        reasoning: text("reasoning_content"),
        train: value["train"].as_bool(),
        ..Message::new(role, text("content").unwrap_or_default())
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, file, rest @ ..] = &args[..] else {
        return Err("usage: encode_chats MODEL_DIR CHATS.jsonl [TEMPLATE [LABELS]]".into());
    };
    let template = match rest.first() {
        None => TemplateChoice::Model,
        Some(path) if path.ends_with(".jinja") => {
            TemplateChoice::Text { origin: path.clone(), text: std::fs::read_to_string(path)? }
        }
        Some(name) => TemplateChoice::Named(name.clone()),
    };
    let train_on = match rest.get(1).map(String::as_str) {
        None | Some("assistant") => TrainOn::Assistant,
        Some("last") => TrainOn::LastAssistant,
        Some("everything") => TrainOn::Everything,
        Some(other) => return Err(format!("LABELS is assistant, last or everything, not {other}").into()),
    };
    let encoder = ChatEncoder::load(model, ChatOptions { template, train_on, ..ChatOptions::default() })?;
    encoder.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));

    let mut samples = Vec::new();
    for (i, line) in std::fs::read_to_string(file)?.lines().enumerate() {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("{file}:{}: {e}", i + 1))?;
        let messages = value["messages"].as_array().into_iter().flatten().map(message).collect::<Result<_, _>>()?;
        let tools = value.get("tools").cloned();
        samples.push(Sample::Conversation(Conversation { messages, tools, file: 0, line: i as u64 + 1 }));
    }
    let start = std::time::Instant::now();
    let (outcomes, report) = encoder.encode_all(&samples);
    let seconds = start.elapsed().as_secs_f64();
    let mut out = std::io::stdout().lock();
    for outcome in outcomes {
        let line = match outcome {
            Ok(encoded) => json!({"input_ids": encoded.tokens, "labels": encoded.labels}),
            Err(reason) => json!({"skipped": reason.to_string()}),
        };
        writeln!(out, "{line}")?;
    }
    eprintln!(
        "{} of {} samples, {} tokens, {} targets, {:.0} tokens/s",
        report.encoded,
        report.samples,
        report.tokens,
        report.targets,
        report.tokens as f64 / seconds
    );
    for (name, count) in report.notes.named().into_iter().filter(|(_, count)| *count > 0) {
        eprintln!("{name}: {count}");
    }
    report.check()?;
    Ok(())
}
