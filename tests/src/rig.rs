//! [`Rig`]: one model with its plan, memory, executor and optimizer, driven step by step as the training loop does it,
//! with a way to look at every weight, moment and gradient.

use megatrain_base::slab::SlabTensor;
use megatrain_base::{DType, Tensor, UnitId, bf16, master};
use megatrain_cpu::ExecutorOptions;
use megatrain_cuda::{Backend, StreamExecutor, StreamOptions};
use megatrain_data::{IGNORE, MicroBatch};
use megatrain_optim::AdamW;
use megatrain_planner::{Plan, Settings};
use megatrain_scheduler::{HostTasks, TaskError, verify};
use megatrain_trainer::options::Device;
use megatrain_trainer::session::{Memory, Placement, Run, Session};
use megatrain_trainer::setup::{self, Source};
use megatrain_trainer::target::Target;
use megatrain_trainer::tasks::{OptimStep, StepResult, StepTasks};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps in flight at once, as in the training loop.
const IN_FLIGHT: usize = 2;

/// Seed of random weights.
const SEED: u64 = 7;

/// What a step does to the weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Optim {
    /// AdamW's constants.
    pub adamw: AdamW,
    /// Learning rate.
    pub lr: f64,
    /// Largest gradient norm.
    pub max_norm: Option<f64>,
}

impl Optim {
    /// AdamW's defaults, no clipping.
    pub fn lr(lr: f64) -> Self {
        Optim { adamw: AdamW::default(), lr, max_norm: None }
    }

    /// With this largest norm.
    pub fn clip(self, max_norm: f64) -> Self {
        Optim { max_norm: Some(max_norm), ..self }
    }
}

/// A model ready to train.
pub struct Rig {
    session: Session,
    model: Arc<megatrain_planner::Model>,
    applied: Arc<AtomicU64>,
}

/// Weights and moments of a model as bits, by tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// Name; f32 bits of master, first and second moment.
    pub tensors: Vec<(String, [Vec<u32>; 3])>,
    /// AdamW steps applied.
    pub applied: u64,
}

/// What a run came to, as bits.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Loss of each step, summed over its targets.
    pub losses: Vec<f64>,
    /// Gradient norm of each step before clipping.
    pub norms: Vec<f64>,
    /// At the end.
    pub state: State,
}

impl Rig {
    /// Plans, allocates and loads, for the CPU executor; or for a GPU if MEGATRAIN_TEST_DEVICE says `cuda`, so that whole
    /// test programs can be run there.
    ///
    /// # Panics
    /// If any of that fails.
    pub fn new(source: &Source, settings: Settings, executor: ExecutorOptions) -> Rig {
        match std::env::var("MEGATRAIN_TEST_DEVICE").as_deref() {
            Ok("cuda") => Rig::on_gpu(source, settings, stream_options(&executor)),
            _ => Rig::on_cpu(source, settings, executor),
        }
    }

    /// On the CPU executor.
    ///
    /// # Panics
    /// If anything fails.
    pub fn on_cpu(source: &Source, settings: Settings, executor: ExecutorOptions) -> Rig {
        let placement = Placement { threads: executor.threads, ..Placement::default() };
        Rig::start(source, settings, placement, |memory| memory.start(executor))
    }

    /// On the first GPU.
    ///
    /// # Panics
    /// If there is none, or anything else fails.
    pub fn on_gpu(source: &Source, settings: Settings, options: StreamOptions) -> Rig {
        let target = Target::choose(Device::Cuda(0)).unwrap_or_else(|e| panic!("{e:#}"));
        let Target::Cuda(cuda) = target else { unreachable!("a GPU was asked for") };
        let device = cuda.device.clone();
        let placement = Placement { gpu: Some(&device), ..Placement::default() };
        Rig::start(source, settings, placement, |memory| cuda.start(memory, options))
    }

    /// On a backend that computes on the processor.
    ///
    /// # Panics
    /// If anything fails.
    pub fn on_backend(source: &Source, settings: Settings, backend: impl Backend, options: StreamOptions) -> Rig {
        Rig::start(source, settings, Placement::default(), |memory| {
            memory
                .start_with(|contract, regions| Ok(Box::new(StreamExecutor::new(backend, contract, regions, options)?)))
        })
    }

    fn start(
        source: &Source,
        settings: Settings,
        placement: Placement<'_>,
        start: impl FnOnce(Memory) -> anyhow::Result<Session>,
    ) -> Rig {
        let plan =
            Plan::new(megatrain_planner::Model::clone(&source.model), settings).unwrap_or_else(|e| panic!("{e}"));
        let memory = setup::load(source, Arc::new(plan), placement, SEED).unwrap_or_else(|e| panic!("{e:#}"));
        let session = start(memory).unwrap_or_else(|e| panic!("{e:#}"));
        Rig { session, model: source.model.clone(), applied: Arc::default() }
    }

