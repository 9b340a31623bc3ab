//! The `megatrain` command line.

use crate::data::Reader;
use crate::data::preview::Preview;
use crate::options::{Device, Dtype, TrainOptions, elsewhere, whole};
use crate::setup::{self, Source, StepShape};
use crate::target::Target;
use crate::{bench, check, demo, generate, report, say, session, simulation, train};
use anyhow::{Context, Result, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Trains language models from host memory.
#[derive(Parser)]
#[command(name = "megatrain", version, about, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model; without any option, a demonstration of about two minutes.
    Train(TrainCommand),
    /// Continue a text with a model.
    Generate(GenerateCommand),
    /// Show what a training run would allocate, and how long a step would take.
    Plan(PlanCommand),
    /// Show a run's report in a browser on this machine while it trains.
    Watch(WatchCommand),
    /// Look at data as training sees it.
    #[command(subcommand)]
    Data(DataCommand),
    /// Measure this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

#[derive(Args)]
struct TrainCommand {
    /// TOML file with the same keys as the flags (underscores for hyphens). Flags win.
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: TrainOptions,
}

#[derive(Args)]
struct PlanCommand {
    #[command(flatten)]
    train: TrainCommand,
    /// List every region.
    #[arg(long)]
    verbose: bool,
    /// JSON file with the figures of another machine to simulate [default: this one, measured].
    #[arg(long, value_name = "FILE.json")]
    profile: Option<PathBuf>,
}

#[derive(Subcommand)]
enum DataCommand {
    /// Show the tokens that would be trained on, which of them are learnt, how documents are packed, and statistics.
    Preview(PreviewCommand),
}

#[derive(Args)]
struct PreviewCommand {
    #[command(flatten)]
    train: TrainCommand,
    /// Write a line `{"input_ids": [...], "labels": [...]}` for each document instead, in file order before packing; labels
    /// unshifted, -100 where nothing is learnt.
    #[arg(long)]
    json: bool,
    /// Sequences to show, or documents to write [default: 3 sequences, all documents].
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true)]
    limit: Option<usize>,
}

#[derive(Args)]
struct WatchCommand {
    /// Folder that `megatrain train --out` writes to.
    #[arg(value_name = "OUT", default_value = "out")]
    out: PathBuf,
    /// Port on this machine; 0 for any that is free.
    #[arg(long, value_name = "N", default_value_t = report::watch::DEFAULT_PORT)]
    port: u16,
}

#[derive(Args)]
struct GenerateCommand {
    /// Hugging Face model directory.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Text to continue.
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// The prompt is a user's message: ask the model through its chat template, and print the answer alone.
    #[arg(long)]
    chat: bool,
    /// Tokens to add at most.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole::<usize>, allow_negative_numbers = true)]
    max_tokens: usize,
    /// 0 takes the likeliest token every time.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_hyphen_values = true)]
    temperature: f64,
    /// Seed of the sampling.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    /// Numbers to compute with [default: bf16 where the processor multiplies it, else f32].
    #[arg(long, value_name = "f32|bf16")]
    dtype: Option<Dtype>,
    /// auto, cpu or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Device,
    /// Threads to compute with; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<usize>, allow_negative_numbers = true)]
    threads: usize,
}

/// Parses arguments, the program's name first. Of another trainer's flag it says what that is called here.
///
/// # Errors
/// What is wrong with them, or the help that was asked for: to be printed as they are.
pub fn parse<T: Into<OsString> + Clone>(args: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(args).map_err(|mut error| {
        let ours = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(flag)) if error.kind() == ErrorKind::UnknownArgument => elsewhere(flag),
            _ => None,
        };
        if let Some(ours) = ours {
            error.insert(ContextKind::SuggestedArg, ContextValue::String(ours));
        }
        error
    })
}

impl TrainCommand {
    fn options(&self) -> Result<TrainOptions> {
        match &self.config {
            None => Ok(self.options.clone()),
            Some(path) => self.options.over(&TrainOptions::read_toml(path)?),
        }
    }
}

