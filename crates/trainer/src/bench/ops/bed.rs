//! [`Bed`]: memory in which one op at a time is timed, on a GPU's stream or by the processor's kernels.

use super::super::machine::ops::integers;
use super::super::machine::stage::{DEVICE, Places, fill};
use crate::options::Device;
use anyhow::{Context, Result};
use megatrain_arena::{Arena, CommitOptions, Kind, Reservation};
use megatrain_base::{Access, DType, Operands, Tensor};
use megatrain_cpu::kernels;
use megatrain_cuda::{DeviceBuffer, Event, Runner, Scratch, Stream, scratch_bytes};
use megatrain_ops::{Cast, Matmul, Op};
use std::time::Instant;

/// Shortest and longest series of repetitions; one, where that alone takes longer than asked.
const REPEATS: (usize, usize) = (3, 41);

/// One region: random numbers, what copies of them overwrite (so that operands are in no cache), the operands.
pub struct Bed {
    place: Place,
    pool_bytes: u64,
    /// For people.
    pub name: String,
}

enum Place {
    Cpu { arena: Box<Arena>, threads: rayon::ThreadPool },
    Gpu(Box<Gpu>),
}

struct Gpu {
    runner: Runner,
    stream: Stream,
    memory: DeviceBuffer,
    scratch: DeviceBuffer,
}

impl Bed {
    /// Memory for the operands of any of these ops, which lie behind two pools of `pool_bytes`.
    ///
    /// # Errors
    /// No such device, kernels that are missing, memory that cannot be had.
    pub fn new(device: Device, ops: &[Op], pool_bytes: u64, threads: usize) -> Result<Bed> {
        let ends = ops.iter().flat_map(|op| op.operands()).map(|(t, _)| t.span.end_bytes().next_multiple_of(256));
        let bytes = ends.max().unwrap_or(0).max(2 * pool_bytes);
        let (place, name) = match device {
            Device::Cuda(n) => {
                let gpu = megatrain_cuda::Device::open(n).with_context(|| format!("--device {device}"))?;
                let runner = Runner::new(&gpu, None)?;
                let memory = DeviceBuffer::new(&gpu, bytes).context("the operands; a smaller --tokens needs less")?;
                let most = ops.iter().map(scratch_bytes).max().unwrap_or(0);
                let scratch = DeviceBuffer::new(&gpu, most).context("the ops' scratch memory")?;
                let name = format!("{}, {} multiprocessors", gpu.name(), gpu.multiprocessors());
                let mut pool = vec![0; pool_bytes as usize];
                fill(&mut pool, 1);
                memory.write(0, &pool)?;
                (Place::Gpu(Box::new(Gpu { runner, stream: Stream::new(&gpu)?, memory, scratch })), name)
            }
            Device::Cpu | Device::Auto => {
                let threads =
                    rayon::ThreadPoolBuilder::new().num_threads(threads).build().context("starting threads")?;
                let mut plan = megatrain_arena::Plan::new();
                plan.add(Reservation::new("operands", Kind::Staging, bytes));
                let options = CommitOptions { threads: threads.current_num_threads(), ..CommitOptions::default() };
                let mut arena =
                    plan.commit(&options).context("memory for the operands; a smaller --tokens needs less")?;
                threads.install(|| fill(&mut arena.bytes_mut(0)[..pool_bytes as usize], 1));
                let name = format!("the processor, {} threads", threads.current_num_threads());
                (Place::Cpu { arena: Box::new(arena), threads }, name)
            }
        };
        Ok(Bed { place, pool_bytes, name })
    }

    /// The copy of a pool.
    pub fn copy(&self) -> Op {
        copy(0, self.pool_bytes, self.pool_bytes)
    }

    /// Chooses the algorithms of these products, as a run does before its first step.
    ///
    /// # Errors
    /// What the driver or cuBLASLt says.
    pub fn prepare(&mut self, products: &[Matmul]) -> Result<()> {
        let Place::Gpu(gpu) = &self.place else { return Ok(()) };
        let start = 2 * self.pool_bytes;
        let base = gpu.memory.address();
        let placed: Vec<_> =
            products.iter().map(|p| (*p, [p.a, p.b, p.c].map(|t| base + t.span.offset_bytes))).collect();
        let room = Scratch { address: base + start, len_bytes: gpu.memory.len_bytes() - start };
        let mut progress = |done: usize, all: usize| {
            if done.is_multiple_of(8) && done < all {
                say!("choosing algorithms of products: {done} of {all}");
            }
        };
        // SAFETY: the ops have passed their checks; room and scratch are this bed's own and nothing else runs on them.
        let done = unsafe { gpu.runner.prepare(&placed, room, gpu.scratch(), &gpu.stream, &mut progress) }?;
        done.notes.iter().for_each(|note| say!("note     {note}"));
        Ok(())
    }

