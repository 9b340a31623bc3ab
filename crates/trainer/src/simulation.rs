//! What the simulator says of a step, for `megatrain plan`; and the figures of this machine that it needs.

use anyhow::{Context, Result};
use megatrain_base::{Access, DType, Operands, RegionId, Tensor};
use megatrain_cpu::kernels;
use megatrain_ops::Matmul;
use megatrain_planner::{Plan, Program};
use megatrain_scheduler::{ComputeRate, MachineProfile, simulate, steady_step_us, traffic, verify};
use rayon::prelude::*;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long each figure is measured.
const MEASURE: Duration = Duration::from_millis(400);

/// Bytes of the measured copy: more than caches hold.
const COPY_BYTES: usize = 256 << 20;

/// Seconds of the fastest of as many runs as fit 0.4 s, the first left out.
pub fn best_seconds(mut work: impl FnMut()) -> f64 {
    work();
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while best == f64::INFINITY || start.elapsed() < MEASURE {
        let run = Instant::now();
        work();
        best = best.min(run.elapsed().as_secs_f64());
    }
    best
}

/// TFLOP/s of a square matrix product of this dtype in the CPU kernels, on the current rayon pool.
pub fn matmul_tflops(dtype: DType) -> f64 {
    const N: usize = 1536;
    let tensor = |region, dtype| Tensor::new(RegionId(region), 0, dtype, [N, N]);
    let op = Matmul {
        a: tensor(0, dtype),
        b: tensor(1, dtype),
        c: tensor(2, DType::F32),
        transpose_a: false,
        transpose_b: true,
        accumulate: false,
    };
    let mut memory = [op.a, op.b, op.c].map(|t| vec![0u64; t.span.len_bytes as usize / 8]);
    let spans = [(op.a.span, Access::Read), (op.b.span, Access::Read), (op.c.span, Access::Write)];
    let op = op.into();
    let seconds = best_seconds(|| {
        let places: Vec<_> =
            spans.iter().zip(&mut memory).map(|((s, a), m)| (*s, *a, m.as_mut_ptr().cast::<u8>())).collect();
        // SAFETY: each span covers exactly its own vector, which is initialised, aligned to 8 bytes and borrowed for the
        // length of this call.
        kernels::run(&op, &unsafe { Operands::new(places) });
    });
    2.0 * (N as f64).powi(3) / seconds / 1e12
}

/// GB/s of a large copy on the current rayon pool, bytes read plus bytes written.
pub fn copy_gb_s() -> f64 {
    let (from, mut to) = (vec![1u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
    let seconds = best_seconds(|| {
        to.par_chunks_mut(1 << 20).zip(from.par_chunks(1 << 20)).for_each(|(to, from)| to.copy_from_slice(from));
    });
    2.0 * COPY_BYTES as f64 / seconds / 1e9
}

/// Measures this machine as the CPU executor uses it, in about two seconds: copies and kernels share its memory.
///
/// # Errors
/// If the threads cannot be started.
pub fn measure(threads: usize, dtype: DType) -> Result<MachineProfile> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("starting threads")?;
    let (tflops, gb_s) = pool.install(|| (matmul_tflops(dtype), copy_gb_s()));
    Ok(MachineProfile {
        name: format!("this machine, {} thread(s), {dtype}", pool.current_num_threads()),
        h2d_gb_s: gb_s / 2.0,
        d2h_gb_s: gb_s / 2.0,
        both_ways_gb_s: gb_s / 2.0,
        compute_tflops: ComputeRate::Flat(tflops),
        device_gb_s: gb_s,
        host_tflops: tflops,
        host_gb_s: gb_s,
        file_gb_s: 1.0,
        peer_gb_s: gb_s / 2.0,
        launch_us: 1.0,
        event_us: 10.0,
    })
}

/// A profile from a JSON file.
///
/// # Errors
/// A file that cannot be read or is no profile.
pub fn read_profile(path: &Path) -> Result<MachineProfile> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading the machine profile {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("in the machine profile {}", path.display()))
}

/// The proof, the traffic and the simulated step in a few lines.
///
/// # Errors
/// A program that does not verify (a bug), or an impossible profile.
pub fn describe(program: &Program, plan: &Plan, profile: &MachineProfile) -> Result<String> {
    let start = Instant::now();
    verify(program).context("internal error: the planner's program has a race")?;
    let proof_ms = start.elapsed().as_secs_f64() * 1e3;
    let steady_s = steady_step_us(program, profile)? / 1e6;
    let tokens = plan.step_tokens() as f64;
    Ok(format!(
        "program  {}: {} commands, proved free of races in {proof_ms:.0} ms\ntraffic  {}\n\
         machine  {}: {:.2} TFLOP/s, memory {:.0} GB/s\n\
         step     {steady_s:.3} s, {:.0} tokens/s, simulated; in the steady state, matrix products at their peak\none step alone: {}",
        program.name,
        program.commands.len(),
        traffic(program).to_string().replace('\n', "\n         "),
        profile.name,
        profile.compute_tflops.at(1e12),
        profile.host_gb_s,
        tokens / steady_s,
        simulate(program, profile)?,
    ))
}
