//! What the simulator says of a step, for `megatrain plan`; and the figures of this machine that it needs.

use anyhow::{Context, Result};
use megatrain_base::{Access, Command, DType, Operands, RegionId, Span, Tensor, Work};
use megatrain_cpu::kernels;
use megatrain_ops::{Matmul, Op};
use megatrain_planner::{HostTask, Plan, Program};
use megatrain_scheduler::{
    Cmd, ComputeRate, Entry, MachineProfile, Steady, TaskRate, simulate, steady, traffic, verify,
};
use rayon::prelude::*;
use std::collections::BTreeMap;
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

/// GB/s of a large copy on this thread alone, bytes copied.
pub fn thread_copy_gb_s() -> f64 {
    let (from, mut to) = (vec![1u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
    COPY_BYTES as f64 / best_seconds(|| to.copy_from_slice(&from)) / 1e9
}

/// Measures this machine as the CPU executor uses it, in about two seconds: its copies take a thread each, its kernels and
/// the host's tasks share all cores.
///
/// # Errors
/// If the threads cannot be started.
pub fn measure(threads: usize, dtype: DType) -> Result<MachineProfile> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("starting threads")?;
    let threads = pool.current_num_threads();
    let (tflops, gb_s) = pool.install(|| (matmul_tflops(dtype), copy_gb_s()));
    let copied = thread_copy_gb_s().min(gb_s / 2.0);
    let copy = TaskRate { gb_s: 2.0 * copied, cores: 1.0 / threads as f64 };
    Ok(MachineProfile {
        name: format!("this machine, {threads} thread(s), {dtype}"),
        h2d_gb_s: copied,
        d2h_gb_s: copied,
        both_ways_gb_s: (2.0 * copied).min(gb_s / 2.0),
        compute_tflops: ComputeRate::Flat(tflops),
        device_gb_s: gb_s,
        ops: BTreeMap::new(),
        host_tflops: tflops,
        host_gb_s: gb_s,
        host_cores_gb_s: None,
        tasks: BTreeMap::from([("copy".to_owned(), copy)]),
        file_gb_s: 1.0,
        peer_gb_s: gb_s / 2.0,
        launch_us: 1.0,
        event_us: 10.0,
        hop_us: None,
        device_is_host: true,
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

/// An op whose tokens come in documents of one length. An op cannot know them, since they are data: attention counts its
/// pairs as those of one document.
#[derive(Clone, Debug)]
struct InDocuments {
    op: Op,
    document_tokens: usize,
}

impl Command for InDocuments {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        self.op.accesses(visit);
    }

    fn work(&self) -> Work {
        work_in_documents(&self.op, self.document_tokens)
    }
}

/// The work of an op whose tokens come in documents of one length.
pub fn work_in_documents(op: &Op, document_tokens: usize) -> Work {
    let work = op.work();
    let tokens = match op {
        Op::Attention(op) => op.qkv.shape.dim(0),
        Op::AttentionBackward(op) => op.qkv.shape.dim(0),
        _ => return work,
    };
    // Pairs of n tokens in documents of d: n (d + 1) / 2.
    let document = document_tokens.clamp(1, tokens.max(1));
    Work { flops: work.flops * (document as f64 + 1.0) / (tokens as f64 + 1.0), ..work }
}

/// The program with attention's work as it is where documents have `document_tokens` tokens.
fn in_documents(program: &Program, document_tokens: usize) -> megatrain_scheduler::Program<InDocuments, HostTask> {
    let cmd = |cmd: &Cmd<Op, HostTask>| match cmd {
        Cmd::Launch(op) => Cmd::Launch(InDocuments { op: *op, document_tokens }),
        Cmd::Host(task) => Cmd::Host(*task),
        Cmd::Copy { src, dst } => Cmd::Copy { src: *src, dst: *dst },
        Cmd::Collective(collective) => Cmd::Collective(collective.clone()),
        Cmd::Record(event) => Cmd::Record(*event),
        Cmd::Wait(event) => Cmd::Wait(*event),
    };
    let commands = program.commands.iter().map(|e| Entry { lane: e.lane, label: e.label, cmd: cmd(&e.cmd) });
    megatrain_scheduler::Program {
        name: program.name.clone(),
        contract: program.contract.clone(),
        events: program.events,
        commands: commands.collect(),
    }
}

/// Seconds that a step takes on a machine when it is repeated, with documents of so many tokens.
///
/// # Errors
/// An impossible profile, or a program that has not been verified.
pub fn predict(program: &Program, document_tokens: usize, profile: &MachineProfile) -> Result<f64> {
    Ok(steady(&in_documents(program, document_tokens), profile)?.step_us / 1e6)
}

/// `device arithmetic 84%, link up 10%`, of the critical path.
fn critical(steady: &Steady) -> String {
    let share = |us: f64| 100.0 * us / steady.step_us.max(f64::MIN_POSITIVE);
    let parts = steady.critical.iter().filter(|(_, us)| share(*us) >= 0.5);
    parts.map(|(resource, us)| format!("{resource} {:.0}%", share(*us))).collect::<Vec<_>>().join(", ")
}

/// The proof, the traffic and the simulated step in a few lines, for documents of so many tokens.
///
/// # Errors
/// A program that does not verify (a bug), or an impossible profile.
pub fn describe(program: &Program, plan: &Plan, document_tokens: usize, profile: &MachineProfile) -> Result<String> {
    let start = Instant::now();
    verify(program).context("internal error: the planner's program has a race")?;
    let proof_ms = start.elapsed().as_secs_f64() * 1e3;
    let simulated = in_documents(program, document_tokens);
    let steady = steady(&simulated, profile)?;
    let steady_s = steady.step_us / 1e6;
    let tokens = plan.step_tokens() as f64;
    Ok(format!(
        "program  {}: {} commands, proved free of races in {proof_ms:.0} ms\ntraffic  {}\n\
         machine  {}: {:.2} TFLOP/s, device memory {:.0} GB/s, link {:.0} up and {:.0} down, host memory {:.0}\n\
         step     {steady_s:.3} s, {:.0} tokens/s, simulated; in the steady state, documents of {document_tokens} tokens\n\
         critical {}\none step alone: {}",
        program.name,
        program.commands.len(),
        traffic(program).to_string().replace('\n', "\n         "),
        profile.name,
        profile.compute_tflops.at(1e12),
        profile.device_gb_s,
        profile.h2d_gb_s,
        profile.d2h_gb_s,
        profile.host_gb_s,
        tokens / steady_s,
        critical(&steady),
        simulate(&simulated, profile)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_layers::ModelConfig;
    use megatrain_planner::{Model, Settings};

    fn profile() -> MachineProfile {
        serde_json::from_str(
            r#"{"name": "m", "h2d_gb_s": 50, "d2h_gb_s": 50, "both_ways_gb_s": 100, "compute_tflops": 1, "device_gb_s": 1000,
            "host_tflops": 1, "host_gb_s": 100, "file_gb_s": 1, "peer_gb_s": 1, "launch_us": 1, "event_us": 1}"#,
        )
        .unwrap()
    }

    fn plan(tokens: usize) -> Plan {
        let model = Model::new(&ModelConfig::preset("demo").unwrap());
        Plan::new(model, Settings::new(DType::Bf16, tokens, 1)).unwrap()
    }

    #[test]
    fn attention_counts_the_pairs_of_its_documents() {
        let program = plan(1023).train(1).unwrap();
        let flops = |document_tokens: usize, name: &str| -> f64 {
            let commands = &in_documents(&program, document_tokens).commands;
            commands.iter().filter(|e| e.cmd.name() == name).map(|e| e.cmd.work().flops).sum()
        };
        for name in ["attention", "attention_backward"] {
            assert_eq!(flops(1023, name), flops(5000, name));
            assert_eq!(flops(255, name) * 4.0, flops(1023, name));
        }
        assert!(flops(255, "matmul") > 0.0 && flops(255, "matmul") == flops(1023, "matmul"));
        let seconds = |document_tokens| predict(&program, document_tokens, &profile()).unwrap();
        assert!(seconds(255) < seconds(1023));
    }

    #[test]
    fn the_description_names_the_critical_resource() {
        let (plan, mut profile) = (plan(1024), profile());
        let program = plan.train(1).unwrap();
        let text = describe(&program, &plan, 1024, &profile).unwrap();
        assert!(text.contains("\ncritical device arithmetic "), "{text}");
        (profile.host_gb_s, profile.h2d_gb_s, profile.d2h_gb_s) = (0.01, 0.01, 0.01);
        let text = describe(&program, &plan, 1024, &profile).unwrap();
        assert!(text.contains("\ncritical host cores and memory "), "{text}");
    }
}
