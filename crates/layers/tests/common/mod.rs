//! Runs emitted ops with their reference twins over symbolic regions: no planner, no executor, no device.

#![allow(dead_code)] // each test binary uses a part

use megatrain_base::{Access, DType, RegionId, SlabLayout, Tensor};
use megatrain_layers::{
    Activations, Block, Emitter, Head, Init, ModelConfig, Op, TokenCtx, UnitKind, block_for, units,
};
use megatrain_ops::{Real, RefIo};
use std::collections::HashMap;

/// Values by region. A region holds elements of one dtype; what was never written is NaN.
#[derive(Clone, Default)]
pub struct Memory<R> {
    reals: HashMap<RegionId, Vec<R>>,
    ints: HashMap<RegionId, Vec<i32>>,
}

fn range(t: &Tensor) -> std::ops::Range<usize> {
    let start = (t.span.offset_bytes / t.dtype.size_bytes()) as usize;
    start..start + t.elems()
}

impl<R: Real> Memory<R> {
    pub fn new() -> Self {
        Memory { reals: HashMap::new(), ints: HashMap::new() }
    }

    /// Writes values; bf16 tensors round them.
    pub fn put(&mut self, t: &Tensor, values: &[R]) {
        let (at, region) = (range(t), self.reals.entry(t.span.region).or_default());
        if region.len() < at.end {
            region.resize(at.end, R::of(f64::NAN));
        }
        assert_eq!(values.len(), at.len(), "{t}");
        region[at].iter_mut().zip(values).for_each(|(place, value)| *place = value.held_in(t.dtype));
    }

    pub fn put_ints(&mut self, t: &Tensor, values: &[i32]) {
        assert_eq!((values.len(), range(t).start), (t.elems(), 0), "{t}");
        self.ints.insert(t.span.region, values.to_vec());
    }

    pub fn get(&self, t: &Tensor) -> Vec<R> {
        self.reals.get(&t.span.region).unwrap_or_else(|| panic!("{t} was never written"))[range(t)].to_vec()
    }

    /// Runs ops in order. Reading what nobody wrote is an error; temporaries of earlier runs are forgotten.
    pub fn run(&mut self, ops: &[Op]) {
        self.reals.retain(|region, _| region.0 < TEMPS);
        for op in ops {
            let mut io = RefIo::new();
            for (t, _) in op.operands().iter().filter(|(_, access)| access.reads()) {
                if t.dtype == DType::I32 {
                    io.set_ints(t, self.ints[&t.span.region][range(t)].to_vec());
                } else {
                    let values = self.get(t);
                    assert!(values.iter().all(|v| !v.f64().is_nan()), "{} reads unwritten {t}", op.name());
                    io.set(t, values);
                }
            }
            op.reference(&mut io);
            for (t, _) in op.operands().iter().filter(|(_, access)| access.writes()) {
                self.put(t, &io.get(t));
            }
        }
    }
}

/// Deterministic normal values (sum of 12 uniforms).
pub struct Random(pub u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
    pub fn normal(&mut self, n: usize, mean: f64, std: f64) -> Vec<f64> {
        (0..n).map(|_| mean + std * ((0..12).map(|_| self.uniform()).sum::<f64>() - 6.0)).collect()
    }
}

pub fn reals<R: Real>(values: &[f64]) -> Vec<R> {
    values.iter().map(|&v| R::of(v)).collect()
}

pub fn f64s<R: Real>(values: &[R]) -> Vec<f64> {
    values.iter().map(|v| v.f64()).collect()
}

/// Places a layout's tensors in a region.
pub fn place(layout: &SlabLayout, region: u32, dtype: DType) -> Vec<Tensor> {
    layout.tensors.iter().map(|t| t.place(RegionId(region), 0, dtype)).collect()
}

/// Weights that make every gradient count: norms around 1, everything else around 0, nothing exactly either.
pub fn random_weights(layout: &SlabLayout, inits: &[Init], random: &mut Random) -> Vec<Vec<f64>> {
    assert_eq!(layout.tensors.len(), inits.len(), "an init for each tensor");
    let tensors = layout.tensors.iter().zip(inits);
    tensors
        .map(|(t, init)| random.normal(t.shape.elems() as usize, if *init == Init::Ones { 1.0 } else { 0.0 }, 0.3))
        .collect()
}

const POSITIONS: u32 = 1;
const CU_SEQLENS: u32 = 2;
const TARGETS: u32 = 3;
const INV_TARGETS: u32 = 4;
const LOSSES: u32 = 5;
const D: u32 = 6;
const LOGITS: u32 = 7;
const ROWS: u32 = 8;
const X: u32 = 1_000;
const SAVED: u32 = 2_000;
const WEIGHTS: u32 = 3_000;
const GRADS: u32 = 4_000;
const TEMPS: u32 = 10_000;

