//! First touch: makes every page of the plan present, by many threads, each near the memory that it touches.
//!
//! Without it the kernel would find the pages one fault at a time in the first step, from whatever CPU came first; and
//! a plan that the machine cannot hold after all would fail hours later instead of now.

use crate::numa::Topology;
use crate::sys;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Bytes that a thread takes at a time: a multiple of the huge page, long enough that taking one costs nothing.
const CHUNK_BYTES: usize = 32 << 20;

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// How far the first touch is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// Bytes present.
    pub done_bytes: u64,
    /// Bytes of all regions in memory.
    pub total_bytes: u64,
    /// Time since the first touch began.
    pub elapsed: Duration,
}

/// Fresh memory that nobody else knows yet.
pub(crate) struct Fresh {
    base: *mut u8,
    len: usize,
    node: Option<usize>,
}

// SAFETY: `Fresh::new`'s caller has given the range away, so it may be touched from any thread.
unsafe impl Send for Fresh {}
// SAFETY: a shared `Fresh` is touched only through `touch_page`, whose stores of zero to zeros are volatile, and each
// chunk is taken by one thread.
unsafe impl Sync for Fresh {}

impl Fresh {
    /// # Safety
    /// The range is mapped for writing and all zeros, and nobody else accesses it while this value lives.
    pub(crate) unsafe fn new(base: *mut u8, len: usize, node: Option<usize>) -> Fresh {
        Fresh { base, len, node }
    }

    fn touch_page(&self, offset: usize) {
        assert!(offset < self.len);
        // SAFETY: inside the range, which is mapped, and ours by the contract of `new`; it holds a zero already.
        unsafe { self.base.add(offset).write_volatile(0) };
    }
}

/// Touches every page. If that takes `tell_after` or longer, `tell` is called on this thread: some times a second from
/// then on, and at the end.
pub(crate) fn first_touch(
    memory: &[Fresh],
    threads: usize,
    topology: Option<&Topology>,
    tell: Option<&dyn Fn(Progress)>,
    tell_after: Duration,
) {
    let chunks: Vec<(&Fresh, usize)> =
        memory.iter().flat_map(|m| (0..m.len).step_by(CHUNK_BYTES).map(move |start| (m, start))).collect();
    let (next, done_bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || {
        let mut near = None;
        while let Some(&(fresh, start)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let (Some(topology), Some(id)) = (topology, fresh.node)
                && near != Some(id)
                && let Some(node) = topology.node(id).filter(|n| !n.cpus.is_empty())
            {
                // Nearness is speed, not correctness: where the CPUs are not ours to use, touch from where we are.
                let _ = sys::run_on(&node.cpus);
                near = Some(id);
            }
            let end = fresh.len.min(start + CHUNK_BYTES);
            (start..end).step_by(sys::page_bytes()).for_each(|offset| fresh.touch_page(offset));
            done_bytes.fetch_add((end - start) as u64, Ordering::Relaxed);
        }
    };
    let began = Instant::now();
    let now = || Progress {
        done_bytes: done_bytes.load(Ordering::Relaxed),
        total_bytes: memory.iter().map(|m| m.len as u64).sum(),
        elapsed: began.elapsed(),
    };
    std::thread::scope(|scope| {
        let (alive, ended) = mpsc::channel::<()>();
        let mut spawned = 0;
        for _ in 0..threads.clamp(1, chunks.len().max(1)) {
            let (alive, work) = (alive.clone(), &work);
            let worker = move || {
                work();
                drop(alive);
            };
            spawned +=
                std::thread::Builder::new().name("first-touch".into()).spawn_scoped(scope, worker).is_ok() as usize;
        }
        drop(alive);
        if spawned == 0 {
            // No thread to be had: this one will do.
            work();
        }
        let mut wait = tell_after;
        while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            if let Some(tell) = tell {
                tell(now());
            }
            wait = TELL_EVERY;
        }
    });
    if let Some(tell) = tell
        && began.elapsed() >= tell_after
    {
        tell(now());
    }
}
