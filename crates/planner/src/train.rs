//! The training step: forward, loss, backward, update, for groups of layer-major micro-batches.

use crate::emission::{Binding, Role};
use crate::memory::{GradientSlot, runs};
use crate::plan::Plan;
use crate::settings::UpdatePolicy;
use crate::slots::Slots;
use crate::update::UpdateQueue;
use crate::writer::Writer;
use crate::{HostTask, PlanError, Program};
use megatrain_base::{DType, Span, Tensor, UnitId};
use megatrain_ops::Cast;
use megatrain_scheduler::Phase;
use std::sync::Arc;

/// Writes the program of one step.
pub fn write(plan: &Plan, micros: usize) -> Result<Arc<Program>, PlanError> {
    if !plan.settings.train {
        return Err(PlanError::Setting("this plan has no gradients: it was made for evaluation and generation".into()));
    }
    if micros == 0 || micros > plan.settings.micro_batches {
        return Err(PlanError::Setting(format!(
            "a step of {micros} micro-batches does not fit a plan for 1 to {}",
            plan.settings.micro_batches
        )));
    }
    let mut step = Step::new(plan, micros);
    for m in 0..micros {
        step.w.stage(m);
    }
    let starts: Vec<usize> = (0..micros).step_by(plan.group()).collect();
    for &start in &starts {
        step.group(start, (start + plan.group()).min(micros));
    }
    step.finish()
}

struct Step<'a> {
    w: Writer<'a>,
    slots: Slots,
    micros: usize,
    /// Counts uses of the ring of frames that spilled blocks share.
    frame_uses: usize,
    /// Which device gradient slot comes next.
    gradient_uses: usize,
    landing: Landing,
}

/// Landed gradients on their way to the optimizer.
struct Landing {
    queue: UpdateQueue,
    clock_s: f64,
    ring_uses: usize,
    /// Unit whose gradient a ring slab holds until its update is written.
    held: Vec<Option<UnitId>>,
    /// Where each unit's final gradient lies.
    gradients: Vec<Option<Tensor>>,
}

impl<'a> Step<'a> {
    fn new(plan: &'a Plan, micros: usize) -> Self {
        let blocks = plan.model.blocks();
        let groups = micros.div_ceil(plan.group());
        let uses = (0..groups).flat_map(|_| (0..blocks).chain((0..blocks).rev())).collect();
        let tokens = plan.settings.micro_tokens;
        Step {
            w: Writer::new(plan, format!("train {micros}x{tokens}"), tokens),
            slots: Slots::new(plan.slots(), uses),
            micros,
            frame_uses: 0,
            gradient_uses: 0,
            landing: Landing {
                queue: UpdateQueue::default(),
                clock_s: 0.0,
                ring_uses: 0,
                held: vec![None; plan.memory().ring.len()],
                gradients: vec![None; plan.model.units.len()],
            },
        }
    }

    /// Micro-batches `start..end` through all blocks and back.
    fn group(&mut self, start: usize, end: usize) {
        let plan = self.w.plan;
        let (blocks, last) = (plan.model.blocks(), end == self.micros);
        let micros: Vec<usize> = (start..end).collect();

        // Forward. `frames[j]` is where micro-batch j's input of the current block lies.
        let mut frames: Vec<u64> = (0..micros.len()).map(|j| self.frame(0, j)).collect();
        let mut kept: Vec<Vec<u64>> = Vec::new();
        for l in 0..blocks {
            let unit = plan.model.block_unit(l);
            self.w.at(Phase::Forward, Some(unit), None);
            let weights = self.w.next_block(&mut self.slots);
            if l == 0 {
                for (j, &m) in micros.iter().enumerate() {
                    self.w.upload_inputs(m, j, frames[j]);
                }
            }
            if start == 0 && l + 1 == blocks {
                self.w.fetch_head();
            }
            let mut next = Vec::new();
            for (j, &m) in micros.iter().enumerate() {
                self.w.at(Phase::Forward, Some(unit), Some(m));
                let y = if l + 1 < blocks { self.frame(l + 1, j) } else { self.w.memory.device.head_x[j] };
                let binding = self.block_binding(j, l, weights, frames[j]);
                let binding = self.w.device(binding, Role::Y, y);
                self.w.launch_all(&plan.emissions().forward[plan.blocks()[l].level as usize], &binding);
                if plan.blocks()[l].spill {
                    self.w.spill(plan.frame(l), frames[j], l, m, true);
                }
                next.push(y);
            }
            kept.push(std::mem::replace(&mut frames, next));
        }

        self.loss(&micros, &frames);
        self.land(plan.model.head_unit(), self.w.memory.device.head_gradient.expect("training"), start == 0, last);

        for l in (0..blocks).rev() {
            let unit = plan.model.block_unit(l);
            self.w.at(Phase::Backward, Some(unit), None);
            let weights = self.w.next_block(&mut self.slots);
            let slots = &self.w.memory.device.gradients;
            let gradient = slots[self.gradient_uses % slots.len()];
            self.gradient_uses += 1;
            let mut seconds = 0.0;
            for (j, &m) in micros.iter().enumerate() {
                self.w.at(Phase::Backward, Some(unit), Some(m));
                let mut x = kept[l][j];
                if plan.blocks()[l].spill {
                    x = self.frame(l, j);
                    self.w.spill(plan.frame(l), x, l, m, false);
                }
                let binding = self.block_binding(j, l, weights, x);
                let binding = self.w.device(binding, Role::Gradients, gradient.accumulator);
                let binding = self.w.device(binding, Role::D, self.w.memory.device.d[j]);
                let emission = plan.emissions().backward(plan.blocks()[l].level, j > 0);
                self.w.launch_all(emission, &binding);
                seconds += emission.flops() / plan.settings.rates.device_flops;
            }
            self.landing.clock_s += seconds;
            self.land(unit, gradient, start == 0, last);
        }
        self.scatter(&micros, start == 0, last);
    }

