//! Weights into a plan's memory and out of it: from a model directory, from a seed, to a model directory.

use crate::init::TensorInit;
use crate::session::{Memory, Session};
use anyhow::{Context, Result};
use megatrain_base::{DType, Operands, SlabTensor, Tensor, UnitId, bf16, master};
use megatrain_checkpoint::{Alias, Expected, ExportPlan, ExportTensor, FloatDType, MAX_SHARD_BYTES, ModelDir};
use megatrain_layers::Init;
use megatrain_planner::{Model, Plan};
use serde_json::Value;
use std::path::Path;

/// What a model directory must hold.
pub fn expected(model: &Model) -> Vec<Expected> {
    let tensors = model.units.iter().flat_map(|u| &u.layout.tensors);
    tensors.map(|t| Expected::new(&t.name, t.shape.dims())).collect()
}

/// Names that repeat another tensor in directories of tied models.
pub fn aliases(model: &Model) -> Vec<Alias> {
    if !model.config.tied {
        return Vec::new();
    }
    let unit = model.unit(model.embedding_unit());
    vec![Alias {
        name: "lm_head.weight".into(),
        of: unit.layout.tensors[megatrain_layers::UnitKind::EMBED].name.clone(),
    }]
}

/// One tensor's place: the streamed weight and, in a split plan for training, its low half.
fn places(plan: &Plan, unit: UnitId, tensor: &SlabTensor) -> (Tensor, Option<Tensor>) {
    let regions = plan.unit(unit);
    let place = |slab: &Tensor| tensor.place(slab.span.region, slab.span.offset_bytes, slab.dtype);
    (place(&regions.weights), (regions.low.elems() > 0).then(|| place(&regions.low)))
}

fn for_each_tensor(
    memory: &mut Memory,
    mut fill: impl FnMut(u64, &SlabTensor, Init, Filler<'_>) -> Result<()>,
) -> Result<()> {
    let plan = memory.plan().clone();
    let mut index = 0;
    for (u, unit) in plan.model.units.iter().enumerate() {
        for (tensor, init) in unit.layout.tensors.iter().zip(&unit.inits) {
            let (weight, low) = places(&plan, UnitId(u as u32), tensor);
            let spans: Vec<_> = [Some(weight), low].into_iter().flatten().map(|t| t.span).collect();
            let operands = memory.operands(&spans);
            fill(index, tensor, *init, Filler { operands, weight, low })?;
            index += 1;
        }
    }
    Ok(())
}

/// The memory of one tensor.
struct Filler<'a> {
    operands: Operands<'a>,
    weight: Tensor,
    low: Option<Tensor>,
}

impl Filler<'_> {
    /// Hands the memory out as f32 masters, or as halves.
    fn fill(
        self,
        f32: impl FnOnce(&mut [f32]) -> Result<()>,
        split: impl FnOnce(&mut [u16], &mut [u16]) -> Result<()>,
    ) -> Result<()> {
        use half::slice::HalfFloatSliceExt;
        if self.weight.dtype == DType::F32 {
            return f32(self.operands.write(&self.weight));
        }
        let hi = self.operands.write::<bf16>(&self.weight).reinterpret_cast_mut();
        match self.low {
            Some(low) => split(hi, self.operands.write(&low)),
            None => split(hi, &mut vec![0; self.weight.elems()]),
        }
    }
}

/// Reads all weights of a model directory that was checked.
///
/// # Errors
/// Names the file and the tensor.
pub fn load(memory: &mut Memory, dir: &ModelDir) -> Result<()> {
    let progress = crate::progress::bar(memory.plan().model.params(), "loading weights");
    for_each_tensor(memory, |_, tensor, _, filler| {
        filler.fill(|w| Ok(dir.read_f32(&tensor.name, w)?), |hi, lo| Ok(dir.read_split(&tensor.name, hi, lo)?))?;
        progress.inc(tensor.shape.elems());
        Ok(())
    })?;
    progress.finish_and_clear();
    Ok(())
}

