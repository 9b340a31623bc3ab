//! One template's ops on symbolic regions, with its temporaries placed: made once, bound to addresses for every layer
//! and micro-batch.

use crate::heap::{Lifetime, place};
use crate::model::Model;
use megatrain_base::{DType, RegionId, SlabLayout, Tensor};
use megatrain_layers::{Activations, Emitter, TokenCtx};
use megatrain_ops::Op;
use std::collections::HashMap;

/// The symbolic regions a template's operands lie in. Weights and gradients lie at their slab offsets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Role {
    /// The unit's weights.
    Weights,
    /// The unit's f32 gradient accumulator.
    Gradients,
    /// Block input.
    X,
    /// Block output.
    Y,
    /// Gradient of the residual stream.
    D,
    /// Positions.
    Positions,
    /// Document borders.
    CuSeqlens,
    /// Targets.
    Targets,
    /// Reciprocal of the number of targets.
    InvTargets,
    /// Losses per row.
    Losses,
    /// Which row's logits are wanted.
    RowIndex,
    /// Logits for the host.
    Logits,
    /// Temporaries.
    Workspace,
}

const SAVED: u32 = 32;
const TEMPS: u32 = 64;

/// The addresses a template's symbolic regions are bound to.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    places: HashMap<RegionId, (RegionId, u64)>,
}

impl Binding {
    /// Binds a role.
    pub fn bind(mut self, role: Role, region: RegionId, offset_bytes: u64) -> Self {
        self.places.insert(RegionId(role as u32), (region, offset_bytes));
        self
    }

    /// Binds the saved tensor `index`.
    pub fn bind_saved(mut self, index: usize, region: RegionId, offset_bytes: u64) -> Self {
        self.places.insert(RegionId(SAVED + index as u32), (region, offset_bytes));
        self
    }
}

/// Ops with placed temporaries.
#[derive(Debug)]
pub struct Emission {
    ops: Vec<Op>,
    /// Bytes of temporaries.
    pub workspace_bytes: u64,
}

impl Emission {
    /// The ops at real addresses.
    pub fn bind<'a>(&'a self, binding: &'a Binding) -> impl Iterator<Item = Op> + 'a {
        self.ops.iter().map(|op| {
            let mut op = *op;
            op.map(&mut |t: &mut Tensor| {
                let (region, base) = *binding
                    .places
                    .get(&t.span.region)
                    .unwrap_or_else(|| panic!("template operand {t} has no address"));
                *t = t.at(region, base + t.span.offset_bytes);
            });
            op
        })
    }

    /// Floating-point operations.
    pub fn flops(&self) -> f64 {
        self.ops.iter().map(|op| op.work().flops).sum()
    }

    fn new(emitter: Emitter) -> Self {
        let mut ops = emitter.ops;
        let mut lives: Vec<(RegionId, Lifetime)> = Vec::new();
        for (i, op) in ops.iter().enumerate() {
            for (t, _) in op.operands() {
                if t.span.region.0 < TEMPS {
                    continue;
                }
                // From the latest on: a chunked template has thousands, each used at once.
                match lives.iter_mut().rev().find(|(region, _)| *region == t.span.region) {
                    Some((_, life)) => {
                        life.last = i;
                        life.len_bytes = life.len_bytes.max(t.span.end_bytes());
                    }
                    None => lives.push((t.span.region, Lifetime { first: i, last: i, len_bytes: t.span.end_bytes() })),
                }
            }
        }
        let (offsets, workspace_bytes) = place(&lives.iter().map(|(_, life)| *life).collect::<Vec<_>>());
        let places: HashMap<RegionId, u64> = lives.iter().zip(&offsets).map(|((r, _), &o)| (*r, o)).collect();
        for op in &mut ops {
            op.map(&mut |t: &mut Tensor| {
                if let Some(offset) = places.get(&t.span.region) {
                    *t = t.at(RegionId(Role::Workspace as u32), offset + t.span.offset_bytes);
                }
            });
        }
        Emission { ops, workspace_bytes }
    }
}

/// Emits templates for one model, dtype and token count.
#[derive(Clone, Copy, Debug)]
pub struct Templates<'a> {
    /// The model.
    pub model: &'a Model,
    /// Compute dtype.
    pub dtype: DType,
    /// Tokens in the micro-batch.
    pub tokens: usize,
    /// Rows of logits alive at once.
    pub logits_rows: usize,
}

