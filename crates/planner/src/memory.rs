//! What memory a plan has: regions, the addresses inside them, and the boundary event that guards each.
//!
//! Host: a weight slab and a state slab a unit, gradient slabs, staging for inputs and embedding rows, cells. Device:
//! one heap of block slots, the head, gradient accumulators, inputs, and one stretch for all activations and temporaries.

use crate::budget::Choice;
use crate::heap::Bump;
use crate::model::Model;
use crate::settings::{Settings, UpdatePolicy};
use megatrain_base::{DType, Rank, RegionId, SlabLayout, Span, Tensor, UnitId};
use megatrain_layers::Activations;
use megatrain_scheduler::{Contract, LaneId, LaneKind, Space};
use std::sync::Arc;

/// What a region is for: how printed plans group them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Purpose {
    /// Streamed weights: f32 masters, or their bf16 halves.
    Weights,
    /// Low halves and moments.
    OptimizerState,
    /// Landed and summed gradients.
    Gradients,
    /// Batches, embedding rows and losses on their way.
    Staging,
    /// Activations spilled to host memory.
    Spill,
    /// The device's memory.
    DeviceHeap,
}

/// A region with its purpose; its position is its [`RegionId`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedRegion {
    /// For people.
    pub name: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Its size.
    pub len_bytes: u64,
}

/// Where a unit lies in host memory. All are slabs of the unit's layout; element `i` of each is the same parameter.
#[derive(Clone, Copy, Debug)]
pub struct UnitRegions {
    /// `[slab]` in the compute dtype: the f32 master or its upper half.
    pub weights: Tensor,
    /// `[slab]` u16; empty in f32 mode and without training.
    pub low: Tensor,
    /// `[slab]` f32; empty without training.
    pub m: Tensor,
    /// `[slab]` f32; empty without training.
    pub v: Tensor,
    /// `[slab]` f32: the gradient summed on the host (embeddings, several groups).
    pub sum: Option<Tensor>,
    /// `[slab]` where the gradient lands, if the unit has a place of its own for that.
    pub landing: Option<Tensor>,
}

/// One micro-batch's inputs, in staging or on the device.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// `[tokens]` i32
    pub tokens: Tensor,
    /// `[tokens]` i32
    pub targets: Tensor,
    /// `[tokens]` i32
    pub positions: Tensor,
    /// `[tokens + 1]` i32
    pub cu_seqlens: Tensor,
    /// `[1]` f32
    pub inv_targets: Tensor,
}

impl Inputs {
    fn new(region: RegionId, bump: &mut Bump, tokens: usize) -> Self {
        let mut take = |dtype: DType, elems: usize| {
            Tensor::new(region, bump.take(elems as u64 * dtype.size_bytes()), dtype, [elems])
        };
        Inputs {
            tokens: take(DType::I32, tokens),
            targets: take(DType::I32, tokens),
            positions: take(DType::I32, tokens),
            cu_seqlens: take(DType::I32, tokens + 1),
            inv_targets: take(DType::F32, 1),
        }
    }
}

/// Lanes of the one rank there is today.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    pub h2d: LaneId,
    pub compute: LaneId,
    pub d2h: LaneId,
    pub update: LaneId,
    pub data: LaneId,
}

/// A saved block input with what else its level keeps: offsets from the frame's start.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Offset and size of each tensor; the first is the block input.
    pub parts: Vec<(u64, u64)>,
    /// Total size.
    pub len_bytes: u64,
}

impl Frame {
    pub fn new(model: &Model, level: Activations, tokens: usize, dtype: DType) -> Self {
        let mut bump = Bump::default();
        let stream = (tokens * model.config.hidden) as u64 * dtype.size_bytes();
        let mut parts = vec![(bump.take(stream), stream)];
        for spec in model.block.saved(level, tokens, dtype) {
            let len = spec.shape.elems() * spec.dtype.size_bytes();
            parts.push((bump.take(len), len));
        }
        Frame { parts, len_bytes: bump.total_bytes() }
    }
}

/// A gradient on the device: accumulated in f32, and in the dtype it travels in.
#[derive(Clone, Copy, Debug)]
pub struct GradientSlot {
    /// f32 accumulator.
    pub accumulator: u64,
    /// What is copied to the host; the accumulator itself in f32 mode.
    pub outgoing: u64,
}

