//! Prints what conversations become, a line each, as Hugging Face trainers know it:
//! `{"input_ids": [...], "labels": [...]}`, or `{"skipped": "reason"}`.
//!
//! `cargo run --release -p megatrain-data --example encode_chats -- MODEL_DIR DATA [TEMPLATE [LABELS]]`, where DATA is a file
//! of any format that the crate reads, TEMPLATE is a name or a .jinja file, and LABELS is `assistant`, `last` or
//! `everything`.

use megatrain_data::chat::{TemplateChoice, TrainOn};
use megatrain_data::{ChatEncoder, ChatOptions, DataSource, SampleOptions, Samples};
use serde_json::json;
use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, file, rest @ ..] = &args[..] else {
        return Err("usage: encode_chats MODEL_DIR DATA [TEMPLATE [LABELS]]".into());
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

    let mut reader = Samples::new(&[DataSource::new(file)], &SampleOptions::default())?;
    let samples = (&mut reader).collect::<Result<Vec<_>, _>>()?;
    if !reader.skips().is_empty() {
        eprintln!("{}", reader.skips().summary(reader.files()));
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
