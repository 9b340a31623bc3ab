//! [`Stage`]: memory and an executor for small programs that are timed. What is measured runs as training runs it.

use crate::options::Device;
use crate::tasks::{OptimStep, StepTasks};
use anyhow::{Context, Result, bail};
use megatrain_arena::{CommitOptions, Kind, PinFailure, Reservation};
use megatrain_base::{DType, RegionId, Shape, Span, Tensor};
use megatrain_cpu::{CpuExecutor, ExecutorOptions};
use megatrain_cuda::{DeviceBuffer, Gpu, HostPinner, Runner, StreamExecutor, StreamOptions, scratch_bytes};
use megatrain_data::MicroBatch;
use megatrain_exec::{Executor, RegionMemory, RunReport};
use megatrain_ops::Op;
use megatrain_optim::AdamW;
use megatrain_planner::{HostTask, Model};
use megatrain_scheduler::{Builder, Contract, LaneId, LaneKind, Space};
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The lanes, as in training.
pub const H2D: LaneId = LaneId(0);
pub const COMPUTE: LaneId = LaneId(1);
pub const D2H: LaneId = LaneId(2);
pub const UPDATE: LaneId = LaneId(3);

/// Page-locked random numbers: what is copied up.
pub const UP: RegionId = RegionId(0);
/// Where copies down land.
pub const DOWN: RegionId = RegionId(1);
/// What host tasks work on.
pub const TASKS: RegionId = RegionId(2);
/// The device.
pub const DEVICE: RegionId = RegionId(3);

/// Bytes of [`UP`] and [`DOWN`], more than caches hold.
pub const COPY_BYTES: u64 = 256 << 20;

/// Places tensors one after the other in a region.
#[derive(Debug)]
pub struct Places {
    region: RegionId,
    /// Bytes so far.
    pub end_bytes: u64,
}

impl Places {
    /// From the region's start.
    pub fn new(region: RegionId) -> Places {
        Places::from(region, 0)
    }

    /// From a byte of the region that is a multiple of 256.
    pub fn from(region: RegionId, start_bytes: u64) -> Places {
        Places { region, end_bytes: start_bytes }
    }

    /// The next tensor.
    pub fn tensor(&mut self, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        let tensor = Tensor::new(self.region, self.end_bytes, dtype, shape);
        self.end_bytes += tensor.span.len_bytes.next_multiple_of(256);
        tensor
    }
}

/// An executor over four regions of random numbers.
pub struct Stage {
    contract: Arc<Contract>,
    executor: Box<dyn Executor<HostTask>>,
    model: Arc<Model>,
    applied: Arc<AtomicU64>,
    /// Threads of host tasks.
    pub threads: usize,
    /// For people.
    pub device: String,
    /// Whether programs run on the processor.
    pub on_host: bool,
    device_bytes: u64,
}

