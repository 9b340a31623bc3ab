//! [`Writer`]: the builder with the plan's addresses at hand.

use crate::emission::{Binding, Emission, Role};
use crate::memory::{Frame, Inputs, Memory};
use crate::plan::Plan;
use crate::slots::{Fetch, Slots};
use crate::{HostTask, PlanError, Program};
use megatrain_base::{Span, Tensor, UnitId};
use megatrain_ops::Op;
use megatrain_scheduler::{Builder, Label, Phase};
use std::sync::Arc;

/// Writes one program.
pub struct Writer<'a> {
    pub plan: &'a Plan,
    pub memory: &'a Memory,
    pub tokens: usize,
    builder: Builder<Op, HostTask>,
    label: Label,
}

impl<'a> Writer<'a> {
    /// Begins a program on micro-batches of `tokens` tokens.
    pub fn new(plan: &'a Plan, name: String, tokens: usize) -> Self {
        let memory = plan.memory();
        Writer {
            plan,
            memory,
            tokens,
            builder: Builder::new(name, Arc::clone(&memory.contract)),
            label: Label::default(),
        }
    }

    /// Says whose work the next commands are.
    pub fn at(&mut self, phase: Phase, unit: Option<UnitId>, micro: Option<usize>) {
        self.label = Label { phase, unit, micro: micro.map(|m| m as u32) };
        self.builder.label(self.label);
    }

    /// Says which unit the next commands belong to, the rest unchanged.
    fn with_label(&mut self, label: Label, write: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.label, label);
        self.builder.label(label);
        write(self);
        self.label = outer;
        self.builder.label(outer);
    }

    /// Copies to the device.
    pub fn upload(&mut self, src: Span, dst_offset: u64) {
        let dst = self.device_span(dst_offset, src.len_bytes);
        self.builder.copy(self.memory.lanes.h2d, src, dst);
    }

    /// Copies to the host.
    pub fn download(&mut self, src_offset: u64, dst: Span) {
        let src = self.device_span(src_offset, dst.len_bytes);
        self.builder.copy(self.memory.lanes.d2h, src, dst);
    }

    /// A task on the update lane.
    pub fn update_task(&mut self, task: HostTask) {
        self.builder.host(self.memory.lanes.update, task);
    }

    /// A task on the data lane.
    pub fn data_task(&mut self, task: HostTask) {
        self.builder.host(self.memory.lanes.data, task);
    }

    /// One op.
    pub fn launch(&mut self, op: Op) {
        self.builder.launch(self.memory.lanes.compute, op);
    }

    /// A template's ops.
    pub fn launch_all(&mut self, emission: &Emission, binding: &Binding) {
        for op in emission.bind(binding) {
            self.launch(op);
        }
    }

    /// Begins the next block use: fetches what is due and returns the slot's offset.
    pub fn next_block(&mut self, slots: &mut Slots) -> u64 {
        let (slot, fetches) = slots.advance();
        for Fetch { block, slot } in fetches {
            let unit = self.plan.model.block_unit(block);
            let label = Label { unit: Some(unit), micro: None, ..self.label };
            self.with_label(label, |w| {
                w.upload(w.memory.units[unit.0 as usize].weights.span, w.memory.device.slots[slot]);
            });
        }
        self.memory.device.slots[slot]
    }

    /// Fetches the head unit into its slot.
    pub fn fetch_head(&mut self) {
        let unit = self.plan.model.head_unit();
        let label = Label { unit: Some(unit), micro: None, ..self.label };
        self.with_label(label, |w| w.upload(w.memory.units[unit.0 as usize].weights.span, w.memory.device.head));
    }

    /// Loads micro-batch `m` into staging and gathers its embedding rows there.
    pub fn stage(&mut self, m: usize) {
        let unit = self.plan.model.embedding_unit();
        self.at(Phase::Input, Some(unit), Some(m));
        let host = self.host_inputs(m);
        let Inputs { tokens, targets, positions, cu_seqlens, inv_targets } = host;
        self.data_task(HostTask::LoadInputs { micro: m as u32, tokens, targets, positions, cu_seqlens, inv_targets });
        let rows = self.memory.rows[m].rows(0, self.tokens);
        self.data_task(HostTask::GatherEmbedding { tokens, table: self.plan.embedding_table(), rows });
    }

    /// Copies micro-batch `m`'s inputs into device inputs `j` and its embedding rows to `x_offset`.
    pub fn upload_inputs(&mut self, m: usize, j: usize, x_offset: u64) {
        self.at(Phase::Input, Some(self.plan.model.embedding_unit()), Some(m));
        let (host, device) = (self.host_inputs(m), self.memory.device_inputs(j, self.tokens));
        for (h, d) in [
            (host.targets, device.targets),
            (host.positions, device.positions),
            (host.cu_seqlens, device.cu_seqlens),
            (host.inv_targets, device.inv_targets),
        ] {
            self.upload(h.span, d.span.offset_bytes);
        }
        self.upload(self.memory.rows[m].rows(0, self.tokens).span, x_offset);
    }

    /// Copies a frame's tensors between the device and its place in the spill region.
    pub fn spill(&mut self, frame: &Frame, device_offset: u64, block: usize, m: usize, out: bool) {
        let base = self.memory.spill[block][m];
        for &(offset, len) in &frame.parts {
            let host = Span::new(self.memory.spill_region, base + offset, len);
            if out {
                self.download(device_offset + offset, host);
            } else {
                self.upload(host, device_offset + offset);
            }
        }
    }

    /// The bindings every template shares, for device inputs `j`.
    pub fn binding(&self, j: usize) -> Binding {
        let device = self.memory.device_inputs(j, self.tokens);
        let at = |b: Binding, role: Role, t: &Tensor| b.bind(role, t.span.region, t.span.offset_bytes);
        let mut b = Binding::default();
        b = at(b, Role::Positions, &device.positions);
        b = at(b, Role::CuSeqlens, &device.cu_seqlens);
        b = at(b, Role::Targets, &device.targets);
        b = at(b, Role::InvTargets, &device.inv_targets);
        self.device(b, Role::Workspace, self.memory.device.workspace)
    }

    /// Binds a role to a device offset.
    pub fn device(&self, binding: Binding, role: Role, offset: u64) -> Binding {
        binding.bind(role, self.memory.device_region, offset)
    }

    /// The program.
    pub fn finish(self) -> Result<Arc<Program>, PlanError> {
        Ok(Arc::new(self.builder.finish()?))
    }

    fn host_inputs(&self, m: usize) -> Inputs {
        let all = &self.memory.inputs[m];
        let n = self.tokens;
        Inputs {
            tokens: all.tokens.rows(0, n),
            targets: all.targets.rows(0, n),
            positions: all.positions.rows(0, n),
            cu_seqlens: all.cu_seqlens.rows(0, n + 1),
            inv_targets: all.inv_targets,
        }
    }

    fn device_span(&self, offset: u64, len: u64) -> Span {
        Span::new(self.memory.device_region, offset, len)
    }
}
