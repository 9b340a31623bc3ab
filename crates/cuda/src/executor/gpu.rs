//! [`Gpu`]: an NVIDIA GPU as a [`Backend`].

use crate::executor::{Backend, check};
use crate::{CudaError, Device, DeviceBuffer, Event, Priority, Runner, Scratch, Stream};
use cudarc::driver::result;
use cudarc::driver::sys;
use megatrain_ops::Op;
use megatrain_scheduler::{Lane, LaneKind};
use std::sync::Arc;
use std::time::Duration;

/// What a GPU tells while it gets ready for a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preparation {
    /// So many shapes of products of so many have their algorithm.
    Products {
        /// Chosen.
        done: usize,
        /// In all.
        total: usize,
    },
    /// Something a person should know.
    Note(String),
}

/// An NVIDIA GPU with its kernels and the scratch memory of its ops.
pub struct Gpu {
    streams: Vec<Option<Stream>>,
    tell: Box<dyn FnMut(Preparation) + Send>,
    scratch: DeviceBuffer,
    runner: Runner,
}

impl Gpu {
    /// A GPU whose ops use `scratch`, which must hold [`crate::scratch_bytes`] of every op that will be launched. `tell`
    /// hears, on the issue thread, how far preparations are.
    pub fn new(runner: Runner, scratch: DeviceBuffer, tell: impl FnMut(Preparation) + Send + 'static) -> Gpu {
        Gpu { streams: Vec::new(), tell: Box::new(tell), scratch, runner }
    }

    fn device(&self) -> &Arc<Device> {
        self.runner.device()
    }

    fn stream(&self, stream: usize) -> &Stream {
        self.streams[stream].as_ref().expect("only lanes of a device are streams")
    }

    fn scratch(&self) -> Scratch {
        Scratch { address: self.scratch.address(), len_bytes: self.scratch.len_bytes() }
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("runner", &self.runner).finish_non_exhaustive()
    }
}

impl Backend for Gpu {
    type Event = Event;

    fn start(&mut self, lanes: &[Lane]) -> Result<(), CudaError> {
        self.device().make_current()?;
        // What copies need of the processors (staging, a fill) is little, and kernels wait for it.
        let priority = |lane: &Lane| if lane.kind == LaneKind::Compute { Priority::Ordinary } else { Priority::High };
        let stream = |lane: &Lane| {
            check::is_stream(lane.kind).then(|| Stream::with_priority(self.device(), priority(lane))).transpose()
        };
        self.streams = lanes.iter().map(stream).collect::<Result<_, _>>()?;
        Ok(())
    }

    unsafe fn prepare(&mut self, ops: &[(Op, Vec<u64>)], room: (u64, u64)) -> Result<(), CudaError> {
        let mut products = Vec::new();
        for (op, addresses) in ops {
            let need = crate::scratch_bytes(op);
            if need > self.scratch.len_bytes() {
                let why =
                    format!("it needs {need} bytes of scratch memory; {} were reserved", self.scratch.len_bytes());
                return Err(CudaError::Unsupported { op: op.name(), why });
            }
            // What no kernel takes is told before anything runs.
            crate::steps(op, addresses, self.scratch.address(), self.device().limits())?;
            if let (Op::Matmul(product), &[a, b, c]) = (op, &addresses[..]) {
                products.push((*product, [a, b, c]));
            }
        }
        if !self.runner.remembers() {
            let why = "products take cuBLASLt's first choice of algorithm: where choices cannot be remembered (MEGATRAIN_CACHE), \
                       timing them in each run would make runs round differently";
            (self.tell)(Preparation::Note(why.into()));
            return Ok(());
        }
        let stream = self.streams.iter().flatten().next().expect("a device has streams");
        let room = Scratch { address: room.0, len_bytes: room.1 };
        let tell = &mut self.tell;
        let mut progress = |done, total| tell(Preparation::Products { done, total });
        let scratch = Scratch { address: self.scratch.address(), len_bytes: self.scratch.len_bytes() };
        // SAFETY: nobody uses the room now, as the caller says; the scratch memory is this value's own, and nothing runs.
        let prepared = unsafe { self.runner.prepare(&products, room, scratch, stream, &mut progress) }?;
        for note in prepared.notes {
            (self.tell)(Preparation::Note(note));
        }
        Ok(())
    }

    fn event(&mut self, timed: bool) -> Result<Event, CudaError> {
        if timed { Event::new(self.device()) } else { Event::untimed(self.device()) }
    }

    fn record(&mut self, stream: usize, event: &Event) -> Result<(), CudaError> {
        event.record(self.stream(stream))
    }

    fn wait(&mut self, stream: usize, event: &Event) -> Result<(), CudaError> {
        self.stream(stream).wait(event)
    }

    fn is_done(&mut self, event: &Event) -> Result<bool, CudaError> {
        event.is_done()
    }

    fn since_us(&mut self, earlier: &Event, later: &Event) -> Result<f64, CudaError> {
        later.since_us(earlier)
    }

    unsafe fn copy(&mut self, stream: usize, to: u64, from: u64, len_bytes: u64) -> Result<(), CudaError> {
        // SAFETY: the caller answers for both ranges. In the unified address space the driver knows which side is which.
        unsafe { sys::cuMemcpyAsync(to, from, len_bytes as usize, self.stream(stream).raw()) }
            .result()
            .map_err(CudaError::driver(format!("copying {len_bytes} bytes")))
    }

    unsafe fn launch(&mut self, stream: usize, op: &Op, addresses: &[u64]) -> Result<(), CudaError> {
        // SAFETY: the caller answers for the operands; the scratch memory serves one stream, the compute lane's.
        unsafe { self.runner.run(op, addresses, self.scratch(), self.stream(stream)) }
    }

    unsafe fn poison(&mut self, stream: usize, address: u64, len_bytes: u64) -> Result<(), CudaError> {
        // SAFETY: the caller answers for the range.
        unsafe { result::memset_d8_async(address, 0xff, len_bytes as usize, self.stream(stream).raw()) }
            .map_err(CudaError::driver("filling device memory"))
    }

    fn delay(&mut self, stream: usize, time: Duration) -> Result<(), CudaError> {
        self.runner.delay(time, self.stream(stream))
    }

    fn synchronize(&mut self) -> Result<(), CudaError> {
        self.device().synchronize()
    }
}
