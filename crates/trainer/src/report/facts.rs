//! [`Facts`]: what is known of a run before its first step.

use super::memory::MemoryFacts;
use super::{DataFacts, Limit};
use crate::options::TrainOptions;
use crate::session::Placement;
use megatrain_planner::{Plan, UpdatePolicy};
use megatrain_scheduler::Lane;
use serde::Serialize;
use serde_json::Value;

/// What is known of a run before its first step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Facts {
    /// What is trained, for the title.
    pub name: String,
    /// Steps that are planned.
    pub steps: u64,
    /// Options as given.
    pub options: Value,
    /// Label and text: model, plan, device, versions.
    pub about: Vec<(&'static str, String)>,
    /// Memory by group.
    pub memory: MemoryFacts,
    /// The data.
    pub data: DataFacts,
    /// What the device computes at the most.
    pub limit: Option<Limit>,
    /// Lanes of the plan's programs.
    #[serde(skip)]
    pub lanes: Vec<Lane>,
}

impl Facts {
    /// Gathers them.
    pub fn new(options: &TrainOptions, plan: &Plan, placement: Placement<'_>, steps: u64, data: DataFacts) -> Self {
        let config = &plan.model.config;
        let settings = &plan.settings;
        let name = match (&options.model, &options.preset) {
            (Some(path), _) => file_name(path),
            (None, Some(preset)) => preset.clone(),
            (None, None) => "demonstration".into(),
        };
        let device = match placement.gpu {
            Some(gpu) => gpu.name().to_string(),
            None => format!("the processor, {} hardware threads", hardware_threads()),
        };
        let about = vec![
            (
                "Model",
                format!(
                    "{}, {} parameters, {} blocks, width {}, vocabulary {}",
                    config.model_type,
                    grouped(plan.model.params()),
                    plan.model.blocks(),
                    config.hidden,
                    grouped(config.vocab as u64)
                ),
            ),
            ("Computed in", settings.dtype.to_string()),
            ("Device", device),
            (
                "Step",
                format!(
                    "{} micro-batches of {} tokens, in groups of {}",
                    settings.micro_batches,
                    settings.micro_tokens,
                    plan.group()
                ),
            ),
            ("Block slots", plan.slots().to_string()),
            (
                "Updates",
                match settings.update {
                    UpdatePolicy::Eager => "as gradients land (eager)".into(),
                    UpdatePolicy::AfterNorm => "after the gradient norm is known".into(),
                },
            ),
            ("MegaTrain", env!("CARGO_PKG_VERSION").into()),
            ("System", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ];
        Facts {
            name,
            steps,
            options: serde_json::to_value(options).unwrap_or_default(),
            about,
            memory: MemoryFacts::of(plan, placement),
            data,
            limit: placement.gpu.and_then(|gpu| Limit::of_gpu(gpu.name(), settings.dtype)),
            lanes: plan.contract().lanes.clone(),
        }
    }
}

/// The last part of a path, of `.` too.
fn file_name(path: &std::path::Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    whole.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn hardware_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_from_the_right() {
        let texts = [0, 999, 1000, 134_515_008].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "134,515,008"]);
    }
}
