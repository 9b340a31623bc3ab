//! Refuses options that make no sense whatever the model and the data are, before either is read.

use crate::options::TrainOptions;
use crate::{data, setup};
use anyhow::{Context, Result, anyhow, bail};
use megatrain_optim::{AdamW, OptimError, StepScalars};
use std::path::{Path, PathBuf};

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
    if let Some(file) = out.ancestors().find(|dir| dir.is_file()) {
        bail!("--out {}: {} is a file, not a folder; choose another place", out.display(), file.display());
    }
    for model in ["model", "best-model", EARLIER_BEST] {
        megatrain_checkpoint::check_target(&out.join(model)).context("--out")?;
    }
    for best in ["best-model", EARLIER_BEST].map(|name| out.join(name)) {
        let same =
            |model: &PathBuf| model.canonicalize().is_ok_and(|model| best.canonicalize().is_ok_and(|b| b == model));
        if options.model.as_ref().is_some_and(same) {
            bail!(
                "--model {} is where this run puts its own best model, in --out {}; choose another --out",
                best.display(),
                out.display()
            );
        }
    }
    Ok(())
}

/// Where the best model of an earlier run goes.
pub const EARLIER_BEST: &str = "best-model-earlier";

/// Refuses a folder in which nothing can be written, or that cannot be made, before the model is loaded: found out by a
/// file that is removed again.
///
/// # Errors
/// Names the folder that is there, and the system's reason.
pub fn writable(out: &Path) -> Result<()> {
    let here = |dir| if dir == Path::new("") { Path::new(".") } else { dir };
    let Some(there) = out.ancestors().map(here).find(|dir| dir.exists()) else { return Ok(()) };
    let probe = there.join(format!(".megatrain-{}", std::process::id()));
    let made = std::fs::File::create(&probe);
    let _ = std::fs::remove_file(&probe);
    match made {
        Ok(_) => Ok(()),
        Err(e) => {
            bail!("--out {}: nothing can be written in {}: {e}; choose another folder", out.display(), there.display())
        }
    }
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
