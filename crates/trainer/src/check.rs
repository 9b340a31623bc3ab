//! Refuses options that make no sense whatever the model and the data are, before either is read.

use crate::options::TrainOptions;
use crate::{data, setup};
use anyhow::{Context, Result, anyhow, bail};
use megatrain_optim::{AdamW, OptimError, StepScalars};
use std::path::PathBuf;

/// Most threads a run may be given: more than any one machine has, fewer than it takes to exhaust one.
const MAX_THREADS: usize = 4096;

/// Checks all options that can be judged alone.
///
/// # Errors
/// The first that makes no sense, with its flag.
pub fn options(options: &TrainOptions) -> Result<()> {
    threads(options.threads.unwrap_or(0))?;
    setup::batch_sizes(options)?;
    setup::clip_and_policy(options)?;
    optimizer(&adamw(options), options.lr.unwrap_or(0.0))?;
    for (flag, value) in [("--steps", options.steps), ("--epochs", options.epochs)] {
        if value == Some(0) {
            bail!("{flag} 0 leaves nothing to do; give at least 1");
        }
    }
    if options.streaming == Some(true) && options.steps.is_none() {
        bail!(
            "--streaming needs --steps N: how many steps an epoch has is not known while the data is read{}",
            if options.epochs.is_some() { ", so --epochs means nothing" } else { "" }
        );
    }
    data::check(options)?;
    let out = out(options);
    if out.exists() && !out.is_dir() {
        bail!("--out {}: there is a file of this name; give a folder", out.display());
    }
    for model in ["model", "best-model"] {
        megatrain_checkpoint::check_target(&out.join(model)).context("--out")?;
    }
    Ok(())
}

/// Where the run writes.
pub fn out(options: &TrainOptions) -> PathBuf {
    options.out.clone().unwrap_or_else(|| "out".into())
}

/// Refuses a number of threads that only a slip of the hand can mean.
///
/// # Errors
/// Says how many this machine runs at once.
pub fn threads(threads: usize) -> Result<()> {
    if threads > MAX_THREADS {
        let here = std::thread::available_parallelism().map_or(1, |n| n.get());
        bail!("--threads {threads} is more than {MAX_THREADS}; this machine runs {here} at once, the default");
    }
    Ok(())
}

/// AdamW's constants.
pub fn adamw(options: &TrainOptions) -> AdamW {
    let default = AdamW::default();
    AdamW {
        beta1: options.beta1.unwrap_or(default.beta1),
        beta2: options.beta2.unwrap_or(default.beta2),
        eps: options.eps.unwrap_or(default.eps),
        weight_decay: options.weight_decay.unwrap_or(default.weight_decay),
    }
}

/// Refuses optimizer settings outside their range.
///
/// # Errors
/// Names the flag.
pub fn optimizer(adamw: &AdamW, lr: f64) -> Result<()> {
    let Err(error) = StepScalars::new(adamw, lr, 1, 1.0) else { return Ok(()) };
    let flag = match &error {
        OptimError::Setting { name: "learning rate", .. } => "--lr",
        OptimError::Setting { name: "weight_decay", .. } => "--weight-decay",
        OptimError::Setting { name: "beta1", .. } => "--beta1",
        OptimError::Setting { name: "beta2", .. } => "--beta2",
        OptimError::Setting { name: "eps", .. } => "--eps",
        _ => "--lr times --weight-decay",
    };
    Err(anyhow!(error).context(flag))
}
