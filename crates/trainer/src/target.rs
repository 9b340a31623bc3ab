//! [`Target`]: where a run computes: the processor or a GPU; and what falls back to what.

use crate::options::{Device, ExecutorMode, TrainOptions};
use crate::session::{Memory, Placement, Session};
use crate::setup;
use anyhow::{Context, Result, anyhow, bail};
use megatrain_base::fmt_bytes;
use megatrain_cuda::{Preparation, Runner, StreamOptions};
use megatrain_planner::{Model, Plan, PlanError, Settings};
use megatrain_scheduler::Cmd;
use std::sync::Arc;

/// Device memory left to the driver, to kernels that it loads when they first run, and to cuBLASLt.
const DRIVER_BYTES: u64 = 768 << 20;

/// Where programs run.
#[derive(Debug)]
pub enum Target {
    /// The CPU executor.
    Cpu,
    /// A GPU.
    Cuda(Box<Cuda>),
}

/// A GPU with its kernels loaded.
#[derive(Debug)]
pub struct Cuda {
    /// The GPU.
    pub device: Arc<megatrain_cuda::Device>,
    runner: Runner,
    /// Whether the CPU does if this does not.
    optional: bool,
}

impl Target {
    /// Opens what was asked for, and says what it is.
    ///
    /// # Errors
    /// A GPU asked for by name that cannot be used. With [`Device::Auto`] that is said, and the CPU taken.
    pub fn choose(asked: Device) -> Result<Target> {
        let ordinal = match asked {
            Device::Cpu => return Ok(Target::Cpu),
            Device::Auto => 0,
            Device::Cuda(ordinal) => ordinal,
        };
        let open = || -> Result<Cuda, megatrain_cuda::CudaError> {
            let device = megatrain_cuda::Device::open(ordinal)?;
            let runner = Runner::new(&device, None)?;
            Ok(Cuda { device, runner, optional: asked == Device::Auto })
        };
        match open() {
            Ok(cuda) => {
                let (free, total) = cuda.device.memory_bytes()?;
                let (name, free, total) = (cuda.device.name(), fmt_bytes(free), fmt_bytes(total));
                say!("device   cuda:{ordinal}, {name}, {free} of {total} free");
                Ok(Target::Cuda(Box::new(cuda)))
            }
            Err(error) if asked == Device::Auto => {
                say!("device   the processor: {error}");
                Ok(Target::Cpu)
            }
            Err(error) => Err(anyhow!(error).context(format!("--device {asked}"))),
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> Option<&Arc<megatrain_cuda::Device>> {
        match self {
            Target::Cpu => None,
            Target::Cuda(cuda) => Some(&cuda.device),
        }
    }

    /// Plans for this target; where a GPU that nobody asked for by name is too small, for the CPU.
    ///
    /// # Errors
    /// Nothing fits.
    pub fn plan(
        self,
        model: &Arc<Model>,
        settings: impl Fn(&Target) -> Result<Settings>,
    ) -> Result<(Target, Arc<Plan>)> {
        let wanted = settings(&self)?;
        let cuda = match self {
            Target::Cpu => return Ok((Target::Cpu, setup::plan(model, wanted)?)),
            Target::Cuda(cuda) => cuda,
        };
        match cuda.plan(model, wanted) {
            Ok(plan) => Ok((Target::Cuda(cuda), plan)),
            Err(error @ PlanError::BudgetTooSmall { .. }) if cuda.optional => {
                say!("device   the processor instead: {error}");
                drop(cuda);
                let plan = setup::plan(model, settings(&Target::Cpu)?)?;
                Ok((Target::Cpu, plan))
            }
            Err(error) => Err(anyhow!(error).context(format!("planning for {}", cuda.device.name()))),
        }
    }

    /// Where the plan's regions go.
    pub fn placement(&self, threads: usize) -> Placement<'_> {
        Placement { threads, gpu: self.gpu(), alias_blocks: None }
    }

    /// An executor over committed memory.
    ///
    /// # Errors
    /// Options that this target does not know, threads or device memory that cannot be had.
    pub fn start(self, memory: Memory, options: &TrainOptions) -> Result<Session> {
        match self {
            Target::Cpu => memory.start(setup::executor(options)),
            Target::Cuda(cuda) => {
                if let Some(mode @ (ExecutorMode::Inline | ExecutorMode::Shuffle(_))) = options.executor {
                    bail!("--executor {mode} is an order of the CPU executor; leave it out, or use --device cpu");
                }
                let options = StreamOptions {
                    trace: options.trace.is_some(),
                    threads: options.threads.unwrap_or(0),
                    debug_sync: options.debug_sync.unwrap_or(false),
                    ..StreamOptions::default()
                };
                cuda.start(memory, options)
            }
        }
    }
}

impl Cuda {
    /// Plans within the GPU's free memory.
    fn plan(&self, model: &Arc<Model>, settings: Settings) -> Result<Arc<Plan>, PlanError> {
        let model = Model::clone(model);
        // What ops need for themselves depends on the templates alone, not on the budget.
        let generous = Plan::new(model.clone(), Settings { device_memory_bytes: u64::MAX, ..settings.clone() })?;
        let (free, _) = self.device.memory_bytes().map_err(|error| PlanError::Setting(error.to_string()))?;
        let room = free.saturating_sub(DRIVER_BYTES + scratch_bytes(&generous)?);
        let budget = settings.device_memory_bytes.min(room);
        if generous.regions()[generous.device_region().0 as usize].len_bytes <= budget {
            return Ok(Arc::new(generous));
        }
        Ok(Arc::new(Plan::new(model, Settings { device_memory_bytes: budget, ..settings })?))
    }

    /// An executor over committed memory.
    ///
    /// # Errors
    /// Device memory or threads that cannot be had.
    pub fn start(self, memory: Memory, options: StreamOptions) -> Result<Session> {
        let Cuda { device, runner, .. } = self;
        let scratch = scratch_bytes(memory.plan())?;
        let scratch =
            megatrain_cuda::DeviceBuffer::new(&device, scratch).context("reserving the ops' scratch memory")?;
        let mut bar = None;
        let tell = move |preparation| match preparation {
            Preparation::Products { done, total } => {
                let bar = bar.get_or_insert_with(|| crate::progress::bar(total as u64, "timing matrix products"));
                bar.set_position(done as u64);
                if done == total {
                    bar.finish_and_clear();
                }
            }
            Preparation::Note(note) => say!("note     {note}"),
        };
        let gpu = megatrain_cuda::Gpu::new(runner, scratch, tell);
        memory.start_on(&device, gpu, options)
    }
}

/// Scratch memory that the ops of any program of this plan need.
fn scratch_bytes(plan: &Plan) -> Result<u64, PlanError> {
    let mut programs = vec![plan.evaluate(1)?, plan.generate(plan.settings.micro_tokens)?];
    if plan.settings.train {
        programs.push(plan.train(1)?);
    }
    let ops = programs.iter().flat_map(|program| &program.commands).filter_map(|entry| match &entry.cmd {
        Cmd::Launch(op) => Some(megatrain_cuda::scratch_bytes(op)),
        _ => None,
    });
    Ok(ops.max().unwrap_or(0))
}
