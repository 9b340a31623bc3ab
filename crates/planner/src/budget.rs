//! What fits: how many micro-batches go through a block together, and what each block keeps for the backward pass.

use crate::error::PlanError;
use crate::memory::{DeviceMap, Sizes};
use crate::model::Model;
use crate::settings::{ActivationChoice, BlockChoice, Settings, SlotCount, UpdatePolicy};
use megatrain_layers::Activations;

/// The planner's decisions.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Block weight slots.
    pub slots: usize,
    /// Micro-batches a group.
    pub group: usize,
    /// Per block.
    pub blocks: Vec<BlockChoice>,
}

/// Checks settings against one another.
///
/// # Errors
/// [`PlanError::Setting`] naming the setting.
pub fn check(settings: &Settings) -> Result<(), PlanError> {
    let refuse = |text: String| Err(PlanError::Setting(text));
    if !settings.dtype.is_float() || settings.dtype.size_bytes() > 4 {
        return refuse(format!("dtype {} cannot be computed in; use f32 or bf16", settings.dtype));
    }
    for (name, value) in [
        ("micro-batch tokens", settings.micro_tokens),
        ("micro-batches", settings.micro_batches),
        ("logits rows", settings.logits_rows),
    ] {
        if value == 0 {
            return refuse(format!("{name} must be at least 1"));
        }
    }
    if settings.micro_tokens > i32::MAX as usize / 2 {
        return refuse(format!("{} tokens in a micro-batch are more than positions can count", settings.micro_tokens));
    }
    if settings.group.is_some_and(|g| g == 0 || g > settings.micro_batches) {
        return refuse(format!("group must be between 1 and {} micro-batches", settings.micro_batches));
    }
    if settings.update == UpdatePolicy::Eager && settings.gradient_ring < 2 {
        return refuse("the eager policy needs a gradient ring of at least 2 slabs".into());
    }
    Ok(())
}

/// Chooses the plan that computes least among those that fit.
///
/// # Errors
/// [`PlanError::BudgetTooSmall`] if not even recomputing everything, one micro-batch at a time, from spilled inputs fits.
pub fn choose(model: &Model, settings: &Settings, sizes: &Sizes) -> Result<Choice, PlanError> {
    let blocks = model.blocks();
    let slots = match settings.slots {
        SlotCount::All => blocks,
        SlotCount::Count(n) => n.max(2).min(blocks),
    };
    let total = |choice: &Choice| DeviceMap::new(model, settings, sizes, choice).total_bytes;
    let fits = |choice: &Choice| total(choice) <= settings.device_memory_bytes;
    let least = |group: usize, spill: bool| {
        let level = match settings.activations {
            ActivationChoice::Auto => Activations::Recompute,
            ActivationChoice::All(level) => level,
        };
        Choice { slots, group, blocks: vec![BlockChoice { level, spill }; blocks] }
    };

    let mut groups = vec![settings.group.unwrap_or(settings.micro_batches)];
    while settings.group.is_none() && *groups.last().expect("not empty") > 1 {
        groups.push(groups.last().expect("not empty").div_ceil(2));
    }
    let spills: &[bool] = match (settings.spill, settings.activations) {
        (true, _) => &[true],
        (false, ActivationChoice::Auto) => &[false, true],
        (false, _) => &[false],
    };
    for &spill in spills {
        for &group in &groups {
            let mut choice = least(group, spill);
            if fits(&choice) {
                if settings.activations == ActivationChoice::Auto && settings.train {
                    upgrade(&mut choice, settings.spill, &fits);
                }
                return Ok(choice);
            }
        }
    }
    let smallest_group = *groups.last().expect("not empty");
    let maps = spills.iter().map(|&spill| DeviceMap::new(model, settings, sizes, &least(smallest_group, spill)));
    let map = maps.min_by_key(|map| map.total_bytes).expect("spilling, not spilling or both");
    Err(PlanError::BudgetTooSmall {
        budget_bytes: settings.device_memory_bytes,
        need_bytes: map.total_bytes,
        weights_bytes: map.weights_bytes,
        gradients_bytes: map.gradients_bytes,
        micro_tokens: settings.micro_tokens,
    })
}

/// Gives what is left to the blocks, last block first (its activations live shortest): stop spilling, unless it was asked
/// for, then keep all but gate and up (saves most time a byte), then keep all.
fn upgrade(choice: &mut Choice, spill_asked: bool, fits: &dyn Fn(&Choice) -> bool) {
    for level in [Activations::Recompute, Activations::Partial, Activations::Keep] {
        for l in (0..choice.blocks.len()).rev() {
            let before = choice.blocks[l];
            // Spilled of need, not by wish: such a block does not take what its neighbours could use.
            if before.spill && !spill_asked && level != Activations::Recompute {
                continue;
            }
            choice.blocks[l] = BlockChoice { level, spill: spill_asked };
            if !fits(choice) {
                choice.blocks[l] = before;
                break;
            }
        }
    }
}
