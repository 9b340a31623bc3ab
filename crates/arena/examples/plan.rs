//! Plans the memory of a small model, prints the plan, shows a refusal, commits what fits and uses it.
//!
//! `cargo run -p megatrain-arena --example plan`

use megatrain_arena::{Bound, CommitOptions, Error, Kind, Limits, Plan, Reservation, Resource};

/// A plan for `blocks` blocks of `params` parameters: 12 bytes each that last, and two gradient slabs.
fn plan(blocks: u64, params: u64) -> Plan {
    let mut plan = Plan::new();
    for i in 0..blocks {
        plan.add(Reservation::new(format!("weights[{i}]"), Kind::Weights, params * 2).pinned());
        plan.reserve(format!("state[{i}]"), Kind::OptimizerState, params * 10);
    }
    for i in 0..2 {
        plan.add(Reservation::new(format!("gradients[{i}]"), Kind::Gradients, params * 2).pinned());
    }
    plan.allow_for("export: one shard", params * 4);
    plan
}

fn main() -> Result<(), Error> {
    let limits = Limits::read()?;
    println!("this machine:");
    for bound in &limits.bounds {
        println!("  {bound}");
    }

    // 70 billion parameters on a machine (or in a container) that allows 16 GiB: refused, and nothing was allocated.
    let source = "an example".into();
    let small = Bound { resource: Resource::CgroupV2, limit_bytes: 16 << 30, used_bytes: 1 << 30, source };
    if let Err(refusal) = plan(80, 875_000_000).check(&Limits { bounds: vec![small] }) {
        println!("\n{refusal}");
    }

    // 3 blocks of 200,000 parameters: fits anywhere.
    let plan = plan(3, 200_000);
    println!("\n{plan:#}");
    plan.check(&limits)?;
    let mut arena = plan.commit(&CommitOptions::default())?;
    for notice in arena.notices() {
        println!("note: {notice}");
    }

    // Alone with the arena, bytes are a safe slice. Executors that share it make their views from `as_ptr`.
    arena.bytes_mut(0).fill(1);
    let sum: u64 = arena.bytes_mut(0).iter().map(|&b| b as u64).sum();
    println!("{:?}\nholds {sum} ones", arena.region(0));
    Ok(())
}
