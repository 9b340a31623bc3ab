//! [`Plan`]: the memory of a run and the programs that live in it.

use crate::budget::{self, Choice};
use crate::emission::{Emission, Templates};
use crate::memory::{Frame, Memory, PlannedRegion, Sizes, UnitRegions};
use crate::model::Model;
use crate::settings::{BlockChoice, Settings};
use crate::{PlanError, Program, infer, train};
use megatrain_base::{RegionId, Tensor, UnitId, fmt_bytes};
use megatrain_layers::{Activations, UnitKind};
use megatrain_scheduler::Contract;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

pub(crate) const LEVELS: [Activations; 3] = [Activations::Keep, Activations::Partial, Activations::Recompute];

/// The memory of a run and the programs that live in it.
#[derive(Debug)]
pub struct Plan {
    /// The model.
    pub model: Model,
    /// What was asked for.
    pub settings: Settings,
    choice: Choice,
    sizes: Sizes,
    memory: Memory,
    emissions: Emissions,
}

/// The templates' ops at the full micro-batch size.
#[derive(Debug)]
pub(crate) struct Emissions {
    pub forward: [Emission; 3],
    backward: HashMap<(usize, bool), Emission>,
    loss_backward: Option<[Emission; 2]>,
    pub loss: Emission,
}

impl Emissions {
    fn new(templates: &Templates, train: bool) -> Self {
        let mut backward = HashMap::new();
        if train {
            for (i, level) in LEVELS.into_iter().enumerate() {
                for accumulate in [false, true] {
                    backward.insert((i, accumulate), templates.block_backward(level, accumulate));
                }
            }
        }
        Emissions {
            forward: LEVELS.map(|level| templates.block_forward(level)),
            backward,
            loss_backward: train.then(|| [false, true].map(|accumulate| templates.loss_backward(accumulate))),
            loss: templates.loss(),
        }
    }

    pub fn backward(&self, level: Activations, accumulate: bool) -> &Emission {
        &self.backward[&(level as usize, accumulate)]
    }

    pub fn loss_backward(&self, accumulate: bool) -> &Emission {
        &self.loss_backward.as_ref().expect("a plan for training")[accumulate as usize]
    }
}

impl Plan {
    /// Plans a model's memory within the budget.
    ///
    /// # Errors
    /// Settings that make no sense, or a budget that nothing fits.
    pub fn new(model: Model, settings: Settings) -> Result<Self, PlanError> {
        budget::check(&settings)?;
        let tokens = settings.micro_tokens;
        let templates =
            Templates { model: &model, dtype: settings.dtype, tokens, logits_rows: settings.logits_rows.min(tokens) };
        let emissions = Emissions::new(&templates, settings.train);
        let workspace = |i: usize| {
            let backward = [false, true].map(|a| emissions.backward.get(&(i, a)).map_or(0, |e| e.workspace_bytes));
            backward.into_iter().max().unwrap_or(0).max(emissions.forward[i].workspace_bytes)
        };
        let other =
            [emissions.loss.workspace_bytes, templates.logits().workspace_bytes, emissions.forward[2].workspace_bytes];
        let losses = emissions.loss_backward.iter().flatten().map(|e| e.workspace_bytes);
        let sizes = Sizes {
            block_elems: model.block.layout(0).len_elems(),
            head_elems: model.unit(model.head_unit()).layout.len_elems(),
            frames: LEVELS.map(|level| Frame::new(&model, level, tokens, settings.dtype)),
            workspace_bytes: [0, 1, 2].map(workspace),
            other_workspace_bytes: other.into_iter().chain(losses).max().unwrap_or(0),
        };
        let choice = budget::choose(&model, &settings, &sizes)?;
        let memory = Memory::new(&model, &settings, &sizes, &choice);
        Ok(Plan { model, settings, choice, sizes, memory, emissions })
    }

    /// What all programs of the plan agree on.
    pub fn contract(&self) -> Arc<Contract> {
        Arc::clone(&self.memory.contract)
    }

    /// Regions in the order of their ids.
    pub fn regions(&self) -> &[PlannedRegion] {
        &self.memory.regions
    }

    /// Where a unit lies in host memory.
    pub fn unit(&self, id: UnitId) -> &UnitRegions {
        &self.memory.units[id.0 as usize]
    }

    /// `[vocab, hidden]`: the embedding table in host memory.
    pub fn embedding_table(&self) -> Tensor {
        let id = self.model.embedding_unit();
        self.in_slab(id, self.unit(id).weights)
    }

