//! Programs without gradients: evaluation and generation. Block outputs alternate between two buffers a micro-batch.

use crate::emission::{Emission, Role};
use crate::plan::Plan;
use crate::slots::Slots;
use crate::writer::Writer;
use crate::{HostTask, PlanError, Program};
use megatrain_layers::Activations;
use megatrain_scheduler::Phase;
use std::sync::Arc;

/// Losses of `micros` micro-batches.
pub fn evaluate(plan: &Plan, micros: usize) -> Result<Arc<Program>, PlanError> {
    if micros == 0 || micros > plan.group() {
        return Err(PlanError::Setting(format!(
            "an evaluation of {micros} micro-batches does not fit a plan for 1 to {}",
            plan.group()
        )));
    }
    let tokens = plan.settings.micro_tokens;
    let mut w = Writer::new(plan, format!("evaluate {micros}x{tokens}"), tokens);
    let x = forward(&mut w, micros, &plan.emissions().forward[Activations::Recompute as usize]);
    let device = &w.memory.device;
    for (m, &x) in x.iter().enumerate() {
        w.at(Phase::Loss, Some(plan.model.head_unit()), Some(m));
        let mut binding = w.binding(m);
        for (role, offset) in [(Role::Weights, device.head), (Role::X, x), (Role::Losses, device.losses[m])] {
            binding = w.device(binding, role, offset);
        }
        w.launch_all(&plan.emissions().loss, &binding);
        let losses = w.memory.losses[m];
        w.download(device.losses[m], losses.span);
        let sum = w.memory.loss_sums.rows(m, 1);
        w.data_task(HostTask::CollectLoss { micro: m as u32, losses, sum });
    }
    w.finish()
}

/// Logits of one row of `tokens` tokens.
pub fn generate(plan: &Plan, tokens: usize) -> Result<Arc<Program>, PlanError> {
    if tokens == 0 || tokens > plan.settings.micro_tokens {
        return Err(PlanError::Setting(format!(
            "{tokens} tokens do not fit a plan for 1 to {}",
            plan.settings.micro_tokens
        )));
    }
    let templates = plan.templates(tokens);
    let mut w = Writer::new(plan, format!("generate {tokens}"), tokens);
    let x = forward(&mut w, 1, &templates.block_forward(Activations::Recompute));
    w.at(Phase::Loss, Some(plan.model.head_unit()), None);
    let device = &w.memory.device;
    w.upload(w.memory.row_index.span, device.row_index);
    let mut binding = w.binding(0);
    for (role, offset) in [
        (Role::Weights, device.head),
        (Role::X, x[0]),
        (Role::RowIndex, device.row_index),
        (Role::Logits, device.logits),
    ] {
        binding = w.device(binding, role, offset);
    }
    w.launch_all(&templates.logits(), &binding);
    let logits = w.memory.logits;
    w.download(device.logits, logits.span);
    w.data_task(HostTask::TakeLogits { logits });
    w.finish()
}

/// All blocks for `micros` micro-batches; returns where each one's last output lies.
fn forward(w: &mut Writer<'_>, micros: usize, block: &Emission) -> Vec<u64> {
    let plan = w.plan;
    let blocks = plan.model.blocks();
    let buffers: Vec<[u64; 2]> = (0..micros).map(|m| [w.memory.device.head_x[m], w.memory.device.d[m]]).collect();
    for m in 0..micros {
        w.stage(m);
    }
    let mut slots = Slots::new(plan.slots(), (0..blocks).collect());
    for l in 0..blocks {
        let unit = plan.model.block_unit(l);
        w.at(Phase::Forward, Some(unit), None);
        let weights = w.next_block(&mut slots);
        if l == 0 {
            for (m, buffers) in buffers.iter().enumerate() {
                w.upload_inputs(m, m, buffers[0]);
            }
        }
        if l + 1 == blocks {
            w.at(Phase::Forward, Some(unit), None);
            w.fetch_head();
        }
        for (m, buffers) in buffers.iter().enumerate() {
            w.at(Phase::Forward, Some(unit), Some(m));
            let mut binding = w.binding(m);
            for (role, offset) in [(Role::Weights, weights), (Role::X, buffers[l % 2]), (Role::Y, buffers[(l + 1) % 2])]
            {
                binding = w.device(binding, role, offset);
            }
            w.launch_all(block, &binding);
        }
    }
    buffers.iter().map(|b| b[blocks % 2]).collect()
}
