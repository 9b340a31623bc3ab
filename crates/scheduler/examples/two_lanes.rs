//! A copy lane feeds a compute lane through one, two or three buffers: built, proved, listed and simulated, no GPU.
//!
//! `cargo run -p megatrain-scheduler --example two_lanes [TRACE.json]`: with a path, the run with two buffers is
//! written there for ui.perfetto.dev.

use megatrain_base::{Access, Command, Rank, RegionId, Span, Work};
use megatrain_scheduler::{
    BuildError, Builder, Cmd, Contract, Label, LaneKind, MachineProfile, Phase, Program, Space, simulate,
    steady_step_us, traffic, verify,
};
use std::convert::Infallible;
use std::sync::Arc;

const CHUNKS: u64 = 6;
const CHUNK_BYTES: u64 = 4 << 20;
const SUM_BYTES: u64 = 4 << 10;

/// The only op: folds a chunk into the sums.
#[derive(Clone, Debug)]
struct Fold {
    chunk: Span,
    sums: Span,
    /// Whether `sums` starts here.
    first: bool,
}

impl Command for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        visit(self.chunk, Access::Read);
        visit(self.sums, if self.first { Access::Write } else { Access::Update });
    }

    fn work(&self) -> Work {
        Work { flops: 2e10, bytes: self.chunk.len_bytes as f64 }
    }
}

/// There are no host tasks here, so no value of this type.
#[derive(Clone, Debug)]
struct NoTask(Infallible);

impl Command for NoTask {
    fn name(&self) -> &'static str {
        match self.0 {}
    }
    fn accesses(&self, _: &mut dyn FnMut(Span, Access)) {
        match self.0 {}
    }
    fn work(&self) -> Work {
        match self.0 {}
    }
}

fn part(region: RegionId, number: u64, len_bytes: u64) -> Span {
    Span::new(region, number * len_bytes, len_bytes)
}

/// The pipeline with so many device buffers. No event is named here: they follow from what the commands touch.
fn pipeline(buffers: u64) -> Result<Program<Fold, NoTask>, BuildError> {
    let rank = Rank::default();
    let mut c = Contract::default();
    let chunks = c.region("chunks", Space::Host, CHUNKS * CHUNK_BYTES, true);
    let slots = c.region("slots", Space::Device(rank), buffers * CHUNK_BYTES, false);
    let sums = c.region("sums", Space::Device(rank), SUM_BYTES, false);
    let (h2d, compute) = (c.lane(rank, LaneKind::H2d), c.lane(rank, LaneKind::Compute));
    c.boundary("chunks_ready", vec![part(chunks, 0, CHUNKS * CHUNK_BYTES)]);
    for slot in 0..buffers {
        c.boundary(format!("slot_free[{slot}]"), vec![part(slots, slot, CHUNK_BYTES)]);
    }
    c.boundary("sums_free", vec![part(sums, 0, SUM_BYTES)]);

    let mut builder = Builder::new(format!("fold {CHUNKS} chunks, buffers: {buffers}"), Arc::new(c));
    for chunk in 0..CHUNKS {
        builder.label(Label { phase: Phase::Forward, unit: None, micro: Some(chunk as u32) });
        let slot = part(slots, chunk % buffers, CHUNK_BYTES);
        builder.copy(h2d, part(chunks, chunk, CHUNK_BYTES), slot);
        builder.launch(compute, Fold { chunk: slot, sums: part(sums, 0, SUM_BYTES), first: chunk == 0 });
    }
    builder.finish()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let profile: MachineProfile = serde_json::from_str(include_str!("profile.json"))?;
    println!("simulated with {}:\n", profile.name);
    for buffers in 1..=3 {
        let program = pipeline(buffers)?;
        let proof = verify(&program)?;
        let simulation = simulate(&program, &profile)?;
        if buffers == 2 {
            print!("{program}");
            println!("proved: {proof}\n{}", traffic(&program));
            println!("simulated: {simulation}");
            if let Some(path) = std::env::args().nth(1) {
                std::fs::write(&path, simulation.timeline.to_chrome_json())?;
                println!("trace written to {path}");
            }
            println!();
        }
        let steady = steady_step_us(&program, &profile)?;
        println!("{}: {:.0} us once, {steady:.0} us repeated", program.name, simulation.step_us);
    }

    // What the verifier is for: without the wait that keeps a slot until it has been read, the program is refused.
    let mut broken = pipeline(2)?;
    let boundaries = broken.contract.boundaries.len() as u32;
    let own_wait = |cmd: &Cmd<_, _>| matches!(cmd, Cmd::Wait(event) if event.0 >= boundaries);
    if let Some(last) = broken.commands.iter().rposition(|e| e.lane.0 == 0 && own_wait(&e.cmd)) {
        broken.commands.remove(last);
    }
    match verify(&broken) {
        Ok(_) => return Err("a program without one of its waits was taken for sound".into()),
        Err(refusal) => println!("\nwithout the last wait for a slot it is refused: {refusal}"),
    }
    Ok(())
}