    /// `[vocab, hidden]` f32: the embedding table's gradient in host memory.
    pub(crate) fn embedding_gradient(&self) -> Option<Tensor> {
        let id = self.model.embedding_unit();
        self.unit(id).sum.map(|sum| self.in_slab(id, sum))
    }

    fn in_slab(&self, id: UnitId, slab: Tensor) -> Tensor {
        let unit = self.model.unit(id);
        unit.layout.tensors[UnitKind::EMBED].place(slab.span.region, slab.span.offset_bytes, slab.dtype)
    }

    /// The region that stands for the device's memory.
    pub fn device_region(&self) -> RegionId {
        self.memory.device_region
    }

    /// Micro-batches that go through a block together.
    pub fn group(&self) -> usize {
        self.choice.group
    }

    /// Block slots on the device.
    pub fn slots(&self) -> usize {
        self.choice.slots
    }

    /// What was decided for each block.
    pub fn blocks(&self) -> &[BlockChoice] {
        &self.choice.blocks
    }

    /// One training step on `micros` micro-batches.
    ///
    /// # Errors
    /// More micro-batches than planned, or none; a plan without training.
    pub fn train(&self, micros: usize) -> Result<Arc<Program>, PlanError> {
        train::write(self, micros)
    }

    /// Losses of up to [`Plan::group`] micro-batches.
    ///
    /// # Errors
    /// More micro-batches than that, or none.
    pub fn evaluate(&self, micros: usize) -> Result<Arc<Program>, PlanError> {
        infer::evaluate(self, micros)
    }

    /// Logits of one row of micro-batch 0, of which the first `tokens` tokens are used.
    ///
    /// # Errors
    /// More tokens than a micro-batch has, or none.
    pub fn generate(&self, tokens: usize) -> Result<Arc<Program>, PlanError> {
        infer::generate(self, tokens)
    }

    /// The cell that tells [`Plan::generate`]'s program which row is wanted; write it while no program runs.
    pub fn row_index(&self) -> Tensor {
        self.memory.row_index
    }

    /// Tokens one optimizer step holds at most.
    pub fn step_tokens(&self) -> usize {
        self.settings.micro_tokens * self.settings.micro_batches
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn emissions(&self) -> &Emissions {
        &self.emissions
    }

    pub(crate) fn frame(&self, block: usize) -> &Frame {
        self.sizes.frame(self.choice.blocks[block].level)
    }

    pub(crate) fn templates(&self, tokens: usize) -> Templates<'_> {
        let logits_rows = self.settings.logits_rows.min(tokens);
        Templates { model: &self.model, dtype: self.settings.dtype, tokens, logits_rows }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, d) = (&self.settings, &self.memory.device);
        writeln!(
            f,
            "model    {}: {} blocks, {} parameters in {} units, computed in {}",
            self.model.config.model_type,
            self.model.blocks(),
            self.model.params(),
            self.model.units.len(),
            s.dtype
        )?;
        writeln!(
            f,
            "step     {} micro-batches of {} tokens in groups of {}, {} block slots, updates {}",
            s.micro_batches,
            s.micro_tokens,
            self.choice.group,
            self.choice.slots,
            match s.update {
                crate::UpdatePolicy::Eager => "eager",
                crate::UpdatePolicy::AfterNorm => "after the norm",
            }
        )?;
        if s.train {
            let mut kept = Vec::new();
            for level in LEVELS {
                for spill in [false, true] {
                    let count = self.choice.blocks.iter().filter(|b| (b.level, b.spill) == (level, spill)).count();
                    if count > 0 {
                        let what = match level {
                            Activations::Keep => "all activations",
                            Activations::Partial => "all but gate and up",
                            Activations::Recompute => "the block input",
                        };
                        let spilled = if spill { ", spilled to host memory" } else { "" };
                        kept.push(format!("{what} of {count} blocks{spilled}"));
                    }
                }
            }
            writeln!(f, "kept     {}", kept.join("; "))?;
        }
        write!(
            f,
            "device   {}: weights {}, gradients {}, inputs, activations and workspace {}",
            fmt_bytes(d.total_bytes),
            fmt_bytes(d.weights_bytes),
            fmt_bytes(d.gradients_bytes),
            fmt_bytes(d.total_bytes - d.weights_bytes - d.gradients_bytes)
        )
    }
}