/// Offsets in the device heap.
#[derive(Clone, Debug, Default)]
pub struct DeviceMap {
    pub slots: Vec<u64>,
    pub head: u64,
    pub gradients: Vec<GradientSlot>,
    pub head_gradient: Option<GradientSlot>,
    pub inputs: Vec<u64>,
    /// `[block][micro in group]`, for blocks that do not spill.
    pub frames: Vec<Vec<u64>>,
    /// Frames shared by the blocks that spill.
    pub ring: Vec<u64>,
    pub head_x: Vec<u64>,
    pub d: Vec<u64>,
    pub losses: Vec<u64>,
    pub logits: u64,
    pub row_index: u64,
    pub workspace: u64,
    pub weights_bytes: u64,
    pub gradients_bytes: u64,
    pub total_bytes: u64,
    guards: Vec<(String, u64, u64)>,
}

/// Sizes the device map depends on.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub block_elems: u64,
    pub head_elems: u64,
    pub frames: [Frame; 3],
    pub workspace_bytes: [u64; 3],
    pub other_workspace_bytes: u64,
}

impl Sizes {
    pub fn frame(&self, level: Activations) -> &Frame {
        &self.frames[level as usize]
    }
}

impl DeviceMap {
    /// Lays the heap out.
    pub fn new(model: &Model, settings: &Settings, sizes: &Sizes, choice: &Choice) -> Self {
        let (dtype, tokens, group) = (settings.dtype, settings.micro_tokens, choice.group);
        let stream = (tokens * model.config.hidden) as u64 * dtype.size_bytes();
        let mut bump = Bump::default();
        let mut map = DeviceMap::default();
        let mut guard = |name: String, start: u64, end: u64| map.guards.push((name, start, end - start));

        for k in 0..choice.slots {
            let at = bump.take(sizes.block_elems * dtype.size_bytes());
            map.slots.push(at);
            guard(format!("slot_free[{k}]"), at, bump.total_bytes());
        }
        map.head = bump.take(sizes.head_elems * dtype.size_bytes());
        guard("head_slot_free".into(), map.head, bump.total_bytes());
        map.weights_bytes = bump.total_bytes();

        if settings.train {
            let mut slot = |name: String, elems: u64| {
                let accumulator = bump.take(elems * 4);
                let outgoing = if dtype == DType::F32 { accumulator } else { bump.take(elems * dtype.size_bytes()) };
                guard(name, accumulator, bump.total_bytes());
                GradientSlot { accumulator, outgoing }
            };
            map.gradients =
                (0..2.min(model.blocks())).map(|i| slot(format!("gradient_out[{i}]"), sizes.block_elems)).collect();
            map.head_gradient = Some(slot("head_gradient_out".into(), sizes.head_elems));
        }
        map.gradients_bytes = bump.total_bytes() - map.weights_bytes;

        for j in 0..group {
            let start = bump.total_bytes();
            Inputs::new(RegionId(0), &mut bump, tokens);
            map.inputs.push(start);
            guard(format!("device_inputs[{j}]"), start, bump.total_bytes());
        }
        map.row_index = bump.take(4);
        guard("row_index".into(), map.row_index, bump.total_bytes());

        let activations = bump.total_bytes();
        if settings.train {
            for block in &choice.blocks {
                let len = sizes.frame(block.level).len_bytes;
                map.frames.push(if block.spill { Vec::new() } else { (0..group).map(|_| bump.take(len)).collect() });
            }
            let spilled = choice.blocks.iter().filter(|b| b.spill).map(|b| sizes.frame(b.level).len_bytes).max();
            // A layer's micro-batches write the next layer's frames while theirs drain: one in flight each way besides.
            map.ring = spilled.map_or(Vec::new(), |len| (0..group + 2).map(|_| bump.take(len)).collect());
        }
        map.head_x = (0..group).map(|_| bump.take(stream)).collect();
        map.d = (0..group).map(|_| bump.take(stream)).collect();
        map.losses = (0..group).map(|_| bump.take(tokens as u64 * 4)).collect();
        map.logits = bump.take(model.config.vocab as u64 * 4);
        let workspace = choice.blocks.iter().map(|b| sizes.workspace_bytes[b.level as usize]).max().unwrap_or(0);
        map.workspace = bump.take(workspace.max(sizes.other_workspace_bytes));
        guard("activations_free".into(), activations, bump.total_bytes());
        map.total_bytes = bump.total_bytes();
        map
    }
}

/// All memory of a plan.
#[derive(Debug)]
pub struct Memory {
    pub contract: Arc<Contract>,
    pub regions: Vec<PlannedRegion>,
    pub lanes: Lanes,
    pub device_region: RegionId,
    pub device: DeviceMap,
    pub units: Vec<UnitRegions>,
    pub ring: Vec<Tensor>,
    pub inputs: Vec<Inputs>,
    pub rows: Vec<Tensor>,
    pub row_gradients: Vec<Tensor>,
    pub losses: Vec<Tensor>,
    pub loss_sums: Tensor,
    pub parts: Tensor,
    pub verdict: Tensor,
    pub row_index: Tensor,
    pub logits: Tensor,
    pub spill_region: RegionId,
    /// `[block][micro]`: offset of a spilled frame.
    pub spill: Vec<Vec<u64>>,
}