    /// Where block `l`'s frame for group member `j` lies; a fresh place in the ring if the block spills.
    fn frame(&mut self, l: usize, j: usize) -> u64 {
        let device = &self.w.memory.device;
        if !self.w.plan.blocks()[l].spill {
            return device.frames[l][j];
        }
        self.frame_uses += 1;
        device.ring[(self.frame_uses - 1) % device.ring.len()]
    }

    fn block_binding(&self, j: usize, l: usize, weights: u64, frame: u64) -> Binding {
        let mut binding = self.w.device(self.w.binding(j), Role::Weights, weights);
        let parts = &self.w.plan.frame(l).parts;
        binding = self.w.device(binding, Role::X, frame);
        for (i, (offset, _)) in parts[1..].iter().enumerate() {
            binding = binding.bind_saved(i, self.w.memory.device_region, frame + offset);
        }
        binding
    }

    /// Head, loss and their backward; losses to the host.
    fn loss(&mut self, micros: &[usize], x: &[u64]) {
        let plan = self.w.plan;
        let device = &self.w.memory.device;
        for (j, &m) in micros.iter().enumerate() {
            self.w.at(Phase::Loss, Some(plan.model.head_unit()), Some(m));
            let mut binding = self.w.binding(j);
            for (role, offset) in [
                (Role::Weights, device.head),
                (Role::Gradients, device.head_gradient.expect("training").accumulator),
                (Role::X, x[j]),
                (Role::D, device.d[j]),
                (Role::Losses, device.losses[j]),
            ] {
                binding = self.w.device(binding, role, offset);
            }
            self.w.launch_all(plan.emissions().loss_backward(j > 0), &binding);
            let losses = self.w.memory.losses[m];
            self.w.download(device.losses[j], losses.span);
            let sum = self.w.memory.loss_sums.rows(m, 1);
            self.w.data_task(HostTask::CollectLoss { micro: m as u32, losses, sum });
        }
        let all_collected = micros.last() == Some(&(self.micros - 1));
        if plan.settings.update == UpdatePolicy::Eager && all_collected {
            let sums = self.w.memory.loss_sums.rows(0, self.micros);
            self.w.update_task(HostTask::LossVerdict { sums, verdict: self.w.memory.verdict });
        }
    }

