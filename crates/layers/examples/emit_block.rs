//! Prints the ops of one block, forward and backward, with shapes and floating-point operations. Needs no device and no
//! weights: a template is only a description.
//!
//! `cargo run -p megatrain-layers --example emit_block [PRESET [TOKENS [keep|partial|recompute]]]`

use megatrain_base::{DType, RegionId, Tensor, fmt_bytes};
use megatrain_layers::{Activations, Emitter, ModelConfig, TokenCtx, block_for, preset_names};

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "llama-3.1-8b".into());
    let tokens = args.next().map_or(Ok(4096), |n| n.parse()).map_err(|_| "TOKENS is a whole number, e.g. 4096")?;
    let level = match args.next().as_deref() {
        None | Some("keep") => Activations::Keep,
        Some("partial") => Activations::Partial,
        Some("recompute") => Activations::Recompute,
        Some(other) => return Err(format!("`{other}` is no activation level; levels: keep, partial, recompute")),
    };
    let known = || preset_names().collect::<Vec<_>>().join(", ");
    let config = ModelConfig::preset(&name).ok_or_else(|| format!("no preset `{name}`; presets: {}", known()))?;
    let (block, dtype) = (block_for(&config), DType::Bf16);

    // The buffers a planner would place: each a region of its own here.
    let mut regions = (0..).map(RegionId);
    let mut buffer = |dtype, shape: megatrain_base::Shape| Tensor::new(regions.next().unwrap(), 0, dtype, shape);
    let ctx = TokenCtx {
        tokens,
        positions: buffer(DType::I32, [tokens].into()),
        cu_seqlens: buffer(DType::I32, [2usize].into()),
        dtype,
    };
    let [x, y, d] = [(); 3].map(|()| buffer(dtype, [tokens, config.hidden].into()));
    let saved: Vec<Tensor> =
        block.saved(level, tokens, dtype).iter().map(|spec| buffer(spec.dtype, spec.shape)).collect();
    let layout = block.layout(0);
    let mut slab = |dtype| -> Vec<Tensor> {
        let region = regions.next().unwrap();
        layout.tensors.iter().map(|t| t.place(region, 0, dtype)).collect()
    };
    let (weights, grads) = (slab(dtype), slab(DType::F32));

    println!("{name}: {} parameters, {} in a block", config.params(), layout.params());
    for t in &layout.tensors {
        println!("    {:>10}  {:<52} {}", t.offset_elems, t.name, t.shape);
    }
    let bytes: u64 = saved.iter().map(|t| t.span.len_bytes).sum();
    println!("{tokens} tokens, activations {level:?}: {} saved besides the input", fmt_bytes(bytes));
    let mut emitter = Emitter::new(1000);
    block.forward(&mut emitter, &ctx, &weights, x, y, level, &saved);
    print("forward", &emitter);
    let mut emitter = Emitter::new(1000);
    block.backward(&mut emitter, &ctx, &weights, &grads, false, x, d, level, &saved);
    print("backward", &emitter);
    Ok(())
}

fn print(what: &str, emitter: &Emitter) {
    println!("{what}:");
    let mut flops = 0.0;
    for op in &emitter.ops {
        let operands: Vec<String> = op
            .operands()
            .iter()
            .map(|(t, access)| format!("{}{}{}", if access.writes() { "→ " } else { "" }, t.span.region, t.shape))
            .collect();
        flops += op.work().flops;
        println!("    {:<20} {:>12.3} GFLOP  {}", op.name(), op.work().flops / 1e9, operands.join("  "));
    }
    println!("    {} ops, {:.1} GFLOP", emitter.ops.len(), flops / 1e9);
}