    /// Microseconds of one run, the median of a series that lasts about `target_s`. Floats are random, integers what the op
    /// takes with documents of `document` tokens. Before every run, which is not counted, what it overwrites in place is
    /// random again, and caches are flushed.
    ///
    /// # Errors
    /// An op without a kernel here, or what the driver says.
    pub fn time_us(&mut self, op: &Op, document: usize, target_s: f64) -> Result<f64> {
        let mut before = Vec::new();
        for (t, access) in op.operands() {
            if t.span.offset_bytes < 2 * self.pool_bytes {
                continue; // The copy of the pool itself.
            }
            match t.dtype {
                DType::I32 => {
                    let bytes: Vec<u8> = integers(op, &t, document).iter().flat_map(|x| x.to_ne_bytes()).collect();
                    self.write(t.span.offset_bytes, &bytes)?;
                }
                _ => {
                    let random = self.random(&t);
                    self.series(&random, None, 1)?;
                    if access == Access::Update {
                        before.extend(random);
                    }
                }
            }
        }
        before.push(self.copy());
        let start = Instant::now();
        let once = self.series(&before, Some(op), 1)?[0];
        let whole = start.elapsed().as_secs_f64().min(10.0 * once / 1e6);
        let least = if once / 1e6 > target_s { 1 } else { REPEATS.0 };
        let repeats = ((target_s / whole) as usize).clamp(least, REPEATS.1);
        let mut series = self.series(&before, Some(op), repeats)?;
        series.sort_by(f64::total_cmp);
        Ok(series[series.len() / 2])
    }

    /// Copies that make a tensor random.
    fn random(&self, t: &Tensor) -> Vec<Op> {
        // Up to the next place, which is 256 bytes off at least.
        let end = t.span.end_bytes().next_multiple_of(256);
        let starts = (t.span.offset_bytes..end).step_by(self.pool_bytes as usize);
        starts.map(|at| copy(0, at, self.pool_bytes.min(end - at))).collect()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        match &mut self.place {
            Place::Cpu { arena, .. } => arena.bytes_mut(0)[at as usize..][..bytes.len()].copy_from_slice(bytes),
            Place::Gpu(gpu) => gpu.memory.write(at, bytes)?,
        }
        Ok(())
    }

    /// Microseconds of an op in each of so many rounds, after `before`.
    fn series(&mut self, before: &[Op], op: Option<&Op>, rounds: usize) -> Result<Vec<f64>> {
        match &mut self.place {
            Place::Cpu { arena, threads } => Ok(threads.install(|| {
                let memory = arena.bytes_mut(0);
                let mut round = || {
                    before.iter().for_each(|op| _ = run(op, memory));
                    op.map_or(0.0, |op| run(op, memory))
                };
                (0..rounds).map(|_| round()).collect()
            })),
            Place::Gpu(gpu) => gpu.series(before, op, rounds),
        }
    }
}

/// Microseconds of the processor's kernel, on the current pool.
///
/// # Panics
/// If an operand lies outside the memory.
fn run(op: &Op, memory: &mut [u8]) -> f64 {
    let place = |(t, access): (Tensor, Access)| {
        (t.span, access, memory[t.span.offset_bytes as usize..t.span.end_bytes() as usize].as_mut_ptr())
    };
    let places: Vec<_> = op.operands().into_iter().map(place).collect();
    // SAFETY: each pointer is to initialised bytes as long as its span, borrowed for as long as this runs.
    let operands = unsafe { Operands::new(places) };
    let start = Instant::now();
    kernels::run(op, &operands);
    start.elapsed().as_secs_f64() * 1e6
}

impl Gpu {
    fn scratch(&self) -> Scratch {
        Scratch { address: self.scratch.address(), len_bytes: self.scratch.len_bytes() }
    }

    fn run(&self, op: &Op) -> Result<()> {
        let base = self.memory.address();
        let addresses: Vec<u64> = op.operands().iter().map(|(t, _)| base + t.span.offset_bytes).collect();
        // SAFETY: the op has passed its check; operands and scratch are this bed's own, long enough for every op that is run
        // here and used by one stream; what is read has been written, borders of documents ascend to the number of tokens.
        Ok(unsafe { self.runner.run(op, &addresses, self.scratch(), &self.stream) }?)
    }

    /// Issued without a wait, so that the host's part hides behind what comes before the op.
    fn series(&self, before: &[Op], op: Option<&Op>, rounds: usize) -> Result<Vec<f64>> {
        let device = self.runner.device();
        let mut events = Vec::new();
        for _ in 0..rounds {
            before.iter().try_for_each(|op| self.run(op))?;
            let Some(op) = op else { continue };
            let pair = (Event::new(device)?, Event::new(device)?);
            pair.0.record(&self.stream)?;
            self.run(op)?;
            pair.1.record(&self.stream)?;
            events.push(pair);
        }
        self.stream.synchronize()?;
        Ok(events.iter().map(|(start, end)| end.since_us(start)).collect::<Result<_, _>>()?)
    }
}

/// A copy of bytes within the region.
fn copy(from: u64, to: u64, len_bytes: u64) -> Op {
    let floats = |at| Places::from(DEVICE, at).tensor(DType::F32, [len_bytes as usize / 4]);
    Cast { x: floats(from), y: floats(to) }.into()
}
