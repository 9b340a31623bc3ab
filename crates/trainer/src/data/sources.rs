//! From options to the sources of data and how they are read.

use super::{TrainOn, Truncation};
use crate::options::TrainOptions;
use anyhow::{Context, Result, anyhow, bail};
use megatrain_data::chat::TemplateChoice;
use megatrain_data::{ChatOptions, DataSource, Format, Mix, Registry, SampleOptions};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Refuses what makes no sense whatever the files hold.
///
/// # Errors
/// The first such option, with its flag.
pub fn check(options: &TrainOptions) -> Result<()> {
    format(options)?;
    sample_options(options)?;
    if options.packing == Some(true) && options.group_by_length == Some(true) {
        bail!(
            "--group-by-length orders sequences of one document each, and --packing makes them of several; leave out one"
        );
    }
    if options.dataset_dir.is_some() && options.dataset.is_none() && options.eval_dataset.is_none() {
        bail!("--dataset-dir is where --dataset looks; give --dataset NAME too, or --data files instead");
    }
    match (options.streaming, options.buffer_size) {
        (_, Some(0)) => bail!("--buffer-size 0 leaves no room for a document; give at least 1"),
        (None | Some(false), Some(_)) => {
            bail!("--buffer-size is the size of the windows of --streaming; give that too, or leave it out")
        }
        (Some(true), _) if options.data.is_none() && options.dataset.is_none() => {
            bail!("--streaming reads data while it is trained on; give --data FILES or --dataset NAMES")
        }
        _ => {}
    }
    let held_out = options.held_out.unwrap_or(0.0);
    if held_out > 0.0 && options.streaming == Some(true) {
        bail!(
            "--held-out chooses among all documents, and --streaming does not have them; put some in a file of their own \
             and give --eval-data FILE"
        );
    }
    if !(0.0..1.0).contains(&held_out) {
        bail!("--held-out {held_out} is no share of the data; give a number from 0 to below 1, for example 0.05");
    }
    let named = options.eval_data.is_some() || options.eval_dataset.is_some();
    if held_out > 0.0 && named {
        let flag = if options.eval_data.is_some() { "--eval-data" } else { "--eval-dataset" };
        bail!("--held-out and {flag} both name what is evaluated on; keep one");
    }
    let evaluates = held_out > 0.0 || named;
    for (flag, given) in [
        ("--eval-steps", options.eval_steps.is_some()),
        ("--early-stopping-patience", options.early_stopping_patience.is_some()),
    ] {
        if given && !evaluates && options.eval_prompts.is_none() {
            bail!("{flag} needs something to evaluate on: give --eval-data FILES or --held-out FRACTION");
        }
    }
    if options.early_stopping_patience.is_some() && !evaluates {
        bail!(
            "--early-stopping-patience looks at the evaluation's loss: give --eval-data FILES or --held-out FRACTION"
        );
    }
    if options.early_stopping_patience.is_some() && options.eval_steps.is_none() {
        bail!("--early-stopping-patience counts evaluations during training: say with --eval-steps N when they are");
    }
    if options.save_best == Some(true) && (options.eval_steps.is_none() || !evaluates) {
        bail!("--save-best saves at evaluations during training: give --eval-steps N and something to evaluate on");
    }
    for (flag, value) in
        [("--eval-steps", options.eval_steps), ("--early-stopping-patience", options.early_stopping_patience)]
    {
        if value == Some(0) {
            bail!("{flag} 0 means nothing; give at least 1, or leave it out");
        }
    }
    Ok(())
}

fn format(options: &TrainOptions) -> Result<Option<Format>> {
    let named = options.format.as_deref().map(Format::named);
    named.transpose().map_err(|problem| anyhow!("--format: {problem}"))
}

/// How records are read.
pub(super) fn sample_options(options: &TrainOptions) -> Result<SampleOptions> {
    let mix = options.mix_strategy.as_deref().map(Mix::named).transpose();
    let mix = mix.map_err(|problem| anyhow!("--mix-strategy: {problem}"))?;
    Ok(SampleOptions { mix, seed: options.seed.unwrap_or(0), ..SampleOptions::default() })
}

