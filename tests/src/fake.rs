//! [`FakeGpu`]: a device with streams, on the processor: a thread for each stream, which works late and unevenly. With it
//! the executor of GPUs can be tested where there is none.

use megatrain_base::Operands;
use megatrain_cuda::{Backend, CudaError};
use megatrain_ops::Op;
use megatrain_scheduler::{Lane, LaneKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A point in a stream. Each recording is a thing of its own: who waits for one keeps waiting for it when the event is
/// recorded again, elsewhere perhaps, as CUDA has it.
#[derive(Debug, Default)]
pub struct Event(Mutex<Arc<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    over_us: Mutex<Option<f64>>,
    changed: Condvar,
}

impl Event {
    fn last(&self) -> Arc<Recorded> {
        self.0.lock().expect("no stream panics").clone()
    }
}

impl Recorded {
    fn over_us(&self) -> Option<f64> {
        *self.over_us.lock().expect("no stream panics")
    }

    fn finish(&self, now_us: f64) {
        *self.over_us.lock().expect("no stream panics") = Some(now_us);
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut over_us = self.over_us.lock().expect("no stream panics");
        while over_us.is_none() {
            over_us = self.changed.wait(over_us).expect("no stream panics");
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// A device that is none.
pub struct FakeGpu {
    streams: Vec<Option<(Sender<Work>, JoinHandle<()>)>>,
    random: u64,
    jitter_us: u64,
    launches: usize,
    /// The launch that fails, counted from 0; as on a GPU, it is noticed later.
    fails_at: Option<usize>,
    failed: Arc<AtomicBool>,
    epoch: Instant,
}

impl FakeGpu {
    /// Every command is late by up to `jitter_us`, as `seed` chooses.
    pub fn new(seed: u64, jitter_us: u64) -> FakeGpu {
        FakeGpu {
            streams: Vec::new(),
            random: seed.wrapping_mul(2) | 1,
            jitter_us,
            launches: 0,
            fails_at: None,
            failed: Arc::default(),
            epoch: Instant::now(),
        }
    }

    /// The launch of this number fails.
    pub fn failing_at(mut self, launch: usize) -> FakeGpu {
        self.fails_at = Some(launch);
        self
    }

    fn late(&mut self) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Duration::from_micros(if self.jitter_us == 0 { 0 } else { self.random % self.jitter_us })
    }

    fn push(&mut self, stream: usize, work: impl FnOnce() + Send + 'static) {
        let late = self.late();
        let (queue, _) = self.streams[stream].as_ref().expect("a lane of the device");
        let work = move || {
            if !late.is_zero() {
                thread::sleep(late);
            }
            work();
        };
        queue.send(Box::new(work)).expect("the stream's thread lives");
    }

    fn fault(&self) -> Result<(), CudaError> {
        match self.failed.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(CudaError::Driver {
                what: "asking for an event".into(),
                name: "CUDA_ERROR_ILLEGAL_ADDRESS".into(),
                text: "an illegal memory access was encountered".into(),
            }),
        }
    }
}

/// Memory that another thread works on, in the order of events.
struct Address(u64);

impl Backend for FakeGpu {
    type Event = Arc<Event>;

    fn start(&mut self, lanes: &[Lane]) -> Result<(), CudaError> {
        let stream = |lane: &Lane| {
            matches!(lane.kind, LaneKind::H2d | LaneKind::Compute | LaneKind::D2h).then(|| {
                let (sender, queue) = channel::<Work>();
                (sender, thread::spawn(move || queue.into_iter().for_each(|work| work())))
            })
        };
        self.streams = lanes.iter().map(stream).collect();
        Ok(())
    }

    unsafe fn prepare(&mut self, _ops: &[(Op, Vec<u64>)], _room: (u64, u64)) -> Result<(), CudaError> {
        Ok(())
    }

    fn event(&mut self, _timed: bool) -> Result<Self::Event, CudaError> {
        Ok(Arc::default())
    }

    fn record(&mut self, stream: usize, event: &Self::Event) -> Result<(), CudaError> {
        let recorded: Arc<Recorded> = Arc::default();
        *event.0.lock().expect("no stream panics") = recorded.clone();
        let epoch = self.epoch;
        self.push(stream, move || recorded.finish(epoch.elapsed().as_secs_f64() * 1e6));
        Ok(())
    }

    fn wait(&mut self, stream: usize, event: &Self::Event) -> Result<(), CudaError> {
        let recorded = event.last();
        self.push(stream, move || recorded.wait());
        Ok(())
    }

    fn is_done(&mut self, event: &Self::Event) -> Result<bool, CudaError> {
        self.fault()?;
        Ok(event.last().over_us().is_some())
    }

    fn since_us(&mut self, earlier: &Self::Event, later: &Self::Event) -> Result<f64, CudaError> {
        let [from, to] = [earlier, later].map(|event| event.last().over_us());
        Ok(to.expect("asked once it is over") - from.expect("asked once it is over"))
    }

    unsafe fn copy(&mut self, stream: usize, to: u64, from: u64, len_bytes: u64) -> Result<(), CudaError> {
        let (to, from) = (Address(to), Address(from));
        self.push(stream, move || {
            let (to, from) = (to, from);
            // SAFETY: the caller answers for both ranges until the stream has passed this point.
            unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, len_bytes as usize) }
        });
        Ok(())
    }

    unsafe fn launch(&mut self, stream: usize, op: &Op, addresses: &[u64]) -> Result<(), CudaError> {
        let (op, addresses) = (*op, addresses.to_vec());
        let fails = self.fails_at == Some(self.launches);
        self.launches += 1;
        let failed = self.failed.clone();
        self.push(stream, move || {
            if fails {
                failed.store(true, Ordering::SeqCst);
            }
            let operands = op.operands();
            let spans = operands.iter().zip(&addresses).map(|((t, access), &at)| (t.span, *access, at as *mut u8));
            // SAFETY: the caller answers for the operands until the stream has passed this point.
            megatrain_cpu::kernels::run(&op, &unsafe { Operands::new(spans) });
        });
        Ok(())
    }

    unsafe fn poison(&mut self, stream: usize, address: u64, len_bytes: u64) -> Result<(), CudaError> {
        let address = Address(address);
        self.push(stream, move || {
            let address = address;
            // SAFETY: the caller answers for the range.
            unsafe { std::ptr::write_bytes(address.0 as *mut u8, 0xff, len_bytes as usize) }
        });
        Ok(())
    }

    fn delay(&mut self, stream: usize, time: Duration) -> Result<(), CudaError> {
        self.push(stream, move || thread::sleep(time));
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), CudaError> {
        for stream in 0..self.streams.len() {
            if self.streams[stream].is_some() {
                let event: Arc<Event> = Arc::default();
                self.record(stream, &event)?;
                event.last().wait();
            }
        }
        self.fault()
    }
}

impl Drop for FakeGpu {
    fn drop(&mut self) {
        for (queue, thread) in self.streams.drain(..).flatten() {
            drop(queue);
            // A panic of a stream was printed by it.
            let _ = thread.join();
        }
    }
}
