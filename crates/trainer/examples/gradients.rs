//! Writes the gradients of one step as a safetensors file, for comparison with another implementation:
//! `cargo run --release -p megatrain-trainer --example gradients -- MODEL_DIR DATA.jsonl BATCH_SIZE SEQ_LEN f32|bf16 OUT.safetensors`
//!
//! The step is the first `BATCH_SIZE` lines of pre-tokenized data, with a learning rate of 0 and no clipping.

use anyhow::{Context, Result, bail};
use megatrain_base::{DType, UnitId, bf16};
use megatrain_data::{Batches, PackOptions, Packer, ReadOptions};
use megatrain_optim::AdamW;
use megatrain_planner::{Plan, Settings};
use megatrain_trainer::setup::{self, Source};
use megatrain_trainer::tasks::{OptimStep, StepTasks};
use safetensors::tensor::{Dtype, TensorView};
use std::path::PathBuf;
use std::sync::Arc;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, data, batch_size, seq_len, dtype, out] = args.as_slice() else {
        bail!("usage: gradients MODEL_DIR DATA.jsonl BATCH_SIZE SEQ_LEN f32|bf16 OUT.safetensors");
    };
    let (batch_size, seq_len): (usize, usize) = (batch_size.parse()?, seq_len.parse()?);
    let dtype = if dtype == "bf16" { DType::Bf16 } else { DType::F32 };
    let source = Source::open(model.as_ref())?;

    let read = ReadOptions { append_eos: false, vocab_size: Some(source.model.config.vocab) };
    let (documents, _) = megatrain_data::read(&[PathBuf::from(data)], source.tokenizer.as_deref(), &read)?;
    let options =
        PackOptions { seq_len, seed: 0, shuffle: false, pack_texts: true, pack_lines: false, group_by_length: None };
    let batch = Batches::new(Packer::new(Arc::new(documents), options)?, batch_size)?.next_step();
    let micros = batch.micro_batches(1, seq_len)?;

    let settings = Settings::new(dtype, seq_len, micros.len());
    let plan = Arc::new(Plan::new(megatrain_planner::Model::clone(&source.model), settings)?);
    let program = plan.train(micros.len())?;
    let session = setup::load(&source, plan.clone(), Default::default(), 0)?.start(Default::default())?;
    let adamw = AdamW { weight_decay: 0.0, ..AdamW::default() };
    let optim = OptimStep { adamw, lr: 0.0, max_norm: None, applied: Arc::default() };
    let (result, _) = session.run(&program, StepTasks::new(source.model.clone(), micros, Some(optim)))?;

    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (u, unit) in plan.model.units.iter().enumerate() {
        let regions = plan.unit(UnitId(u as u32));
        let slab = regions.sum.or(regions.landing).context("the after-norm policy keeps every gradient")?;
        for tensor in &unit.layout.tensors {
            let place = tensor.place(slab.span.region, slab.span.offset_bytes, slab.dtype);
            let values: Vec<f32> = match slab.dtype {
                DType::F32 => session.executor().read::<f32>(&place)?,
                _ => session.executor().read::<bf16>(&place)?.into_iter().map(bf16::to_f32).collect(),
            };
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let shape = tensor.shape.dims().iter().map(|&d| d as usize).collect();
            tensors.push((tensor.name.clone(), shape, bytes));
        }
    }
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>>>()?;
    std::fs::write(out, safetensors::serialize(views, None)?)?;
    println!(
        "loss {:.7}, norm {:.7}, {} gradients in {out}",
        result.loss_sum() / batch.targets as f64,
        result.grad_norm(),
        tensors.len()
    );
    Ok(())
}