/// How conversations become tokens.
pub(super) fn chat_options(options: &TrainOptions, seq_len: usize) -> Result<ChatOptions> {
    Ok(ChatOptions {
        template: options.template.as_deref().map(template).transpose()?.unwrap_or_default(),
        train_on: options.train_on.unwrap_or(TrainOn::AllTurns).into(),
        max_tokens: Some(seq_len),
        too_long: options.truncation.unwrap_or(Truncation::Drop).into(),
        variables: options.chat_template_kwargs.clone().unwrap_or_default().0,
        // Taken once, so that a run over midnight has one date, and so has the key of its tokens.
        now: Some(today()),
    })
}

/// The beginning of today, UTC, in seconds since 1970.
fn today() -> i64 {
    const DAY_S: u64 = 24 * 60 * 60;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (now / DAY_S * DAY_S) as i64
}

/// A file if it looks like one, else a name.
fn template(given: &str) -> Result<TemplateChoice> {
    let is_path = given.ends_with(".jinja") || given.contains(['/', '\\']) || Path::new(given).is_file();
    if !is_path {
        return Ok(TemplateChoice::Named(given.to_owned()));
    }
    let text = std::fs::read_to_string(given).with_context(|| format!("reading the template --template {given}"))?;
    Ok(TemplateChoice::Text { origin: given.to_owned(), text })
}

/// What --data and --dataset name.
///
/// # Errors
/// There is no such data set, a weight is no number, or nothing was named.
pub fn training_sources(options: &TrainOptions) -> Result<Vec<DataSource>> {
    let mut sources = files(options, options.data.as_deref().unwrap_or_default())?;
    if let Some(names) = &options.dataset {
        sources.extend(registered(options, names, "--dataset")?);
    }
    if sources.is_empty() {
        bail!("no data: give --data files or directories, or --dataset names");
    }
    Ok(sources)
}

/// What --eval-data and --eval-dataset name.
///
/// # Errors
/// There is no such data set, or something has a weight.
pub fn evaluation_sources(options: &TrainOptions) -> Result<Option<Vec<DataSource>>> {
    let mut sources = options.eval_data.as_deref().map(|paths| files(options, paths)).transpose()?;
    let names =
        options.eval_dataset.as_deref().map(|names| registered(options, names, "--eval-dataset")).transpose()?;
    for (flag, named) in [("--eval-data", &sources), ("--eval-dataset", &names)] {
        if let Some(source) = named.iter().flatten().find(|source| source.weight.is_some()) {
            bail!("{flag} {}: what is evaluated on has no weights; leave the weight out", source.path.display());
        }
    }
    if let Some(names) = names {
        sources.get_or_insert_default().extend(names);
    }
    Ok(sources)
}

/// What names of the registry mean.
fn registered(options: &TrainOptions, names: &[String], flag: &'static str) -> Result<Vec<DataSource>> {
    let dir = options.dataset_dir.clone().unwrap_or_else(|| "data".into());
    if !dir.join("dataset_info.json").exists() {
        let files = if flag == "--dataset" { "--data" } else { "--eval-data" };
        bail!(
            "{flag} looks for dataset_info.json in {}, where it is not; --dataset-dir names another folder, and {files} takes \
             files without it",
            dir.display()
        );
    }
    let registry = Registry::open(&dir).context(flag)?;
    names.iter().map(|name| registry.source(name).context(flag)).collect()
}

fn files(options: &TrainOptions, paths: &[PathBuf]) -> Result<Vec<DataSource>> {
    let format = format(options)?;
    let source = |path: &PathBuf| {
        let source = match path.to_str() {
            Some(text) => DataSource::parse(text)?,
            None => DataSource::new(path),
        };
        Ok(DataSource { format: format.clone(), ..source })
    };
    paths.iter().map(source).collect()
}