impl Stage {
    /// Commits memory and starts an executor that can run these ops. `zeros`: what of [`TASKS`] must not be random.
    ///
    /// # Errors
    /// No such device, or memory that cannot be had.
    pub fn new(
        device: Device,
        model: Arc<Model>,
        task_bytes: u64,
        zeros: &[Span],
        ops: &[Op],
        threads: usize,
    ) -> Result<Stage> {
        let gpu = match device {
            Device::Cpu | Device::Auto => None,
            Device::Cuda(n) => Some(megatrain_cuda::Device::open(n).with_context(|| format!("--device {device}"))?),
        };
        let extent = ops.iter().flat_map(|op| op.operands()).map(|(t, _)| t.span.end_bytes()).max().unwrap_or(0);
        let device_bytes = extent.max(2 * COPY_BYTES);
        let sizes = [COPY_BYTES, COPY_BYTES, task_bytes, device_bytes];
        let mut contract = Contract::default();
        let space = |region| if region == DEVICE { Space::Device(Default::default()) } else { Space::Host };
        for (i, (name, bytes)) in ["up", "down", "tasks", "device"].into_iter().zip(sizes).enumerate() {
            let region = contract.region(name, space(RegionId(i as u32)), bytes, true);
            contract.boundary(name, vec![Span::new(region, 0, bytes)]);
        }
        for kind in [LaneKind::H2d, LaneKind::Compute, LaneKind::D2h, LaneKind::Update] {
            contract.lane(Default::default(), kind);
        }
        let contract = Arc::new(contract);

        let mut plan = megatrain_arena::Plan::new();
        for (i, bytes) in sizes.into_iter().enumerate() {
            let elsewhere = gpu.is_some() && i == DEVICE.0 as usize;
            let reservation =
                Reservation::new(&contract.regions[i].name, Kind::Staging, if elsewhere { 0 } else { bytes });
            plan.add(reservation.pinned());
        }
        let pinner = gpu.as_ref().map(|gpu| Arc::new(HostPinner::new(gpu)) as Arc<dyn megatrain_arena::Pinner>);
        let options = CommitOptions { threads, pinner, pin_failure: PinFailure::Pageable, ..CommitOptions::default() };
        let mut arena = plan.commit(&options).context("allocating memory to measure with")?;
        arena.notices().iter().for_each(|notice| say!("note     {notice}"));
        for region in [UP, TASKS] {
            fill(arena.bytes_mut(region.0 as usize), u64::from(region.0));
        }
        for span in zeros {
            let (start, end) = (span.offset_bytes as usize, span.end_bytes() as usize);
            arena.bytes_mut(span.region.0 as usize)[start..end].fill(0);
        }
        let arena = Arc::new(arena);
        let block = |i: usize| {
            let region = arena.region(i);
            // SAFETY: the arena keeps its regions mapped and apart until the clone handed over is dropped; from here on
            // only the executor touches them.
            unsafe { RegionMemory::new(region.as_ptr(), region.len_bytes() as u64, arena.clone()) }
        };
        let mut regions: Vec<_> = (0..sizes.len()).map(block).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("starting threads")?;
        let threads = pool.current_num_threads();
        let (name, on_host) = (gpu.as_ref().map_or("the processor".into(), |gpu| gpu.name().to_owned()), gpu.is_none());
        let executor: Box<dyn Executor<HostTask>> = match gpu {
            None => {
                let options = ExecutorOptions { threads, ..ExecutorOptions::default() };
                Box::new(CpuExecutor::new(contract.clone(), regions, options)?)
            }
            Some(gpu) => {
                let buffer =
                    DeviceBuffer::new(&gpu, device_bytes).context("reserving device memory to measure with")?;
                // SAFETY: the buffer is the GPU's, as long as the region, and lives as long as its owner, handed over here.
                regions[DEVICE.0 as usize] =
                    unsafe { RegionMemory::new(buffer.address() as *mut u8, device_bytes, Arc::new(buffer)) };
                let scratch = ops.iter().map(scratch_bytes).max().unwrap_or(0);
                let scratch = DeviceBuffer::new(&gpu, scratch).context("reserving the ops' scratch memory")?;
                let backend = Gpu::new(Runner::new(&gpu, None)?, scratch, |_| {});
                let options = StreamOptions { threads, ..StreamOptions::default() };
                Box::new(StreamExecutor::new(backend, contract.clone(), regions, options)?)
            }
        };
        Ok(Stage { contract, executor, model, applied: Arc::default(), threads, device: name, on_host, device_bytes })
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// A command that cannot run here.
    pub fn run(&self, name: &str, add: impl FnOnce(&mut Builder<Op, HostTask>)) -> Result<RunReport> {
        let mut builder = Builder::new(name, self.contract.clone());
        add(&mut builder);
        let program = Arc::new(builder.finish().with_context(|| format!("internal error: the program `{name}`"))?);
        let optim = OptimStep { adamw: AdamW::default(), lr: 1e-5, max_norm: None, applied: self.applied.clone() };
        // One target, so that updates are applied.
        let micro = MicroBatch {
            tokens: Vec::new(),
            targets: Vec::new(),
            positions: Vec::new(),
            cu_seqlens: Vec::new(),
            used: 0,
            docs: 0,
            target_count: 1,
        };
        let tasks = Arc::new(StepTasks::new(self.model.clone(), vec![micro], Some(optim)));
        let report = self.executor.run(program, tasks).and_then(|ticket| ticket.wait());
        report.with_context(|| format!("measuring `{name}`"))
    }

    /// Seconds of one of many repetitions of what `add` adds, by how long the lane is busy; lasting about `target_s`.
    ///
    /// # Errors
    /// As [`Stage::run`].
    pub fn time(
        &self,
        name: &str,
        lane: LaneId,
        target_s: f64,
        add: impl Fn(&mut Builder<Op, HostTask>),
    ) -> Result<f64> {
        let run = |count: usize| -> Result<f64> {
            let report = self.run(name, |b| (0..count).for_each(|_| add(b)))?;
            Ok(report.lane_busy_seconds[lane.0 as usize] / count as f64)
        };
        run(1)?;
        let once = run(2)?;
        if !(once.is_finite() && once > 0.0) {
            bail!("measuring `{name}`: the executor reports {once} s");
        }
        run(((target_s / once) as usize).clamp(2, 2000))
    }

    /// Writes integers into device memory, by way of [`UP`].
    ///
    /// # Errors
    /// As [`Stage::run`].
    pub fn upload(&self, tensor: &Tensor, values: &[i32]) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let staging = Span::new(UP, 0, bytes.len() as u64);
        let mut random = vec![0; bytes.len()];
        self.executor.read_bytes(&staging, &mut random)?;
        self.executor.write_bytes(&staging, &bytes)?;
        self.run("upload", |b| b.copy(H2D, staging, tensor.span))?;
        Ok(self.executor.write_bytes(&staging, &random)?)
    }

    /// Writes integers into host memory.
    ///
    /// # Errors
    /// A span outside its region.
    pub fn write(&self, tensor: &Tensor, values: &[i32]) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        Ok(self.executor.write_bytes(&tensor.span, &bytes)?)
    }

    /// Random numbers into the first bytes of device memory.
    ///
    /// # Errors
    /// As [`Stage::run`].
    pub fn randomize(&self, len_bytes: u64) -> Result<()> {
        let end = len_bytes.min(self.device_bytes);
        self.run("randomize", |b| {
            for at in (0..end).step_by(COPY_BYTES as usize) {
                let len = COPY_BYTES.min(end - at);
                b.copy(H2D, Span::new(UP, 0, len), Span::new(DEVICE, at, len));
            }
        })?;
        Ok(())
    }
}

/// Random bf16 in [-1, 1); two of them are an f32 in that range, too. Never zeros: arithmetic on those takes less power.
pub fn fill(bytes: &mut [u8], seed: u64) {
    const CHUNK: usize = 1 << 20;
    bytes.par_chunks_mut(CHUNK).enumerate().for_each(|(i, chunk)| {
        let mut random = megatrain_data::Random::new(seed, i as u64);
        for pair in chunk.chunks_exact_mut(4) {
            let bits = random.next_u64();
            let uniform = |bits: u64| (((bits & 0xff_ffff) as f32) / (1 << 23) as f32 - 1.0).to_bits() >> 16;
            pair.copy_from_slice(&(uniform(bits) | (uniform(bits >> 32) << 16)).to_le_bytes());
        }
    });
}