/// Runs a parsed command.
///
/// # Errors
/// What went wrong, for a person to read.
pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Train(command) => {
            let options = command.options()?;
            if demo::is_demo(&options) {
                return demo::run(&options);
            }
            let summary = train::train(&options)?;
            tell!(
                "{} step(s){}, last loss {:.4}, {:.0} tokens/s; {}",
                summary.steps,
                match summary.skipped {
                    0 => String::new(),
                    n => format!(" ({n} skipped)"),
                },
                summary.last_loss,
                summary.tokens_per_s,
                match summary.steps {
                    0 => "no model is saved".to_owned(),
                    _ => format!("model in {}", summary.model_dir.display()),
                }
            );
            Ok(())
        }
        Command::Generate(command) => run_generate(&command),
        Command::Plan(command) => run_plan(&command),
        Command::Watch(command) => {
            let server = report::watch::Server::bind(&command.out, command.port)?;
            tell!("{} is shown at {} until Ctrl-C", command.out.display(), server.url()?);
            server.serve()
        }
        Command::Data(DataCommand::Preview(command)) => {
            let options = command.train.options()?;
            let source = Source::from_options(&options)?;
            Preview { json: command.json, limit: command.limit }.run(&options, &source)
        }
        Command::Bench(command) => bench::run(&command),
    }
}

fn run_generate(command: &GenerateCommand) -> Result<()> {
    check::threads(command.threads)?;
    if !(command.temperature.is_finite() && command.temperature >= 0.0) {
        bail!("--temperature {} is not a number from 0 on", command.temperature);
    }
    let source = Source::open(&command.model)?;
    let tokenizer = source
        .tokenizer
        .as_deref()
        .with_context(|| format!("{} has no tokenizer.json to read the prompt with", command.model.display()))?;
    let prompt = match command.chat {
        true => Reader::new(&TrainOptions::default(), &source, source.model.config.max_positions)?
            .prompt(&command.prompt, true)
            .with_context(|| format!("--chat with the model in {}", command.model.display()))?,
        false => tokenizer.encode(&command.prompt)?,
    };
    if prompt.is_empty() {
        bail!("the prompt has no tokens; give --prompt some text");
    }
    let tokens = prompt.len().saturating_add(command.max_tokens);
    let mut generator = generate::Generator::new(&source, tokens, command.dtype, command.device, command.threads)?;
    let sampling = generate::Sampling { temperature: command.temperature, seed: command.seed };
    if !command.chat {
        say::part_on_stdout(&command.prompt);
    }
    let mut ids: Vec<i32> = Vec::new();
    let mut shown = 0;
    generator.generate(&prompt, command.max_tokens, tokenizer.stop_ids(), sampling, |id| {
        ids.push(id);
        // A character may take several tokens: what is not yet one decodes to U+FFFD and waits.
        if let Ok(text) = tokenizer.decode(&ids)
            && !text.ends_with('\u{fffd}')
        {
            say::part_on_stdout(text.get(shown..).unwrap_or_default());
            shown = text.len();
        }
    })?;
    let text = tokenizer.decode(&ids)?;
    tell!("{}", text.get(shown..).unwrap_or_default());
    Ok(())
}

fn run_plan(command: &PlanCommand) -> Result<()> {
    let options = command.train.options()?;
    check::options(&options)?;
    let source = Source::from_options(&options)?;
    let shape = StepShape::new(&options, &source.model.config)?;
    let (target, plan) = Target::choose(options.device.unwrap_or(Device::Auto))?
        .plan(&source.model, |target| setup::settings(&options, &source.model, shape, target.gpu().is_some()))?;
    let placement = target.placement(options.threads.unwrap_or(0));
    tell!("{}", setup::print_plan(&plan, placement, command.verbose));
    if let Err(refusal) = session::fits(&plan, placement) {
        tell!("{refusal}");
    }
    let profile = match &command.profile {
        Some(path) => simulation::read_profile(path)?,
        None => simulation::measure(options.threads.unwrap_or(0), plan.settings.dtype)?,
    };
    let program = plan.train(shape.micro_batches())?;
    tell!("{}", simulation::describe(&program, &plan, shape.seq_len, &profile)?);
    Ok(())
}