    /// The session, for what this does not wrap.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        self.session.plan()
    }

    /// The tasks of a training step.
    pub fn tasks(&self, micros: &[MicroBatch], optim: Optim) -> StepTasks {
        let Optim { adamw, lr, max_norm } = optim;
        let step = OptimStep { adamw, lr, max_norm, applied: self.applied.clone() };
        StepTasks::new(self.model.clone(), micros.to_vec(), Some(step))
    }

    /// Issues a training step.
    ///
    /// # Panics
    /// If there is no such program, or the executor has stopped.
    pub fn issue(&self, micros: &[MicroBatch], optim: Optim) -> Run {
        let program = self.plan().train(micros.len()).unwrap_or_else(|e| panic!("{e}"));
        self.session.issue(&program, self.tasks(micros, optim)).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// A training step.
    ///
    /// # Panics
    /// If it fails.
    pub fn step(&self, micros: &[MicroBatch], optim: Optim) -> StepResult {
        self.issue(micros, optim).wait().unwrap_or_else(|e| panic!("{e:#}")).0
    }

    /// A training step whose host tasks are run by `change`, which is handed the ordinary ones.
    ///
    /// # Errors
    /// The executor's first failure.
    pub fn step_changed(
        &self,
        micros: &[MicroBatch],
        optim: Optim,
        change: impl Fn(&megatrain_planner::HostTask, &megatrain_base::Operands<'_>, &StepTasks) -> Result<(), TaskError>
        + Send
        + Sync
        + 'static,
    ) -> Result<StepResult, String> {
        struct Changed<F>(StepTasks, F);
        impl<F> HostTasks<megatrain_planner::HostTask> for Changed<F>
        where
            F: Fn(&megatrain_planner::HostTask, &megatrain_base::Operands<'_>, &StepTasks) -> Result<(), TaskError>
                + Send
                + Sync,
        {
            fn run(
                &self,
                task: &megatrain_planner::HostTask,
                operands: &megatrain_base::Operands<'_>,
            ) -> Result<(), TaskError> {
                (self.1)(task, operands, &self.0)
            }
        }
        let program = self.plan().train(micros.len()).map_err(|e| e.to_string())?;
        let tasks = Arc::new(Changed(self.tasks(micros, optim), change));
        let ticket = self.session.executor().run(program, tasks.clone()).map_err(|e| e.to_string())?;
        ticket.wait().map_err(|e| e.to_string())?;
        Ok(tasks.0.result())
    }

    /// Trains on one list of micro-batches a step, two steps in flight.
    ///
    /// # Panics
    /// If a step fails.
    pub fn train(&self, steps: &[Vec<MicroBatch>], optim: Optim) -> Outcome {
        let mut outcome = Outcome { losses: Vec::new(), norms: Vec::new(), state: self.state() };
        let mut in_flight = VecDeque::new();
        let mut finish = |run: Run| {
            let (result, _) = run.wait().unwrap_or_else(|e| panic!("{e:#}"));
            outcome.losses.push(result.loss_sum());
            outcome.norms.push(result.grad_norm());
        };
        for micros in steps {
            in_flight.push_back(self.issue(micros, optim));
            if in_flight.len() == IN_FLIGHT {
                in_flight.pop_front().into_iter().for_each(&mut finish);
            }
        }
        in_flight.into_iter().for_each(&mut finish);
        outcome.state = self.state();
        outcome
    }

    /// Sum of the losses of each micro-batch, in groups of as many as the plan evaluates at once.
    ///
    /// # Panics
    /// If the program fails or does not verify.
    pub fn evaluate(&self, micros: &[MicroBatch]) -> Vec<f64> {
        let group = |part: &[MicroBatch]| {
            let program = self.plan().evaluate(part.len()).unwrap_or_else(|e| panic!("{e}"));
            verify(&program).unwrap_or_else(|e| panic!("{e}"));
            let tasks = StepTasks::new(self.model.clone(), part.to_vec(), None);
            self.session.run(&program, tasks).unwrap_or_else(|e| panic!("{e:#}")).0.loss_sums
        };
        micros.chunks(self.plan().group()).flat_map(group).collect()
    }

    /// `[vocab]`: logits at place `row` of a micro-batch.
    ///
    /// # Panics
    /// If the program fails or does not verify.
    pub fn logits(&self, batch: &MicroBatch, row: usize) -> Vec<f32> {
        let program = self.plan().generate(batch.tokens.len()).unwrap_or_else(|e| panic!("{e}"));
        verify(&program).unwrap_or_else(|e| panic!("{e}"));
        let cell = self.plan().row_index();
        self.session.executor().write::<i32>(&cell, &[row as i32]).unwrap_or_else(|e| panic!("{e}"));
        // A generation has no targets; that they are ignored is part of what is tested.
        let batch = MicroBatch { targets: vec![IGNORE; batch.targets.len()], target_count: 0, ..batch.clone() };
        let tasks = StepTasks::new(self.model.clone(), vec![batch], None);
        self.session.run(&program, tasks).unwrap_or_else(|e| panic!("{e:#}")).0.logits
    }

    /// Every tensor of the model with its unit.
    pub fn tensors(&self) -> impl Iterator<Item = (UnitId, &SlabTensor)> {
        let units = self.model.units.iter().enumerate();
        units.flat_map(|(u, unit)| unit.layout.tensors.iter().map(move |t| (UnitId(u as u32), t)))
    }

    /// The tensor of this name with its unit.
    ///
    /// # Panics
    /// If there is none.
    pub fn tensor(&self, name: &str) -> (UnitId, &SlabTensor) {
        self.tensors().find(|(_, t)| t.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Where a tensor's streamed weights lie.
    pub fn weight(&self, name: &str) -> Tensor {
        let (unit, tensor) = self.tensor(name);
        within(tensor, &self.plan().unit(unit).weights)
    }

    /// A tensor's f32 masters.
    pub fn master(&self, name: &str) -> Vec<f32> {
        let (unit, tensor) = self.tensor(name);
        let regions = self.plan().unit(unit);
        let weights = self.values(&within(tensor, &regions.weights));
        if regions.low.elems() == 0 {
            return weights;
        }
        let low = self.session.executor().read::<u16>(&within(tensor, &regions.low)).expect("low halves");
        let join = |(w, lo): (f32, u16)| f32::from_bits(master::join(bf16::from_f32(w).to_bits(), lo));
        weights.into_iter().zip(low).map(join).collect()
    }

    /// A tensor's first and second moment.
    pub fn moments(&self, name: &str) -> [Vec<f32>; 2] {
        let (unit, tensor) = self.tensor(name);
        let regions = self.plan().unit(unit);
        [regions.m, regions.v].map(|slab| self.values(&within(tensor, &slab)))
    }

    /// A tensor's gradient in the last step, before clipping, as the optimizer reads it.
    ///
    /// # Panics
    /// If the plan keeps it nowhere: under the eager policy, of units that are not summed.
    pub fn gradient(&self, name: &str) -> Vec<f32> {
        let (unit, tensor) = self.tensor(name);
        let regions = self.plan().unit(unit);
        let slab = regions.sum.or(regions.landing).expect("a gradient with a place of its own");
        self.values(&within(tensor, &slab))
    }

    /// All weights and moments as bits.
    pub fn state(&self) -> State {
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        let tensors = self.tensors().map(|(_, t)| {
            let [m, v] = self.moments(&t.name);
            (t.name.clone(), [self.master(&t.name), m, v].map(bits))
        });
        let tensors = tensors.collect();
        State { tensors, applied: self.applied.load(Ordering::SeqCst) }
    }

    fn values(&self, tensor: &Tensor) -> Vec<f32> {
        let executor = self.session.executor();
        match tensor.dtype {
            DType::F32 => executor.read::<f32>(tensor).unwrap_or_else(|e| panic!("{e}")),
            _ => {
                let values = executor.read::<bf16>(tensor).unwrap_or_else(|e| panic!("{e}"));
                values.into_iter().map(bf16::to_f32).collect()
            }
        }
    }
}

/// What an executor on a device knows of these options.
fn stream_options(options: &ExecutorOptions) -> StreamOptions {
    StreamOptions {
        poison: options.poison,
        trace: options.trace,
        threads: options.threads,
        delay: options.delay.clone(),
        debug_sync: false,
    }
}

fn within(tensor: &SlabTensor, slab: &Tensor) -> Tensor {
    tensor.place(slab.span.region, slab.span.offset_bytes, slab.dtype)
}

impl State {
    /// The first thing that differs, for a person.
    pub fn difference(&self, other: &State) -> Option<String> {
        if self.applied != other.applied {
            return Some(format!("{} and {} AdamW steps", self.applied, other.applied));
        }
        for ((name, ours), (_, theirs)) in self.tensors.iter().zip(&other.tensors) {
            for (what, (a, b)) in ["weight", "first moment", "second moment"].iter().zip(ours.iter().zip(theirs)) {
                if let Some(i) = (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i)) {
                    let value = |v: &[u32]| v.get(i).map(|&bits| f32::from_bits(bits));
                    return Some(format!("{what} of {name}[{i}]: {:?} and {:?}", value(a), value(b)));
                }
            }
        }
        None
    }
}

impl Outcome {
    /// The first thing that differs, bit for bit, for a person.
    pub fn difference(&self, other: &Outcome) -> Option<String> {
        for (what, ours, theirs) in [("loss", &self.losses, &other.losses), ("norm", &self.norms, &other.norms)] {
            for (step, (a, b)) in ours.iter().zip(theirs).enumerate() {
                if a.to_bits() != b.to_bits() {
                    return Some(format!("{what} of step {step}: {a:e} and {b:e}"));
                }
            }
        }
        self.state.difference(&other.state)
    }
}