struct Regions {
    contract: Contract,
    regions: Vec<PlannedRegion>,
}

impl Regions {
    fn add(
        &mut self,
        name: impl Into<String>,
        space: Space,
        purpose: Purpose,
        len_bytes: u64,
        defined: bool,
    ) -> RegionId {
        let name = name.into();
        self.regions.push(PlannedRegion { name: name.clone(), purpose, len_bytes });
        self.contract.region(name, space, len_bytes, defined)
    }

    fn guard(&mut self, name: impl Into<String>, spans: &[Span]) {
        self.contract.boundary(name, spans.iter().copied().filter(|s| s.len_bytes > 0).collect());
    }
}

impl Memory {
    /// Lays out all memory.
    pub fn new(model: &Model, settings: &Settings, sizes: &Sizes, choice: &Choice) -> Self {
        let (dtype, tokens, micros) = (settings.dtype, settings.micro_tokens, settings.micro_batches);
        let rank = Rank::default();
        let mut r = Regions { contract: Contract::default(), regions: Vec::new() };
        let lanes = Lanes {
            h2d: r.contract.lane(rank, LaneKind::H2d),
            compute: r.contract.lane(rank, LaneKind::Compute),
            d2h: r.contract.lane(rank, LaneKind::D2h),
            update: r.contract.lane(rank, LaneKind::Update),
            data: r.contract.lane(rank, LaneKind::Data),
        };

        let device = DeviceMap::new(model, settings, sizes, choice);
        let device_region = r.add("device heap", Space::Device(rank), Purpose::DeviceHeap, device.total_bytes, false);
        for (name, start, len) in &device.guards {
            r.guard(name, &[Span::new(device_region, *start, *len)]);
        }

        let mut units = Vec::new();
        for (i, unit) in model.units.iter().enumerate() {
            units.push(Self::unit(&mut r, model, settings, choice, UnitId(i as u32), &unit.layout));
        }

        let mut ring = Vec::new();
        if settings.train && units.iter().any(|u| u.landing.is_none()) {
            let elems = sizes.block_elems.max(sizes.head_elems);
            for k in 0..settings.gradient_ring.max(2) {
                let name = format!("gradient_ring[{k}]");
                let region = r.add(&name, Space::Host, Purpose::Gradients, elems * dtype.size_bytes(), true);
                let slab = Tensor::new(region, 0, dtype, [elems]);
                r.guard(format!("ring_free[{k}]"), &[slab.span]);
                ring.push(slab);
            }
        }

        let (mut inputs, mut rows, mut row_gradients, mut losses) = (vec![], vec![], vec![], vec![]);
        let hidden = model.config.hidden;
        for m in 0..micros {
            let id = RegionId(r.contract.regions.len() as u32);
            let mut bump = Bump::default();
            inputs.push(Inputs::new(id, &mut bump, tokens));
            r.add(format!("inputs[{m}]"), Space::Host, Purpose::Staging, bump.total_bytes(), false);
            r.guard(format!("inputs_free[{m}]"), &[Span::new(id, 0, bump.total_bytes())]);
            let mut stage = |name: &str, dtype: DType, shape: &[usize]| {
                let dims: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
                let len = dims.iter().product::<u64>() * dtype.size_bytes();
                let region = r.add(format!("{name}[{m}]"), Space::Host, Purpose::Staging, len, false);
                r.guard(format!("{name}_free[{m}]"), &[Span::new(region, 0, len)]);
                Tensor::new(region, 0, dtype, megatrain_base::Shape::new(&dims))
            };
            rows.push(stage("embedding_rows", dtype, &[tokens, hidden]));
            losses.push(stage("losses", DType::F32, &[tokens]));
            if settings.train {
                row_gradients.push(stage("embedding_row_gradients", dtype, &[tokens, hidden]));
            }
        }

        let unit_count = model.units.len();
        let mut bump = Bump::default();
        let id = RegionId(r.contract.regions.len() as u32);
        let mut cell = |dtype: DType, shape: &[u64]| {
            let len = shape.iter().product::<u64>() * dtype.size_bytes();
            Tensor::new(id, bump.take(len), dtype, megatrain_base::Shape::new(shape))
        };
        let loss_sums = cell(DType::F64, &[micros as u64]);
        let parts = cell(DType::F64, &[unit_count as u64, 2]);
        let verdict = cell(DType::F64, &[2]);
        let row_index = cell(DType::I32, &[1]);
        let logits = cell(DType::F32, &[1, model.config.vocab as u64]);
        // Defined at entry: a verdict reads the parts of units that a partial program does not touch as zeros.
        r.add("cells", Space::Host, Purpose::Staging, bump.total_bytes(), true);
        r.guard("loss_sums_free", &[loss_sums.span]);
        r.guard("verdict_free", &[parts.span, verdict.span]);
        r.guard("sampling_free", &[row_index.span, logits.span]);

        let mut spill_bump = Bump::default();
        let spill: Vec<Vec<u64>> = choice
            .blocks
            .iter()
            .map(|b| {
                let count = if b.spill && settings.train { micros } else { 0 };
                (0..count).map(|_| spill_bump.take(sizes.frame(b.level).len_bytes)).collect()
            })
            .collect();
        let spill_region = r.add("spilled activations", Space::Host, Purpose::Spill, spill_bump.total_bytes(), false);
        r.guard("spill_free", &[Span::new(spill_region, 0, spill_bump.total_bytes())]);

        Memory {
            contract: Arc::new(r.contract),
            regions: r.regions,
            lanes,
            device_region,
            device,
            units,
            ring,
            inputs,
            rows,
            row_gradients,
            losses,
            loss_sums,
            parts,
            verdict,
            row_index,
            logits,
            spill_region,
            spill,
        }
    }

