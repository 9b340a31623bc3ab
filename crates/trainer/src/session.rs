//! [`Session`]: a plan with its memory committed and an executor over it.

use crate::tasks::{StepResult, StepTasks};
use anyhow::{Context, Result, anyhow};
use megatrain_arena::{Arena, CommitOptions, Kind, Limits, PinFailure, Reservation};
use megatrain_base::{Access, Operands, Span};
use megatrain_cpu::{CpuExecutor, ExecutorOptions};
use megatrain_cuda::{Backend, Device, DeviceBuffer, HostPinner, StreamExecutor, StreamOptions};
use megatrain_exec::{Executor, RegionMemory, RunReport, Ticket};
use megatrain_planner::{HostTask, Plan, Program, Purpose};
use megatrain_scheduler::Contract;
use std::sync::Arc;

/// A plan with its memory committed, before weights are in it.
pub struct Memory {
    plan: Arc<Plan>,
    arena: Arena,
    /// For each region, the region whose memory it has: its own, except where blocks share some.
    homes: Vec<usize>,
}

/// Where a plan's regions go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placement<'a> {
    /// Threads that touch fresh memory; 0 for all.
    pub threads: usize,
    /// The GPU that has the device heap and copies from the other regions; none: the heap is host memory.
    pub gpu: Option<&'a Arc<Device>>,
    /// For timing shapes larger than the machine: block `l` has the memory of block `l % alias_blocks`. Results mean
    /// nothing then.
    pub alias_blocks: Option<usize>,
}

/// What the process takes beside the plan's regions: code, tokenizer, threads' stacks, kernels' scratch. The data set
/// comes on top.
const PROCESS_BYTES: u64 = 64 << 20;

/// Host memory that CUDA's driver and libraries take.
const CUDA_HOST_BYTES: u64 = 448 << 20;

/// Bytes of host memory that a run of the plan takes in all, the data set apart.
pub fn planned_bytes(plan: &Plan, placement: Placement<'_>) -> u64 {
    let arena = arena_plan(plan, placement);
    let regions: u64 = arena.regions().iter().map(|r| r.bytes).sum();
    regions + arena.allowances().iter().map(|(_, bytes)| bytes).sum::<u64>()
}

/// For each region, the region whose memory it has.
fn homes(plan: &Plan, placement: Placement<'_>) -> Vec<usize> {
    let mut homes: Vec<usize> = (0..plan.regions().len()).collect();
    let Some(distinct) = placement.alias_blocks.filter(|&k| k > 0) else { return homes };
    for block in distinct..plan.model.blocks() {
        let [from, to] = [block % distinct, block].map(|l| plan.unit(plan.model.block_unit(l)));
        let slabs = |unit: &megatrain_planner::UnitRegions| {
            [Some(unit.weights), Some(unit.m), unit.sum, unit.landing]
                .map(|slab| slab.map(|t| t.span.region.0 as usize))
        };
        for (from, to) in slabs(from).into_iter().zip(slabs(to)) {
            if let (Some(from), Some(to)) = (from, to) {
                homes[to] = from;
            }
        }
    }
    homes
}

/// The arena's plan for a planner's regions.
pub fn arena_plan(plan: &Plan, placement: Placement<'_>) -> megatrain_arena::Plan {
    let mut arena = megatrain_arena::Plan::new();
    let homes = homes(plan, placement);
    for (i, region) in plan.regions().iter().enumerate() {
        let kind = match region.purpose {
            Purpose::Weights => Kind::Weights,
            Purpose::OptimizerState => Kind::OptimizerState,
            Purpose::Gradients => Kind::Gradients,
            Purpose::Staging => Kind::Staging,
            Purpose::Spill => Kind::Activations,
            Purpose::DeviceHeap => Kind::DeviceHeap,
        };
        let on_gpu = placement.gpu.is_some() && region.purpose == Purpose::DeviceHeap;
        let bytes = if on_gpu || homes[i] != i { 0 } else { region.len_bytes };
        let reservation = Reservation::new(&region.name, kind, bytes);
        // The optimizer's state never crosses the link.
        let crosses = !matches!(region.purpose, Purpose::OptimizerState | Purpose::DeviceHeap);
        arena.add(if crosses { reservation.pinned() } else { reservation });
    }
    arena.allow_for("program, tokenizer, kernel scratch", PROCESS_BYTES);
    if placement.gpu.is_some() {
        arena.allow_for("CUDA driver and libraries", CUDA_HOST_BYTES);
    }
    arena
}