/// Packed documents in memory.
pub fn token_ctx<R: Real>(memory: &mut Memory<R>, documents: &[usize], dtype: DType) -> TokenCtx {
    let tokens: usize = documents.iter().sum();
    let positions = Tensor::new(RegionId(POSITIONS), 0, DType::I32, [tokens]);
    memory.put_ints(&positions, &documents.iter().flat_map(|&n| 0..n as i32).collect::<Vec<_>>());
    let cu_seqlens = Tensor::new(RegionId(CU_SEQLENS), 0, DType::I32, [documents.len() + 1]);
    let mut borders = vec![0];
    documents.iter().for_each(|&n| borders.push(borders.last().unwrap() + n as i32));
    memory.put_ints(&cu_seqlens, &borders);
    TokenCtx { tokens, positions, cu_seqlens, dtype }
}

/// One block with its buffers.
pub struct BlockRun<R> {
    pub memory: Memory<R>,
    pub block: Box<dyn Block>,
    pub ctx: TokenCtx,
    pub weights: Vec<Tensor>,
    pub grads: Vec<Tensor>,
    pub x: Tensor,
    pub y: Tensor,
    pub d: Tensor,
}

impl<R: Real> BlockRun<R> {
    /// Random weights and input; `d` holds random values, as if dL/dy.
    pub fn new(config: &ModelConfig, documents: &[usize], dtype: DType) -> Self {
        let (mut memory, mut random) = (Memory::new(), Random(7));
        let block = block_for(config);
        let ctx = token_ctx(&mut memory, documents, dtype);
        let layout = block.layout(0);
        let weights = place(&layout, WEIGHTS, dtype);
        for (t, values) in weights.iter().zip(random_weights(&layout, &block.inits(), &mut random)) {
            memory.put(t, &reals(&values));
        }
        let stream = |region| Tensor::new(RegionId(region), 0, dtype, [ctx.tokens, config.hidden]);
        let (x, y, d) = (stream(X), stream(X + 1), stream(D));
        memory.put(&x, &reals(&random.normal(x.elems(), 0.0, 1.0)));
        memory.put(&d, &reals(&random.normal(d.elems(), 0.0, 1.0)));
        BlockRun { memory, block, ctx, weights, grads: place(&layout, GRADS, DType::F32), x, y, d }
    }

    pub fn saved(&self, level: Activations) -> Vec<Tensor> {
        let specs = self.block.saved(level, self.ctx.tokens, self.ctx.dtype);
        let regions = SAVED..;
        regions.zip(specs).map(|(region, s)| Tensor::new(RegionId(region), 0, s.dtype, s.shape)).collect()
    }

    /// Runs the forward pass and returns its ops.
    pub fn forward(&mut self, level: Activations) -> Vec<Op> {
        let mut e = Emitter::new(TEMPS);
        self.block.forward(&mut e, &self.ctx, &self.weights, self.x, self.y, level, &self.saved(level));
        self.memory.run(&e.ops);
        e.ops
    }

    pub fn backward_ops(&self, level: Activations, accumulate: bool) -> Emitter {
        let mut e = Emitter::new(TEMPS);
        let saved = self.saved(level);
        let (w, g) = (&self.weights, &self.grads);
        self.block.backward(&mut e, &self.ctx, w, g, accumulate, self.x, self.d, level, &saved);
        e
    }

    /// Runs the backward pass and returns its ops.
    pub fn backward(&mut self, level: Activations, accumulate: bool) -> Vec<Op> {
        let e = self.backward_ops(level, accumulate);
        self.memory.run(&e.ops);
        e.ops
    }
}

/// A whole model, weights and gradients of all units in memory.
pub struct ModelRun<R> {
    pub memory: Memory<R>,
    pub config: ModelConfig,
    pub weights: Vec<Vec<Tensor>>,
    pub grads: Vec<Vec<Tensor>>,
    pub names: Vec<Vec<String>>,
    head_unit: usize,
    norm_index: usize,
    projection_index: usize,
}