    fn unit(
        r: &mut Regions,
        model: &Model,
        settings: &Settings,
        choice: &Choice,
        id: UnitId,
        layout: &SlabLayout,
    ) -> UnitRegions {
        let (elems, dtype, i) = (layout.len_elems(), settings.dtype, id.0);
        let region = r.add(format!("weights[{i}]"), Space::Host, Purpose::Weights, elems * dtype.size_bytes(), true);
        let weights = Tensor::new(region, 0, dtype, [elems]);
        let trained = if settings.train { elems } else { 0 };
        let low_elems = if dtype == DType::F32 { 0 } else { trained };
        let mut bump = Bump::default();
        let state = RegionId(r.contract.regions.len() as u32);
        let m = Tensor::new(state, bump.take(trained * 4), DType::F32, [trained]);
        let v = Tensor::new(state, bump.take(trained * 4), DType::F32, [trained]);
        let low = Tensor::new(state, bump.take(low_elems * 2), DType::U16, [low_elems]);
        r.add(format!("state[{i}]"), Space::Host, Purpose::OptimizerState, bump.total_bytes(), true);
        r.guard(format!("updated[{i}]"), &[weights.span, Span::new(state, 0, bump.total_bytes())]);

        let embedding = id == model.embedding_unit();
        let mut slab = |name: &str, dtype: DType| {
            let region =
                r.add(format!("{name}[{i}]"), Space::Host, Purpose::Gradients, elems * dtype.size_bytes(), true);
            r.guard(format!("{name}_free[{i}]"), &[Span::new(region, 0, elems * dtype.size_bytes())]);
            Tensor::new(region, 0, dtype, [elems])
        };
        let sum = (settings.train && (embedding || choice.group < settings.micro_batches))
            .then(|| slab("gradient_sum", DType::F32));
        let landing = match sum {
            // A single f32 gradient lands in the sum itself.
            Some(sum) => (dtype == DType::F32 && choice.group >= settings.micro_batches).then_some(sum),
            None => (settings.train && settings.update == UpdatePolicy::AfterNorm).then(|| slab("gradient", dtype)),
        };
        UnitRegions { weights, low, m, v, sum, landing }
    }

    /// The device's view of inputs `j`.
    pub fn device_inputs(&self, j: usize, tokens: usize) -> Inputs {
        let host = &self.inputs[0];
        let base = self.device.inputs[j];
        let place =
            |t: &Tensor, elems: usize| Tensor::new(self.device_region, base + t.span.offset_bytes, t.dtype, [elems]);
        Inputs {
            tokens: place(&host.tokens, tokens),
            targets: place(&host.targets, tokens),
            positions: place(&host.positions, tokens),
            cu_seqlens: place(&host.cu_seqlens, tokens + 1),
            inv_targets: place(&host.inv_targets, 1),
        }
    }
}

/// Contiguous runs of a layout's tensors, in elements: padding is never computed, so it is never copied.
pub fn runs(layout: &SlabLayout) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for t in &layout.tensors {
        match runs.last_mut() {
            Some((start, len)) if *start + *len == t.offset_elems => *len += t.shape.elems(),
            _ => runs.push((t.offset_elems, t.shape.elems())),
        }
    }
    runs
}
