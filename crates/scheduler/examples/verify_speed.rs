//! How long building and proving takes for a step of 100 layers and 16 micro-batches (about 100,000 commands):
//! `cargo run --release -p megatrain-scheduler --example verify_speed`.

use megatrain_base::{Access, Command, Rank, RegionId, Span, UnitId, Work};
use megatrain_scheduler::{Builder, Contract, Label, LaneKind, Phase, Space, simulate, verify};
use std::sync::Arc;
use std::time::Instant;

const LAYERS: u64 = 100;
const MICROS: u64 = 16;
const SLOTS: u64 = 2;
/// Tensors of a layer's slab; every one is used on its own.
const TENSORS: u64 = 9;
const TENSOR_BYTES: u64 = 1 << 20;
const SLAB_BYTES: u64 = TENSORS * TENSOR_BYTES;
const KEPT_BYTES: u64 = 1 << 16;
/// Kernels of a layer's forward; the backward has twice as many.
const KERNELS: u64 = 20;

#[derive(Clone, Debug)]
struct Kernel(Vec<(Span, Access)>);

impl Command for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }
    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        self.0.iter().for_each(|(span, access)| visit(*span, *access));
    }
    fn work(&self) -> Work {
        Work { flops: 1e9, bytes: 1e6 }
    }
}

fn part(region: RegionId, number: u64, len_bytes: u64) -> Span {
    Span::new(region, number * len_bytes, len_bytes)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    use Access::{Read, Update, Write};
    let mut c = Contract::default();
    let rank = Rank::default();
    let device = Space::Device(rank);
    let weights = c.region("weights", Space::Host, LAYERS * SLAB_BYTES, true);
    let grads = c.region("gradients", Space::Host, SLOTS * SLAB_BYTES, false);
    let slots = c.region("slots", device, SLOTS * SLAB_BYTES, false);
    let sums = c.region("gradient sums", device, SLOTS * SLAB_BYTES, false);
    let kept = c.region("activations", device, (LAYERS + 1) * MICROS * KEPT_BYTES, false);
    let scratch = c.region("scratch", device, (2 * KERNELS + 1) * KEPT_BYTES, false);
    let [h2d, compute, d2h, update] =
        [LaneKind::H2d, LaneKind::Compute, LaneKind::D2h, LaneKind::Update].map(|kind| c.lane(rank, kind));
    for layer in 0..LAYERS {
        c.boundary(format!("updated[{layer}]"), vec![part(weights, layer, SLAB_BYTES)]);
    }
    for slot in 0..SLOTS {
        c.boundary(format!("slot_free[{slot}]"), vec![part(slots, slot, SLAB_BYTES), part(sums, slot, SLAB_BYTES)]);
        c.boundary(format!("ring_free[{slot}]"), vec![part(grads, slot, SLAB_BYTES)]);
    }
    let all = |c: &Contract, r: RegionId| Span::new(r, 0, c.regions[r.0 as usize].len_bytes);
    let inner = vec![all(&c, kept), all(&c, scratch)];
    c.boundary("device_free", inner);

    let start = Instant::now();
    let mut b: Builder<Kernel, Kernel> = Builder::new("step", Arc::new(c));
    let label = |phase, layer: u64, micro: Option<u64>| Label {
        phase,
        unit: Some(UnitId(layer as u32)),
        micro: micro.map(|m| m as u32),
    };
    let kept_at = |layer: u64, micro: u64| part(kept, layer * MICROS + micro, KEPT_BYTES);
    let scratch_at = |number: u64| part(scratch, number, KEPT_BYTES);
    let weight = |slot: u64, number: u64| part(slots, slot * TENSORS + number % TENSORS, TENSOR_BYTES);
    let sum = |slot: u64, number: u64| part(sums, slot * TENSORS + number % TENSORS, TENSOR_BYTES);
    for micro in 0..MICROS {
        b.launch(compute, Kernel(vec![(kept_at(0, micro), Write)]));
    }
    for layer in 0..LAYERS {
        let slot = layer % SLOTS;
        b.label(label(Phase::Forward, layer, None));
        b.copy(h2d, part(weights, layer, SLAB_BYTES), part(slots, slot, SLAB_BYTES));
        for micro in 0..MICROS {
            b.label(label(Phase::Forward, layer, Some(micro)));
            b.launch(compute, Kernel(vec![(kept_at(layer, micro), Read), (scratch_at(0), Write)]));
            for k in 1..KERNELS - 1 {
                let io = vec![(scratch_at(k - 1), Read), (weight(slot, k), Read), (scratch_at(k), Write)];
                b.launch(compute, Kernel(io));
            }
            b.launch(compute, Kernel(vec![(scratch_at(KERNELS - 2), Read), (kept_at(layer + 1, micro), Write)]));
        }
    }
    for layer in (0..LAYERS).rev() {
        let slot = layer % SLOTS;
        b.label(label(Phase::Backward, layer, None));
        b.copy(h2d, part(weights, layer, SLAB_BYTES), part(slots, slot, SLAB_BYTES));
        for micro in 0..MICROS {
            b.label(label(Phase::Backward, layer, Some(micro)));
            b.launch(compute, Kernel(vec![(kept_at(layer + 1, micro), Read), (scratch_at(0), Write)]));
            for k in 1..2 * KERNELS - 1 {
                let mut io = vec![(scratch_at(k - 1), Read), (weight(slot, k), Read), (scratch_at(k), Write)];
                if k <= TENSORS {
                    io.push((sum(slot, k), if micro == 0 { Write } else { Update }));
                }
                b.launch(compute, Kernel(io));
            }
            b.launch(compute, Kernel(vec![(scratch_at(2 * KERNELS - 2), Read), (kept_at(layer, micro), Update)]));
        }
        b.label(label(Phase::Update, layer, None));
        b.copy(d2h, part(sums, slot, SLAB_BYTES), part(grads, slot, SLAB_BYTES));
        b.host(update, Kernel(vec![(part(grads, slot, SLAB_BYTES), Read), (part(weights, layer, SLAB_BYTES), Update)]));
    }
    let program = b.finish()?;
    let built = start.elapsed();

    let mut best = std::time::Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        verify(&program)?;
        best = best.min(start.elapsed());
    }
    println!("{}", verify(&program)?);
    println!(
        "built in {:.1} ms, verified in {:.1} ms (best of 5)",
        built.as_secs_f64() * 1e3,
        best.as_secs_f64() * 1e3
    );

    let profile = serde_json::from_str(include_str!("profile.json"))?;
    let start = Instant::now();
    let simulation = simulate(&program, &profile)?;
    println!("simulated in {:.1} ms\n{simulation}", start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
