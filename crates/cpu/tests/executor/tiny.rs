//! A trainer in miniature: three units of one 4 x 4 matrix, two device slots, a ring of two gradient buffers, host tasks
//! for inputs and updates. All values are small integers, so every order of summation gives the same bits, and a plain
//! integer computation ([`expected`]) says what must come out. The update is a hash, not a descent: one stale operand
//! anywhere changes everything after it.

use megatrain_base::{Access, Command, DType, Operands, Rank, RegionId, Span, Tensor, UnitId, Work};
use megatrain_cpu::{CpuExecutor, ExecutorOptions};
use megatrain_exec::{RegionMemory, Ticket};
use megatrain_ops::{Add, Matmul, Op};
use megatrain_scheduler::{Builder, Contract, HostTasks, Label, LaneId, LaneKind, Phase, Program, Space, TaskError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub const UNITS: usize = 3;
const N: usize = 4;
const STRIDE: u64 = 256;
/// Device buffers beside the slots: activations, deltas, gradients.
const BUFFERS: usize = UNITS + 1 + 2 + 2;

pub const H2D: LaneId = LaneId(0);
pub const COMPUTE: LaneId = LaneId(1);
pub const D2H: LaneId = LaneId(2);
pub const UPDATE: LaneId = LaneId(3);
pub const DATA: LaneId = LaneId(4);
pub const IO: LaneId = LaneId(5);
pub const LANES: usize = 6;

/// The programs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Forward only.
    Evaluate,
    /// Forward, backward and updates.
    Train,
    /// Sends a constant through every buffer and hashes it into everything that lasts, in the order in which `Train` first
    /// uses them, so that none of its waits for them implies a later one.
    Touch,
}

/// The host tasks.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Writes the step's inputs.
    Fill { inputs: Tensor },
    /// Hashes the gradient into the weight.
    Update { grad: Tensor, weight: Tensor },
    /// Hashes a result into the running state.
    Accumulate { result: Tensor, state: Tensor },
    /// Returns an error.
    Fail { touch: Tensor },
    /// Panics.
    Panic { touch: Tensor },
    /// Declares that it writes and writes nothing.
    Forgets { touch: Tensor },
    /// Holds its bytes until the gate opens; fails if it never does.
    Hold { touch: Tensor },
    /// Opens the gate.
    Open { touch: Tensor },
}

impl Command for Task {
    fn name(&self) -> &'static str {
        match self {
            Task::Fill { .. } => "fill",
            Task::Update { .. } => "update",
            Task::Accumulate { .. } => "accumulate",
            Task::Fail { .. } => "fail",
            Task::Panic { .. } => "panic",
            Task::Forgets { .. } => "forgets",
            Task::Hold { .. } => "hold",
            Task::Open { .. } => "open",
        }
    }
    fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        match self {
            Task::Fill { inputs } => visit(inputs.span, Access::Write),
            Task::Update { grad: from, weight: into } | Task::Accumulate { result: from, state: into } => {
                visit(from.span, Access::Read);
                visit(into.span, Access::Update);
            }
            Task::Forgets { touch } => visit(touch.span, Access::Write),
            Task::Fail { touch } | Task::Panic { touch } | Task::Hold { touch } | Task::Open { touch } => {
                visit(touch.span, Access::Update);
            }
        }
    }
    fn work(&self) -> Work {
        Work::default()
    }
}

/// Opened once, waited for with a deadline.
#[derive(Default)]
pub struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
    fn pass(&self) -> Result<(), TaskError> {
        let (open, _) =
            self.1.wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(20), |open| !*open).unwrap();
        if *open { Ok(()) } else { Err(TaskError("the gate stayed shut".into())) }
    }
}

/// Runs the tasks of one step.
#[derive(Clone, Default)]
pub struct Tasks {
    pub step: i64,
    pub started: Arc<AtomicUsize>,
    pub gate: Arc<Gate>,
}

