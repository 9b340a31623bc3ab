//! Least squares from host memory: builds a program, proves it, runs it 40 times with two steps in flight, and shows what
//! the lanes did. `cargo run --release -p megatrain-cpu --example run_program`
//!
//! The weight `W [4, 2]` lives in host memory. Each step copies it to the device heap, computes `delta = x W - t` and
//! `grad = x^T delta` there, copies both back and updates `W` in place on the host.

use megatrain_base::{Access, Command, DType, Operands, Rank, Span, Tensor, Work};
use megatrain_cpu::{CpuExecutor, ExecutorOptions};
use megatrain_exec::RegionMemory;
use megatrain_ops::{Add, Matmul, Op};
use megatrain_scheduler::{Builder, Contract, HostTasks, LaneKind, Program, Space, TaskError, verify};
use std::error::Error;
use std::sync::{Arc, Mutex};

const ROWS: usize = 16;
const TRUE_WEIGHT: [f32; 8] = [1.0, -2.0, 0.5, 3.0, -1.5, 0.25, 2.0, -0.75];

/// What the host does in a step.
#[derive(Clone, Debug)]
enum Task {
    /// Writes inputs `[ROWS, 4]` and negated targets `[ROWS, 2]`.
    Batch { x: Tensor, minus_t: Tensor },
    /// Notes the mean square of `delta` and takes a gradient step.
    Update { delta: Tensor, grad: Tensor, weight: Tensor },
}

impl Command for Task {
    fn name(&self) -> &'static str {
        match self {
            Task::Batch { .. } => "batch",
            Task::Update { .. } => "update",
        }
    }
    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        match self {
            Task::Batch { x, minus_t } => [x, minus_t].into_iter().for_each(|t| visit(t.span, Access::Write)),
            Task::Update { delta, grad, weight } => {
                visit(delta.span, Access::Read);
                visit(grad.span, Access::Read);
                visit(weight.span, Access::Update);
            }
        }
    }
    fn work(&self) -> Work {
        Work::default()
    }
}

/// One step's scalars, and where its loss goes.
struct Step {
    number: usize,
    rate: f32,
    losses: Arc<Mutex<Vec<f32>>>,
}

impl HostTasks<Task> for Step {
    fn run(&self, task: &Task, operands: &Operands<'_>) -> Result<(), TaskError> {
        match task {
            Task::Batch { x, minus_t } => {
                let (x, minus_t) = (operands.write::<f32>(x), operands.write::<f32>(minus_t));
                for (i, x) in x.iter_mut().enumerate() {
                    *x = (((self.number * 64 + i) as f32).powi(2) * 0.7).sin();
                }
                for (i, t) in minus_t.iter_mut().enumerate() {
                    let row = &x[i / 2 * 4..][..4];
                    *t = -row.iter().zip(TRUE_WEIGHT.iter().skip(i % 2).step_by(2)).map(|(x, w)| x * w).sum::<f32>();
                }
            }
            Task::Update { delta, grad, weight } => {
                let delta: &[f32] = operands.read(delta);
                let loss = delta.iter().map(|d| d * d).sum::<f32>() / delta.len() as f32;
                self.losses.lock().map_err(|_| TaskError("another step panicked".into()))?.push(loss);
                let grad: &[f32] = operands.read(grad);
                operands.write::<f32>(weight).iter_mut().zip(grad).for_each(|(w, g)| *w -= self.rate * g);
            }
        }
        Ok(())
    }
}

/// The contract, a step's program, and where the weight lies.
type Planned = (Arc<Contract>, Program<Op, Task>, Tensor);

