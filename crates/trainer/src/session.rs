//! [`Session`]: a plan with its memory committed and an executor over it.

use crate::tasks::{StepResult, StepTasks};
use anyhow::{Context, Result, anyhow};
use megatrain_arena::{Arena, CommitOptions, Kind, Limits};
use megatrain_base::{Access, Operands, Span};
use megatrain_cpu::{CpuExecutor, ExecutorOptions};
use megatrain_exec::{Executor, RegionMemory, RunReport, Ticket};
use megatrain_planner::{HostTask, Plan, Program, Purpose};
use std::sync::Arc;

/// A plan with its memory committed, before weights are in it.
pub struct Memory {
    plan: Arc<Plan>,
    arena: Arena,
}

/// What the process takes beside the plan's regions: code, tokenizer, threads' stacks, kernels' scratch. The data set
/// comes on top.
const PROCESS_BYTES: u64 = 64 << 20;

/// Bytes that a run of the plan takes in all, the data set apart.
pub fn planned_bytes(plan: &Plan) -> u64 {
    plan.regions().iter().map(|r| r.len_bytes).sum::<u64>() + PROCESS_BYTES
}

/// The arena's plan for a planner's regions.
pub fn arena_plan(plan: &Plan) -> megatrain_arena::Plan {
    let mut arena = megatrain_arena::Plan::new();
    for region in plan.regions() {
        let kind = match region.purpose {
            Purpose::Weights => Kind::Weights,
            Purpose::OptimizerState => Kind::OptimizerState,
            Purpose::Gradients => Kind::Gradients,
            Purpose::Staging => Kind::Staging,
            Purpose::Spill => Kind::Activations,
            Purpose::DeviceHeap => Kind::DeviceHeap,
        };
        arena.reserve(&region.name, kind, region.len_bytes);
    }
    arena.allow_for("program, tokenizer, kernel scratch", PROCESS_BYTES);
    arena
}

/// The arena's plan, if this machine has room for it. Allocates nothing.
///
/// # Errors
/// Every limit that is too small, with what the plan needs of it and what makes the plan smaller.
pub fn fits(plan: &Plan) -> Result<megatrain_arena::Plan> {
    let arena = arena_plan(plan);
    arena.check(&Limits::read()?).map_err(|error| {
        let settings = match plan.settings.train {
            true => {
                "a smaller model; lower --micro-batch-size, --batch-size or --seq-len; --device-memory, which caps the \
                 device heap"
            }
            false => "a smaller model, a shorter --prompt, fewer --max-tokens",
        };
        anyhow!("{error}\n  what makes the plan smaller: {settings}")
    })?;
    Ok(arena)
}

impl Memory {
    /// Checks the plan against the machine and allocates it.
    ///
    /// # Errors
    /// What does not fit, before anything is allocated.
    pub fn commit(plan: Arc<Plan>, threads: usize) -> Result<Memory> {
        let arena = fits(&plan)?;
        let total: u64 = arena.regions().iter().map(|r| r.bytes).sum();
        let bar = crate::progress::bar(total, "preparing memory");
        let shown = bar.clone();
        let progress = move |p: megatrain_arena::Progress| shown.set_position(p.done_bytes);
        let options =
            CommitOptions { threads, check: false, progress: Some(Box::new(progress)), ..CommitOptions::default() };
        let arena = arena.commit(&options).context("allocating the plan's memory")?;
        bar.finish_and_clear();
        Ok(Memory { plan, arena })
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Slices of host regions, for filling them before anything runs.
    pub fn operands(&mut self, spans: &[Span]) -> Operands<'_> {
        let resolved: Vec<_> = spans
            .iter()
            .map(|span| {
                let region = self.arena.region(span.region.0 as usize);
                assert!(span.end_bytes() <= region.len_bytes() as u64, "{span} lies outside its region");
                // SAFETY: the offset is inside the region, by the line above.
                (*span, Access::Update, unsafe { region.as_ptr().add(span.offset_bytes as usize) })
            })
            .collect();
        // SAFETY: the regions are initialised (the arena zero-fills them), the spans lie inside them, and `&mut self`
        // keeps everybody else away from the arena for the life of the operands.
        unsafe { Operands::new(resolved) }
    }

    /// An executor over this memory.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn start(self, options: ExecutorOptions) -> Result<Session> {
        let Memory { plan, arena } = self;
        let arena = Arc::new(arena);
        let regions = (0..plan.regions().len())
            .map(|i| {
                let region = arena.region(i);
                // SAFETY: the arena keeps every region mapped, initialised and to itself until it is dropped, which the
                // clone of `arena` handed over here delays; regions do not overlap; from here on only the executor
                // touches them.
                unsafe { RegionMemory::new(region.as_ptr(), region.len_bytes() as u64, arena.clone()) }
            })
            .collect();
        let executor = CpuExecutor::new(plan.contract(), regions, options)?;
        Ok(Session { plan, executor: Box::new(executor) })
    }
}

/// A plan with an executor over its memory.
pub struct Session {
    plan: Arc<Plan>,
    executor: Box<dyn Executor<HostTask>>,
}

/// A program that was issued.
pub struct Run {
    ticket: Ticket,
    tasks: Arc<StepTasks>,
}

impl Run {
    /// Waits for the program and returns what it brought.
    ///
    /// # Errors
    /// The executor's first failure.
    pub fn wait(self) -> Result<(StepResult, RunReport)> {
        let report = self.ticket.wait()?;
        Ok((self.tasks.result(), report))
    }
}

impl Session {
    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The executor.
    pub fn executor(&self) -> &dyn Executor<HostTask> {
        &*self.executor
    }

    /// Issues a program.
    ///
    /// # Errors
    /// If an earlier program failed.
    pub fn issue(&self, program: &Arc<Program>, tasks: StepTasks) -> Result<Run> {
        let tasks = Arc::new(tasks);
        let ticket = self.executor.run(program.clone(), tasks.clone())?;
        Ok(Run { ticket, tasks })
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// The executor's first failure.
    pub fn run(&self, program: &Arc<Program>, tasks: StepTasks) -> Result<(StepResult, RunReport)> {
        self.issue(program, tasks)?.wait()
    }
}