/// A hash into -2..=2.
fn mix(parts: [i64; 3]) -> i64 {
    let step = |h: u64, part: i64| (h ^ part as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    (parts.into_iter().fold(0x1234_5678, step) >> 7) as i64 % 5 - 2
}

fn input(step: i64, i: usize) -> i64 {
    mix([step, i as i64, -1])
}

fn initial(tensor: usize, i: usize) -> i64 {
    mix([tensor as i64, i as i64, -2])
}

fn updated(old: i64, by: i64, at: usize) -> i64 {
    mix([old, by, at as i64])
}

/// `into[i] = updated(into[i], from[i], i)`; NaN stays NaN.
fn hash(from: &[f32], into: &mut [f32]) {
    for (i, (into, from)) in into.iter_mut().zip(from).enumerate() {
        *into = if from.is_nan() || into.is_nan() { f32::NAN } else { updated(*into as i64, *from as i64, i) as f32 };
    }
}

impl HostTasks<Task> for Tasks {
    fn run(&self, task: &Task, operands: &Operands<'_>) -> Result<(), TaskError> {
        self.started.fetch_add(1, Ordering::SeqCst);
        match task {
            Task::Fill { inputs } => {
                operands.write(inputs).iter_mut().enumerate().for_each(|(i, x)| *x = input(self.step, i) as f32);
            }
            Task::Update { grad: from, weight: into } | Task::Accumulate { result: from, state: into } => {
                hash(operands.read(from), operands.write(into));
            }
            Task::Fail { .. } => return Err(TaskError("the disk is full".into())),
            Task::Panic { .. } => panic!("index {} out of range", self.step),
            Task::Forgets { .. } => {}
            Task::Hold { .. } => self.gate.pass()?,
            Task::Open { .. } => self.gate.open(),
        }
        Ok(())
    }
}

/// Where everything lies.
pub struct Tiny {
    pub contract: Arc<Contract>,
    pub weights: Vec<Tensor>,
    pub state: Tensor,
    pub slots: Vec<Tensor>,
    constant: Tensor,
    inputs: Tensor,
    result: Tensor,
    ring: Vec<Tensor>,
    acts: Vec<Tensor>,
    deltas: Vec<Tensor>,
    grads: Vec<Tensor>,
}

impl Tiny {
    pub fn new() -> Tiny {
        let mut c = Contract::default();
        let rank = Rank::default();
        for kind in [LaneKind::H2d, LaneKind::Compute, LaneKind::D2h, LaneKind::Update, LaneKind::Data, LaneKind::Io] {
            c.lane(rank, kind);
        }
        let lasting = c.region("lasting", Space::Host, (UNITS as u64 + 2) * STRIDE, true);
        let staging = c.region("staging", Space::Host, 4 * STRIDE, false);
        let heap = c.region("heap", Space::Device(rank), (2 + BUFFERS as u64) * STRIDE, false);
        let mut next = [0; 3];
        let mut take = |region: RegionId, count: usize| -> Vec<Tensor> {
            let first = next[region.0 as usize];
            next[region.0 as usize] += count as u64;
            (0..count as u64).map(|i| Tensor::new(region, (first + i) * STRIDE, DType::F32, [N, N])).collect()
        };
        let tiny = Tiny {
            weights: take(lasting, UNITS),
            state: take(lasting, 1)[0],
            constant: take(lasting, 1)[0],
            inputs: take(staging, 1)[0],
            result: take(staging, 1)[0],
            ring: take(staging, 2),
            slots: take(heap, 2),
            acts: take(heap, UNITS + 1),
            deltas: take(heap, 2),
            grads: take(heap, 2),
            contract: Arc::default(),
        };
        {
            let mut guard = |name: String, tensor: &Tensor| c.boundary(name, vec![tensor.span]);
            tiny.weights.iter().enumerate().for_each(|(u, t)| _ = guard(format!("updated[{u}]"), t));
            tiny.slots.iter().enumerate().for_each(|(k, t)| _ = guard(format!("slot_free[{k}]"), t));
            tiny.ring.iter().enumerate().for_each(|(r, t)| _ = guard(format!("ring_free[{r}]"), t));
            let rest = [&tiny.state, &tiny.constant, &tiny.inputs, &tiny.result].into_iter();
            let rest = rest.chain(&tiny.acts).chain(&tiny.deltas).chain(&tiny.grads);
            rest.for_each(|t| _ = guard(format!("free {t}"), t));
        }
        Tiny { contract: Arc::new(c), ..tiny }
    }

    pub fn builder(&self, name: &str) -> Builder<Op, Task> {
        Builder::new(name, self.contract.clone())
    }

    fn forward(&self, b: &mut Builder<Op, Task>) {
        b.label(Label { phase: Phase::Input, ..Label::default() });
        b.host(DATA, Task::Fill { inputs: self.inputs });
        b.copy(H2D, self.inputs.span, self.acts[0].span);
        for u in 0..UNITS {
            b.label(label(Phase::Forward, u));
            let slot = self.slots[u % 2];
            b.copy(H2D, self.weights[u].span, slot.span);
            b.launch(COMPUTE, matmul(self.acts[u], slot, self.acts[u + 1], false, false));
        }
        b.label(Label { phase: Phase::Loss, ..Label::default() });
        b.copy(D2H, self.acts[UNITS].span, self.result.span);
        b.host(UPDATE, Task::Accumulate { result: self.result, state: self.state });
    }

    /// A program of this kind.
    pub fn program(&self, kind: Kind) -> Arc<Program<Op, Task>> {
        let mut b = self.builder(match kind {
            Kind::Evaluate => "evaluate",
            Kind::Train => "train",
            Kind::Touch => "touch",
        });
        match kind {
            Kind::Evaluate => self.forward(&mut b),
            Kind::Train => self.train(&mut b),
            Kind::Touch => self.touch(&mut b),
        }
        Arc::new(b.finish().unwrap())
    }

    fn touch(&self, b: &mut Builder<Op, Task>) {
        let (w, state, ring, acts) = (&self.weights, self.state, &self.ring, &self.acts);
        let items = [
            (acts[0], ring[0], w[0]),
            (self.slots[0], ring[1], w[1]),
            (self.slots[1], ring[0], w[2]),
            (acts[1], ring[1], state),
            (acts[2], ring[0], state),
            (acts[3], ring[1], state),
            (self.deltas[0], self.result, state),
            (self.grads[0], ring[0], state),
            (self.deltas[1], ring[0], state),
            (self.grads[1], ring[1], state),
        ];
        for (i, (buffer, host, target)) in items.into_iter().enumerate() {
            b.copy(H2D, self.constant.span, buffer.span);
            b.copy(D2H, buffer.span, host.span);
            let lane = if i + 1 < items.len() { UPDATE } else { IO };
            b.host(lane, Task::Accumulate { result: host, state: target });
        }
    }

    fn train(&self, b: &mut Builder<Op, Task>) {
        self.forward(b);
        let last = self.acts[UNITS];
        b.launch(COMPUTE, Add { a: last, b: last, out: self.deltas[0] }.into());
        for (i, u) in (0..UNITS).rev().enumerate() {
            b.label(label(Phase::Backward, u));
            let (slot, grad, ring) = (self.slots[u % 2], self.grads[i % 2], self.ring[i % 2]);
            // The last two units are still in their slots.
            if i >= 2 {
                b.copy(H2D, self.weights[u].span, slot.span);
            }
            let (delta, next) = (self.deltas[i % 2], self.deltas[(i + 1) % 2]);
            b.launch(COMPUTE, matmul(self.acts[u], delta, grad, true, false));
            b.launch(COMPUTE, matmul(delta, slot, next, false, true));
            b.copy(D2H, grad.span, ring.span);
            b.label(label(Phase::Update, u));
            b.host(UPDATE, Task::Update { grad: ring, weight: self.weights[u] });
        }
        // The gradient of the inputs, so that nothing is computed in vain.
        b.label(Label { phase: Phase::Loss, ..Label::default() });
        b.copy(D2H, self.deltas[UNITS % 2].span, self.result.span);
        b.host(UPDATE, Task::Accumulate { result: self.result, state: self.state });
    }

    /// An executor on memory of its own, weights set.
    pub fn executor(&self, options: ExecutorOptions) -> CpuExecutor<Task> {
        let blocks = self.contract.regions.iter().map(|r| RegionMemory::heap(r.len_bytes).unwrap()).collect();
        let executor = CpuExecutor::new(self.contract.clone(), blocks, options).unwrap();
        for (t, tensor) in self.weights.iter().chain([&self.constant]).enumerate() {
            let values: Vec<f32> = (0..N * N).map(|i| initial(t, i) as f32).collect();
            executor.write(tensor, &values).unwrap();
        }
        executor
    }

    /// Issues the programs one after the other without waiting in between, then waits for all of them.
    pub fn issue(&self, executor: &CpuExecutor<Task>, programs: &[Arc<Program<Op, Task>>]) -> Vec<Ticket> {
        let tasks = |step| Arc::new(Tasks { step, ..Tasks::default() });
        programs.iter().zip(0..).map(|(p, step)| executor.run(p.clone(), tasks(step)).unwrap()).collect()
    }

    /// The bits of weights and state.
    pub fn bits(&self, executor: &CpuExecutor<Task>) -> Vec<u32> {
        let lasting = self.weights.iter().chain([&self.state]);
        lasting.flat_map(|t| executor.read::<f32>(t).unwrap()).map(f32::to_bits).collect()
    }

    /// Runs the programs and returns the bits, or the first error's text.
    pub fn outcome(&self, programs: &[Arc<Program<Op, Task>>], options: ExecutorOptions) -> Result<Vec<u32>, String> {
        let executor = self.executor(options);
        for (program, step) in programs.iter().zip(0..) {
            let tasks = Arc::new(Tasks { step, ..Tasks::default() });
            drop(executor.run(program.clone(), tasks).map_err(|error| error.to_string())?);
        }
        let nothing = Arc::new(self.builder("nothing").finish().unwrap());
        executor.wait_idle();
        executor.run(nothing, Arc::new(Tasks::default())).map_err(|error| error.to_string())?.wait().unwrap();
        Ok(self.bits(&executor))
    }
}

pub fn label(phase: Phase, unit: usize) -> Label {
    Label { phase, unit: Some(UnitId(unit as u32)), micro: Some(0) }
}

pub fn matmul(a: Tensor, b: Tensor, c: Tensor, transpose_a: bool, transpose_b: bool) -> Op {
    Matmul { a, b, c, transpose_a, transpose_b, accumulate: false }.into()
}

type Matrix = [i64; N * N];

/// `a b`, by definition; `at` and `bt` transpose.
fn product(a: &Matrix, b: &Matrix, at: bool, bt: bool) -> Matrix {
    let get = |m: &Matrix, t: bool, i: usize, j: usize| if t { m[j * N + i] } else { m[i * N + j] };
    std::array::from_fn(|at_| (0..N).map(|k| get(a, at, at_ / N, k) * get(b, bt, k, at_ % N)).sum())
}

/// What the bits of weights and state must be after these programs.
pub fn expected(kinds: &[Kind]) -> Vec<u32> {
    let mut weights: Vec<Matrix> = (0..UNITS).map(|u| std::array::from_fn(|i| initial(u, i))).collect();
    let mut state: Matrix = [0; N * N];
    let hashed = |old: &Matrix, by: &Matrix| -> Matrix { std::array::from_fn(|i| updated(old[i], by[i], i)) };
    for (&kind, step) in kinds.iter().zip(0..) {
        if kind == Kind::Touch {
            let constant = std::array::from_fn(|i| initial(UNITS, i));
            weights.iter_mut().for_each(|w| *w = hashed(w, &constant));
            (UNITS..2 + BUFFERS).for_each(|_| state = hashed(&state, &constant));
            continue;
        }
        let mut acts: Vec<Matrix> = vec![std::array::from_fn(|i| input(step, i))];
        for w in &weights {
            acts.push(product(acts.last().unwrap(), w, false, false));
        }
        state = hashed(&state, &acts[UNITS]);
        if kind == Kind::Evaluate {
            continue;
        }
        let mut delta = acts[UNITS].map(|x| 2 * x);
        for u in (0..UNITS).rev() {
            let grad = product(&acts[u], &delta, true, false);
            delta = product(&delta, &weights[u], false, true);
            let exact = |x: &i64| x.abs() < 1 << 24;
            assert!(grad.iter().chain(&delta).all(exact), "values must be exact in f32");
            weights[u] = hashed(&weights[u], &grad);
        }
        state = hashed(&state, &delta);
    }
    weights.iter().chain([&state]).flatten().map(|&x| (x as f32).to_bits()).collect()
}