impl Templates<'_> {
    fn at(role: Role, dtype: DType, shape: &[usize]) -> Tensor {
        let dims: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
        Tensor::new(RegionId(role as u32), 0, dtype, megatrain_base::Shape::new(&dims))
    }

    fn stream(&self, role: Role) -> Tensor {
        Self::at(role, self.dtype, &[self.tokens, self.model.config.hidden])
    }

    fn ctx(&self) -> TokenCtx {
        TokenCtx {
            tokens: self.tokens,
            positions: Self::at(Role::Positions, DType::I32, &[self.tokens]),
            cu_seqlens: Self::at(Role::CuSeqlens, DType::I32, &[self.tokens + 1]),
            dtype: self.dtype,
        }
    }

    fn slab(layout: &SlabLayout, role: Role, dtype: DType) -> Vec<Tensor> {
        layout.tensors.iter().map(|t| t.place(RegionId(role as u32), 0, dtype)).collect()
    }

    fn saved(&self, level: Activations) -> Vec<Tensor> {
        let specs = self.model.block.saved(level, self.tokens, self.dtype);
        assert!(specs.len() as u32 <= TEMPS - SAVED, "too many saved tensors");
        specs.iter().enumerate().map(|(i, s)| Tensor::new(RegionId(SAVED + i as u32), 0, s.dtype, s.shape)).collect()
    }

    /// A block's forward pass.
    pub fn block_forward(&self, level: Activations) -> Emission {
        let layout = self.model.block.layout(0);
        let mut e = Emitter::new(TEMPS);
        self.model.block.forward(
            &mut e,
            &self.ctx(),
            &Self::slab(&layout, Role::Weights, self.dtype),
            self.stream(Role::X),
            self.stream(Role::Y),
            level,
            &self.saved(level),
        );
        Emission::new(e)
    }

    /// A block's backward pass, what the level dropped computed again.
    pub fn block_backward(&self, level: Activations, accumulate: bool) -> Emission {
        let layout = self.model.block.layout(0);
        let mut e = Emitter::new(TEMPS);
        self.model.block.backward(
            &mut e,
            &self.ctx(),
            &Self::slab(&layout, Role::Weights, self.dtype),
            &Self::slab(&layout, Role::Gradients, DType::F32),
            accumulate,
            self.stream(Role::X),
            self.stream(Role::D),
            level,
            &self.saved(level),
        );
        Emission::new(e)
    }

    fn head_tensors(&self, role: Role, dtype: DType) -> (Tensor, Tensor) {
        let unit = self.model.unit(self.model.head_unit());
        let tensors = Self::slab(&unit.layout, role, dtype);
        let index = |i: Option<usize>| i.expect("the head unit has a norm and a projection");
        (tensors[index(unit.kind.final_norm())], tensors[index(unit.kind.projection())])
    }

    /// Final norm, head, loss and their backward.
    pub fn loss_backward(&self, accumulate: bool) -> Emission {
        let (norm_w, head_w) = self.head_tensors(Role::Weights, self.dtype);
        let (norm_g, head_g) = self.head_tensors(Role::Gradients, DType::F32);
        let mut e = Emitter::new(TEMPS);
        self.model.head.loss_backward(
            &mut e,
            &self.ctx(),
            norm_w,
            head_w,
            norm_g,
            head_g,
            accumulate,
            self.stream(Role::X),
            Self::at(Role::Targets, DType::I32, &[self.tokens]),
            Self::at(Role::InvTargets, DType::F32, &[1]),
            Self::at(Role::Losses, DType::F32, &[self.tokens]),
            self.stream(Role::D),
            self.logits_rows,
        );
        Emission::new(e)
    }

    /// Final norm, head and loss.
    pub fn loss(&self) -> Emission {
        let (norm_w, head_w) = self.head_tensors(Role::Weights, self.dtype);
        let mut e = Emitter::new(TEMPS);
        self.model.head.loss(
            &mut e,
            &self.ctx(),
            norm_w,
            head_w,
            self.stream(Role::X),
            Self::at(Role::Targets, DType::I32, &[self.tokens]),
            Self::at(Role::Losses, DType::F32, &[self.tokens]),
            self.logits_rows,
        );
        Emission::new(e)
    }

    /// Logits of one chosen row.
    pub fn logits(&self) -> Emission {
        let (norm_w, head_w) = self.head_tensors(Role::Weights, self.dtype);
        let mut e = Emitter::new(TEMPS);
        self.model.head.logits(
            &mut e,
            &self.ctx(),
            norm_w,
            head_w,
            self.stream(Role::X),
            Self::at(Role::RowIndex, DType::I32, &[1]),
            Self::at(Role::Logits, DType::F32, &[1, self.model.config.vocab]),
        );
        Emission::new(e)
    }
}