impl<R: Real> ModelRun<R> {
    pub fn new(config: &ModelConfig, values: impl Fn(&str) -> Vec<f64>) -> Self {
        let (units, mut memory) = (units(config), Memory::new());
        let (mut weights, mut grads, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (u, unit) in units.iter().enumerate() {
            let placed = place(&unit.layout, WEIGHTS + u as u32, DType::F32);
            for (t, spec) in placed.iter().zip(&unit.layout.tensors) {
                memory.put(t, &reals(&values(&spec.name)));
            }
            weights.push(placed);
            grads.push(place(&unit.layout, GRADS + u as u32, DType::F32));
            names.push(unit.layout.tensors.iter().map(|t| t.name.clone()).collect());
        }
        let head_unit = units.iter().position(|u| u.kind.final_norm().is_some()).unwrap();
        let kind = units[head_unit].kind;
        let (norm_index, projection_index) = (kind.final_norm().unwrap(), kind.projection().unwrap());
        ModelRun { memory, config: config.clone(), weights, grads, names, head_unit, norm_index, projection_index }
    }

    fn stream(&self, region: u32, tokens: usize) -> Tensor {
        Tensor::new(RegionId(region), 0, DType::F32, [tokens, self.config.hidden])
    }

    /// Embedding and blocks; returns the contexts and the last block's output.
    fn blocks(&mut self, ids: &[i32], documents: &[usize], level: Activations) -> (TokenCtx, Vec<Vec<Tensor>>, Tensor) {
        let ctx = token_ctx(&mut self.memory, documents, DType::F32);
        let table = self.memory.get(&self.weights[0][UnitKind::EMBED]);
        let width = self.config.hidden;
        let rows: Vec<R> = ids.iter().flat_map(|&id| table[id as usize * width..][..width].to_vec()).collect();
        self.memory.put(&self.stream(X, ctx.tokens), &rows);
        let (block, mut saved) = (block_for(&self.config), Vec::<Vec<Tensor>>::new());
        for l in 0..self.config.layers {
            let specs = block.saved(level, ctx.tokens, ctx.dtype);
            let region = |i: usize| RegionId(SAVED + 10 * l as u32 + i as u32);
            saved.push(specs.iter().enumerate().map(|(i, s)| Tensor::new(region(i), 0, s.dtype, s.shape)).collect());
            let (x, y) = (self.stream(X + l as u32, ctx.tokens), self.stream(X + l as u32 + 1, ctx.tokens));
            let mut e = Emitter::new(TEMPS);
            block.forward(&mut e, &ctx, &self.weights[l + 1], x, y, level, saved.last().unwrap());
            self.memory.run(&e.ops);
        }
        (ctx, saved, self.stream(X + self.config.layers as u32, ctx.tokens))
    }

    fn head(&self) -> (Tensor, Tensor) {
        (self.weights[self.head_unit][self.norm_index], self.weights[self.head_unit][self.projection_index])
    }

    /// Logits of the named rows.
    pub fn logits(&mut self, ids: &[i32], documents: &[usize], rows: &[i32]) -> Vec<R> {
        let (ctx, _, x) = self.blocks(ids, documents, Activations::Recompute);
        let (norm, head) = self.head();
        let index = Tensor::new(RegionId(ROWS), 0, DType::I32, [rows.len()]);
        self.memory.put_ints(&index, rows);
        let logits = Tensor::new(RegionId(LOGITS), 0, DType::F32, [rows.len(), self.config.vocab]);
        let mut e = Emitter::new(TEMPS);
        Head::new(&self.config).logits(&mut e, &ctx, norm, head, x, index, logits);
        self.memory.run(&e.ops);
        self.memory.get(&logits)
    }

    /// Losses of each token, without gradients.
    pub fn losses(&mut self, ids: &[i32], targets: &[i32], documents: &[usize], chunk_rows: usize) -> Vec<R> {
        let (ctx, _, x) = self.blocks(ids, documents, Activations::Recompute);
        let (norm, head) = self.head();
        let (targets, losses) = self.loss_buffers(targets);
        let mut e = Emitter::new(TEMPS);
        Head::new(&self.config).loss(&mut e, &ctx, norm, head, x, targets, losses, chunk_rows);
        self.memory.run(&e.ops);
        self.memory.get(&losses)
    }

    fn loss_buffers(&mut self, targets: &[i32]) -> (Tensor, Tensor) {
        let at = Tensor::new(RegionId(TARGETS), 0, DType::I32, [targets.len()]);
        self.memory.put_ints(&at, targets);
        (at, Tensor::new(RegionId(LOSSES), 0, DType::F32, [targets.len()]))
    }

    /// Forward and backward of a micro-batch of a step with `step_targets` targets; returns the losses of each token.
    #[allow(clippy::too_many_arguments)]
    pub fn step(
        &mut self,
        ids: &[i32],
        targets: &[i32],
        documents: &[usize],
        step_targets: usize,
        level: Activations,
        chunk_rows: usize,
        accumulate: bool,
    ) -> Vec<R> {
        let (ctx, saved, x) = self.blocks(ids, documents, level);
        let (norm, head) = self.head();
        let (norm_g, head_g) =
            (self.grads[self.head_unit][self.norm_index], self.grads[self.head_unit][self.projection_index]);
        let (targets, losses) = self.loss_buffers(targets);
        let inv_targets = Tensor::new(RegionId(INV_TARGETS), 0, DType::F32, [1usize]);
        self.memory.put(&inv_targets, &[R::of(1.0) / R::of(step_targets as f64)]);
        let d = self.stream(D, ctx.tokens);
        let mut e = Emitter::new(TEMPS);
        let h = Head::new(&self.config);
        #[rustfmt::skip]
        h.loss_backward(&mut e, &ctx, norm, head, norm_g, head_g, accumulate, x, targets, inv_targets, losses, d, chunk_rows);
        self.memory.run(&e.ops);
        let block = block_for(&self.config);
        for l in (0..self.config.layers).rev() {
            let x = self.stream(X + l as u32, ctx.tokens);
            let mut e = Emitter::new(TEMPS);
            let (w, g) = (&self.weights[l + 1], &self.grads[l + 1]);
            block.backward(&mut e, &ctx, w, g, accumulate, x, d, level, &saved[l]);
            self.memory.run(&e.ops);
        }
        // The embedding's gradient: rows of d added up by token; a tied table has the head's gradient already.
        let (table, width) = (self.grads[0][UnitKind::EMBED], self.config.hidden);
        let mut gradient =
            if accumulate || self.config.tied { self.memory.get(&table) } else { vec![R::of(0.0); table.elems()] };
        let d = self.memory.get(&d);
        for (t, &id) in ids.iter().enumerate() {
            for j in 0..width {
                gradient[id as usize * width + j] += d[t * width + j];
            }
        }
        self.memory.put(&table, &gradient);
        self.memory.get(&losses)
    }

    /// `(name, weight, gradient)` of every tensor.
    pub fn tensors(&self) -> Vec<(String, Tensor, Tensor)> {
        let names = self.names.iter().flatten().cloned();
        let places = self.weights.iter().flatten().zip(self.grads.iter().flatten());
        names.zip(places).map(|(name, (w, g))| (name, *w, *g)).collect()
    }
}

/// Peak bytes of the temporaries of a list of ops when each lives from its first use to its last.
pub fn peak_temp_bytes(e: &Emitter) -> u64 {
    let uses = |t: &Tensor, op: &Op| op.operands().iter().any(|(o, _)| o.span.region == t.span.region);
    let lives: Vec<(usize, usize, u64)> = e
        .temps()
        .iter()
        .filter_map(|t| {
            let first = e.ops.iter().position(|op| uses(t, op))?;
            Some((first, e.ops.iter().rposition(|op| uses(t, op))?, t.span.len_bytes))
        })
        .collect();
    let live = |i: usize| lives.iter().filter(|(a, b, _)| (*a..=*b).contains(&i)).map(|l| l.2).sum();
    (0..e.ops.len()).map(live).max().unwrap_or(0)
}

/// Tiny configurations, one a flavour of the dense block.
pub fn flavours() -> Vec<(&'static str, ModelConfig)> {
    let base = ModelConfig {
        hidden: 12,
        intermediate: 10,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        vocab: 11,
        ..ModelConfig::preset("llama-2-7b").unwrap()
    };
    let of = |model_type: &str, c: ModelConfig| ModelConfig { model_type: model_type.into(), ..c };
    let llama3 = ModelConfig::preset("llama-3.1-8b").unwrap().rope;
    vec![
        ("llama3 rope", ModelConfig { rope: llama3, ..base.clone() }),
        ("every bias", ModelConfig { qkv_bias: true, o_bias: true, mlp_bias: true, ..base.clone() }),
        ("mistral, no grouping", of("mistral", ModelConfig { kv_heads: 2, ..base.clone() })),
        ("qwen2", of("qwen2", ModelConfig { qkv_bias: true, ..base.clone() })),
        ("qwen3", of("qwen3", ModelConfig { qk_norm: true, head_dim: 24, ..base.clone() })),
        ("qwen3 with biases", of("qwen3", ModelConfig { qk_norm: true, qkv_bias: true, o_bias: true, ..base })),
    ]
}

/// Whether any op writes a byte of `t`.
pub fn writes(ops: &[Op], t: &Tensor) -> bool {
    let hits = |(o, access): &(Tensor, Access)| access.writes() && o.span.overlaps(&t.span);
    ops.iter().any(|op| op.operands().iter().any(hits))
}