fn step() -> Result<Planned, Box<dyn Error>> {
    let (mut contract, rank) = (Contract::default(), Rank::default());
    let [h2d, compute, d2h, update, data] =
        [LaneKind::H2d, LaneKind::Compute, LaneKind::D2h, LaneKind::Update, LaneKind::Data]
            .map(|kind| contract.lane(rank, kind));
    let weights = contract.region("weights", Space::Host, 256, true);
    let staging = contract.region("staging", Space::Host, 4 * 256, false);
    let heap = contract.region("heap", Space::Device(rank), 6 * 256, false);

    let tensor =
        |region, place: u64, rows: usize, cols: usize| Tensor::new(region, place * 256, DType::F32, [rows, cols]);
    let weight = tensor(weights, 0, 4, 2);
    let [x, minus_t, delta, grad] = [(0, ROWS, 4), (1, ROWS, 2), (2, ROWS, 2), (3, 4, 2)]
        .map(|(place, rows, cols)| tensor(staging, place, rows, cols));
    let [dev_w, dev_x, dev_t, dev_y, dev_delta, dev_grad] =
        [(0, 4, 2), (1, ROWS, 4), (2, ROWS, 2), (3, ROWS, 2), (4, ROWS, 2), (5, 4, 2)]
            .map(|(place, rows, cols)| tensor(heap, place, rows, cols));
    for (name, tensor) in [("updated", weight), ("x", x), ("t", minus_t), ("delta", delta), ("grad", grad)] {
        contract.boundary(name, vec![tensor.span]);
    }
    for (i, tensor) in [dev_w, dev_x, dev_t, dev_y, dev_delta, dev_grad].into_iter().enumerate() {
        contract.boundary(format!("device[{i}]"), vec![tensor.span]);
    }

    let contract = Arc::new(contract);
    let mut b = Builder::new("least squares", contract.clone());
    let product = |a, b, c, transpose_a| Matmul { a, b, c, transpose_a, transpose_b: false, accumulate: false };
    b.host(data, Task::Batch { x, minus_t });
    b.copy(h2d, x.span, dev_x.span);
    b.copy(h2d, minus_t.span, dev_t.span);
    b.copy(h2d, weight.span, dev_w.span);
    b.launch(compute, product(dev_x, dev_w, dev_y, false).into());
    b.launch(compute, Add { a: dev_y, b: dev_t, out: dev_delta }.into());
    b.launch(compute, product(dev_x, dev_delta, dev_grad, true).into());
    b.copy(d2h, dev_delta.span, delta.span);
    b.copy(d2h, dev_grad.span, grad.span);
    b.host(update, Task::Update { delta, grad, weight });
    Ok((contract, b.finish()?, weight))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (contract, program, weight) = step()?;
    verify(&program)?;
    let program = Arc::new(program);
    let memory = contract.regions.iter().map(|region| RegionMemory::heap(region.len_bytes));
    let options = ExecutorOptions { trace: true, ..Default::default() };
    let executor = CpuExecutor::new(contract.clone(), memory.collect::<Result<_, _>>()?, options)?;

    let losses = Arc::default();
    let (mut before, mut last) = (None, None);
    for number in 0..40 {
        let tasks = Step { number, rate: 0.05, losses: Arc::clone(&losses) };
        let ticket = executor.run(program.clone(), Arc::new(tasks))?;
        // The former step ends while this one begins.
        if let Some(former) = before.replace(ticket) {
            last = Some(former.wait()?);
        }
    }
    if let Some(ticket) = before {
        last = Some(ticket.wait()?);
    }

    let losses = losses.lock().map_err(|_| "a step panicked")?;
    for (step, loss) in losses.iter().enumerate().step_by(8) {
        println!("step {step:2}: mean square {loss:.6}");
    }
    println!("learned {:.3?}\nshould be {TRUE_WEIGHT:.3?}", executor.read::<f32>(&weight)?);
    let report = last.ok_or("no step ran")?;
    for (lane, busy) in contract.lanes.iter().zip(&report.lane_busy_seconds) {
        println!("{lane:12} busy {:6.1} of the last step's {:.1} us", busy * 1e6, report.seconds * 1e6);
    }
    Ok(())
}