/// Fills all weights from a seed: normal values, ones or zeros, as each tensor's template says.
///
/// # Errors
/// None today; the signature is that of [`load`].
pub fn random(memory: &mut Memory, seed: u64) -> Result<()> {
    let progress = crate::progress::bar(memory.plan().model.params(), "random weights");
    for_each_tensor(memory, |index, tensor, init, filler| {
        let init = TensorInit { seed, tensor: index, init };
        filler.fill(
            |weights| {
                init.fill_f32(weights);
                Ok(())
            },
            |hi, lo| {
                init.fill_split(hi, lo);
                Ok(())
            },
        )?;
        progress.inc(tensor.shape.elems());
        Ok(())
    })?;
    progress.finish_and_clear();
    Ok(())
}

/// Files for an export beside weights and configuration.
pub type Extras = Vec<(String, Vec<u8>)>;

/// Names the type in a configuration, by whichever of its two keys is there.
fn name_dtype(config: &mut Value, dtype: FloatDType) {
    let Some(config) = config.as_object_mut() else { return };
    let named: Vec<&str> = ["dtype", "torch_dtype"].into_iter().filter(|key| config.contains_key(*key)).collect();
    for key in if named.is_empty() { vec!["torch_dtype"] } else { named } {
        config.insert(key.to_owned(), dtype.config_name().into());
    }
}

/// Writes a model directory from the masters, laid out as `source` or afresh; in `dtype`, or else in the source's types, or f32.
///
/// # Errors
/// What cannot be written; the previous directory is kept then.
pub fn export(
    session: &Session,
    out: &Path,
    source: Option<&ModelDir>,
    config: &Value,
    dtype: Option<FloatDType>,
    extras: Extras,
) -> Result<()> {
    let plan = session.plan();
    let model = &plan.model;
    let mut export = match source {
        Some(dir) => ExportPlan::like(dir, &expected(model), &aliases(model))?,
        None => {
            let tensors: Vec<ExportTensor> = model
                .units
                .iter()
                .flat_map(|u| &u.layout.tensors)
                .map(|t| ExportTensor { name: t.name.clone(), shape: t.shape.dims().to_vec(), dtype: FloatDType::F32 })
                .collect();
            ExportPlan::fresh(&tensors, MAX_SHARD_BYTES)?
        }
    };
    let mut config = config.clone();
    if let Some(dtype) = dtype {
        export = export.with_dtype(dtype);
        name_dtype(&mut config, dtype);
    }
    for (name, bytes) in extras {
        export = export.with_file(name, bytes);
    }
    let find = |name: &str| {
        model.units.iter().enumerate().find_map(|(u, unit)| {
            unit.layout.tensors.iter().find(|t| t.name == name).map(|t| places(plan, UnitId(u as u32), t))
        })
    };
    let progress = crate::progress::bar(export.weight_bytes(), "saving the model");
    let mut produce = |name: &str, first: u64, out: &mut [f32]| -> Result<(), String> {
        let (weight, low) = find(name).ok_or_else(|| format!("no tensor {name} in the plan"))?;
        let piece = |t: &Tensor| {
            let at = t.span.offset_bytes + first * t.dtype.size_bytes();
            Tensor::new(t.span.region, at, t.dtype, [out.len() as u64])
        };
        let text = |e: megatrain_exec::ExecError| e.to_string();
        let executor = session.executor();
        match (weight.dtype, low) {
            (DType::F32, _) => out.copy_from_slice(&executor.read::<f32>(&piece(&weight)).map_err(text)?),
            (_, None) => {
                let hi = executor.read::<bf16>(&piece(&weight)).map_err(text)?;
                out.iter_mut().zip(hi).for_each(|(out, hi)| *out = hi.to_f32());
            }
            (_, Some(low)) => {
                let hi = executor.read::<bf16>(&piece(&weight)).map_err(text)?;
                let lo = executor.read::<u16>(&piece(&low)).map_err(text)?;
                for ((out, hi), lo) in out.iter_mut().zip(hi).zip(lo) {
                    *out = f32::from_bits(master::join(hi.to_bits(), lo));
                }
            }
        }
        progress.inc(out.len() as u64 * weight.dtype.size_bytes());
        Ok(())
    };
    export.write(out, &config, &mut produce).with_context(|| format!("saving the model to {}", out.display()))?;
    progress.finish_and_clear();
    Ok(())
}
