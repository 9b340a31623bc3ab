//! Minimises a quadratic with AdamW on split masters: `cargo run --example quadratic`.
//!
//! Weights are streamed as bf16, yet the last steps are far smaller than bf16 can show near 1: the low halves keep
//! them.

use megatrain_base::{bf16, master};
use megatrain_optim::{
    AdamW, Grad, LrSchedule, ScheduleKind, ScheduleOptions, SquareSum, StepScalars, Verdict, update_split,
};

const STEPS: u64 = 400;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Minimise the mean of (w - target)^2 / 2, whose gradient is w - target.
    let target: Vec<f32> = (0..1000).map(|i| 1.0 + i as f32 * 1e-4).collect();
    let (mut hi, mut lo): (Vec<u16>, Vec<u16>) = target.iter().map(|_| master::split(0f32.to_bits())).unzip();
    let (mut m, mut v) = (vec![0f32; target.len()], vec![0f32; target.len()]);
    let adamw = AdamW { weight_decay: 0.0, ..AdamW::default() };
    let options = ScheduleOptions { warmup_steps: 20, ..ScheduleOptions::new(STEPS) };
    let schedule = LrSchedule::new(ScheduleKind::Cosine, options)?;
    let mut updates = 0;
    for step in 0..=STEPS {
        let weight = |i: usize| f32::from_bits(master::join(hi[i], lo[i]));
        let g: Vec<f32> = (0..target.len()).map(|i| weight(i) - target[i]).collect();
        let verdict = Verdict::new(SquareSum::of(Grad::F32(&g)), target.len() as u64, Some(1.0))?;
        let Verdict::Apply { scale, norm } = verdict else { return Err(format!("{verdict:?}").into()) };
        if step % 50 == 0 {
            let error =
                |w: &dyn Fn(usize) -> f32| (0..target.len()).map(|i| (w(i) - target[i]).abs()).fold(0f32, f32::max);
            println!(
                "step {step:3}  norm {norm:9.3e}  largest error of the master {:9.3e}, of its bf16 half {:9.3e}",
                error(&weight),
                error(&|i| bf16::from_bits(hi[i]).to_f32())
            );
        }
        updates += 1;
        let scalars = StepScalars::new(&adamw, schedule.lr(0.02, step), updates, scale)?;
        update_split(&scalars, true, &mut hi, &mut lo, &mut m, &mut v, Grad::F32(&g))?;
    }
    Ok(())
}