    /// A unit's gradient to the host, and on to its sum or its update.
    fn land(&mut self, unit: UnitId, slot: GradientSlot, first: bool, last: bool) {
        let plan = self.w.plan;
        let dtype = plan.settings.dtype;
        let layout = &plan.model.unit(unit).layout;
        let regions = *plan.unit(unit);
        self.w.at(Phase::Backward, Some(unit), None);
        let (target, ring) = match regions.landing {
            Some(own) => (own, None),
            None => {
                let k = self.landing.ring_uses % self.landing.held.len();
                self.landing.ring_uses += 1;
                if let Some(holder) = self.landing.held[k].take() {
                    let order = self.landing.queue.force(holder.0);
                    self.write_updates(order);
                }
                (self.w.memory.ring[k], Some(k))
            }
        };
        for (start, len) in runs(layout) {
            let place = |base: u64, dtype: DType| base + start * dtype.size_bytes();
            if slot.outgoing != slot.accumulator {
                let region = self.w.memory.device_region;
                let x = Tensor::new(region, place(slot.accumulator, DType::F32), DType::F32, [len]);
                let y = Tensor::new(region, place(slot.outgoing, dtype), dtype, [len]);
                self.w.launch(Cast { x, y }.into());
            }
            let dst = Span::new(target.span.region, place(target.span.offset_bytes, dtype), len * dtype.size_bytes());
            self.w.download(place(slot.outgoing, dtype), dst);
        }
        let landed = Tensor::new(target.span.region, target.span.offset_bytes, dtype, [layout.len_elems()]);
        let gradient = match regions.sum {
            None => landed,
            Some(sum) => {
                if sum.span != landed.span {
                    self.w.at(Phase::Update, Some(unit), None);
                    self.w.update_task(HostTask::AddGradient { unit, landed, sum, first });
                }
                sum
            }
        };
        // The embedding's rows come last; its unit is complete only then.
        if last && unit != plan.model.embedding_unit() {
            let held = ring.filter(|_| regions.sum.is_none());
            self.complete(unit, gradient, held);
        }
    }

    /// The gradients of the embedding rows to the host and into the table's gradient.
    fn scatter(&mut self, micros: &[usize], first_group: bool, last: bool) {
        let plan = self.w.plan;
        let unit = plan.model.embedding_unit();
        let table = plan.embedding_gradient().expect("training");
        let tied = unit == plan.model.head_unit();
        for (j, &m) in micros.iter().enumerate() {
            self.w.at(Phase::Backward, Some(unit), Some(m));
            let rows = self.w.memory.row_gradients[m];
            self.w.download(self.w.memory.device.d[j], rows.span);
            self.w.at(Phase::Update, Some(unit), Some(m));
            let first = first_group && j == 0 && !tied;
            let tokens = self.w.memory.inputs[m].tokens;
            self.w.update_task(HostTask::ScatterEmbedding { tokens, rows, table, first });
        }
        if last {
            let sum = plan.unit(unit).sum.expect("embeddings are summed on the host");
            self.complete(unit, sum, None);
        }
    }

    /// A unit's gradient is whole.
    fn complete(&mut self, unit: UnitId, gradient: Tensor, ring: Option<usize>) {
        let plan = self.w.plan;
        self.landing.gradients[unit.0 as usize] = Some(gradient);
        match plan.settings.update {
            UpdatePolicy::AfterNorm => {
                self.w.at(Phase::Update, Some(unit), None);
                let part = self.part(unit);
                self.w.update_task(HostTask::SquareSum { unit, gradient, part });
            }
            UpdatePolicy::Eager => {
                if let Some(k) = ring {
                    self.landing.held[k] = Some(unit);
                }
                let seconds = plan.model.unit(unit).layout.params() as f64 / plan.settings.rates.update_params;
                let started = self.landing.queue.land(unit.0, self.landing.clock_s, seconds);
                self.write_updates(started);
            }
        }
    }

    fn part(&self, unit: UnitId) -> Tensor {
        self.w.memory.parts.rows(unit.0 as usize, 1).reshape([2u64])
    }

    fn write_updates(&mut self, order: Vec<u32>) {
        for id in order {
            let unit = UnitId(id);
            let regions = self.w.plan.unit(unit);
            self.w.at(Phase::Update, Some(unit), None);
            let eager = self.w.plan.settings.update == UpdatePolicy::Eager;
            let part = if eager { self.part(unit) } else { self.part(unit).rows(0, 0) };
            self.w.update_task(HostTask::Update {
                unit,
                weights: regions.weights,
                low: regions.low,
                m: regions.m,
                v: regions.v,
                gradient: self.landing.gradients[id as usize].expect("only complete units are updated"),
                verdict: self.w.memory.verdict,
                part,
            });
            for held in &mut self.landing.held {
                if *held == Some(unit) {
                    *held = None;
                }
            }
        }
    }

    fn finish(mut self) -> Result<Arc<Program>, PlanError> {
        let order = match self.w.plan.settings.update {
            UpdatePolicy::Eager => self.landing.queue.drain(),
            UpdatePolicy::AfterNorm => {
                self.w.at(Phase::Update, None, None);
                let (parts, verdict) = (self.w.memory.parts, self.w.memory.verdict);
                self.w.update_task(HostTask::Verdict { parts, verdict });
                (0..self.w.plan.model.units.len() as u32).collect()
            }
        };
        self.write_updates(order);
        self.w.finish()
    }
}