/// The arena's plan, if this machine has room for it. Allocates nothing.
///
/// # Errors
/// Every limit that is too small, with what the plan needs of it and what makes the plan smaller.
pub fn fits(plan: &Plan, placement: Placement<'_>) -> Result<megatrain_arena::Plan> {
    let arena = arena_plan(plan, placement);
    arena.check(&Limits::read()?).map_err(|error| {
        let settings = match plan.settings.train {
            true if placement.gpu.is_some() => {
                "a smaller model; lower --batch-size or --seq-len (staging); without --spill, activations stay on the GPU"
            }
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
    pub fn commit(plan: Arc<Plan>, placement: Placement<'_>) -> Result<Memory> {
        let arena = fits(&plan, placement)?;
        let total: u64 = arena.regions().iter().map(|r| r.bytes).sum();
        let bar = crate::progress::bar(total, "preparing memory");
        let shown = bar.clone();
        let progress = move |p: megatrain_arena::Progress| shown.set_position(p.done_bytes);
        let options = CommitOptions {
            threads: placement.threads,
            check: false,
            pinner: placement.gpu.map(|gpu| Arc::new(HostPinner::new(gpu)) as Arc<dyn megatrain_arena::Pinner>),
            pin_failure: PinFailure::Pageable,
            progress: Some(Box::new(progress)),
            ..CommitOptions::default()
        };
        let arena = arena.commit(&options).context("allocating the plan's memory")?;
        bar.finish_and_clear();
        for notice in arena.notices() {
            say!("note     {notice}");
        }
        let homes = homes(&plan, placement);
        Ok(Memory { plan, arena, homes })
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
                let region = self.arena.region(self.homes[span.region.0 as usize]);
                assert!(span.end_bytes() <= region.len_bytes() as u64, "{span} lies outside its region");
                // SAFETY: the offset is inside the region, by the line above.
                (*span, Access::Update, unsafe { region.as_ptr().add(span.offset_bytes as usize) })
            })
            .collect();
        // SAFETY: the regions are initialised (the arena zero-fills them), the spans lie inside them, and `&mut self`
        // keeps everybody else away from the arena for the life of the operands.
        unsafe { Operands::new(resolved) }
    }

    /// A CPU executor over this memory.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn start(self, options: ExecutorOptions) -> Result<Session> {
        self.start_with(|contract, regions| Ok(Box::new(CpuExecutor::new(contract, regions, options)?)))
    }

    /// An executor on a GPU, which gets the device heap.
    ///
    /// # Errors
    /// If device memory or threads cannot be had.
    pub fn start_on(self, device: &Arc<Device>, backend: impl Backend, options: StreamOptions) -> Result<Session> {
        let heap = self.plan.device_region().0 as usize;
        let len_bytes = self.plan.regions()[heap].len_bytes;
        let buffer = DeviceBuffer::new(device, len_bytes).context("reserving the device heap")?;
        self.start_with(|contract, mut regions| {
            // SAFETY: the buffer is the GPU's, as long as the region, and lives as long as its owner, which is handed over;
            // only the executor knows it. Device regions are touched by the GPU alone.
            regions[heap] = unsafe { RegionMemory::new(buffer.address() as *mut u8, len_bytes, Arc::new(buffer)) };
            Ok(Box::new(StreamExecutor::new(backend, contract, regions, options)?))
        })
    }

    /// An executor of any kind over this memory. Regions that a GPU has are empty blocks.
    ///
    /// # Errors
    /// What `make` says.
    pub fn start_with(
        self,
        make: impl FnOnce(Arc<Contract>, Vec<RegionMemory>) -> Result<Box<dyn Executor<HostTask>>>,
    ) -> Result<Session> {
        let Memory { plan, arena, homes } = self;
        let arena = Arc::new(arena);
        let block = |(i, &home): (usize, &usize)| {
            let region = arena.region(home);
            // SAFETY: the arena keeps every region mapped, initialised and to itself until it is dropped, which the clone of
            // `arena` handed over here delays; regions do not overlap, unless they were asked to share memory; from here
            // on only the executor touches them.
            let block = unsafe { RegionMemory::new(region.as_ptr(), region.len_bytes() as u64, arena.clone()) };
            if home == i { block } else { block.shared() }
        };
        let regions = homes.iter().enumerate().map(block).collect();
        let executor = make(plan.contract(), regions)?;
        Ok(Session { plan, executor })
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
