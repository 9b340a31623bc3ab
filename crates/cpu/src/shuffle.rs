//! [`Shuffler`]: runs one command at a time, in a random order that the events allow.
//!
//! Lanes are tried in an order of priority that is drawn anew every so many steps, how many depends on the seed. So some
//! lanes run far ahead and others starve, which shows missing waits that evenly drawn steps would seldom show.

use crate::job::LaneWork;
use crate::shared::Shared;
use megatrain_base::Command;
use megatrain_exec::{Drive, RunState};
use megatrain_scheduler::LaneId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// All unfinished work of an executor in shuffle mode.
pub(crate) struct Shuffler<T>(Mutex<State<T>>, Arc<Shared>);

struct State<T> {
    random: Random,
    queues: Vec<VecDeque<LaneWork<T>>>,
    priority: Vec<usize>,
    /// The priorities change before one step in this many, on average.
    change_one_in: u64,
}

impl<T: Command> Shuffler<T> {
    pub(crate) fn new(shared: &Arc<Shared>, seed: u64) -> Self {
        let lanes = shared.contract.lanes.len();
        let queues = (0..lanes).map(|_| VecDeque::new()).collect();
        let mut random = Random(seed);
        let change_one_in = 2 << random.below(5);
        let state = State { random, queues, priority: (0..lanes).collect(), change_one_in };
        Shuffler(Mutex::new(state), shared.clone())
    }

    fn with<R: Send>(&self, act: impl FnOnce(&mut State<T>) -> R + Send) -> R {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        self.1.pool.install(|| act(state))
    }

    /// Appends work. Before that, every other time, does a random share of the open work: as if the caller had been slow.
    pub(crate) fn enqueue(&self, work: Vec<(LaneId, LaneWork<T>)>) {
        self.with(|state| {
            let open: usize = state.queues.iter().flatten().map(LaneWork::open_steps).sum();
            let share = if state.random.below(2) == 0 { 0 } else { state.random.below(open as u64 + 1) };
            for _ in 0..share {
                state.step();
            }
            for (lane, work) in work {
                state.queues[lane.0 as usize].push_back(work);
            }
        });
    }

    /// Does all open work.
    pub(crate) fn drain(&self) {
        self.with(|state| while state.step() {});
    }
}

impl<T: Command> Drive for Shuffler<T> {
    fn drive(&self, run: &RunState) {
        self.with(|state| while !run.is_finished() && state.step() {});
    }
}

impl<T: Command> State<T> {
    /// Takes one step; `false` if none is open.
    fn step(&mut self) -> bool {
        if self.random.below(self.change_one_in) == 0 {
            for i in (1..self.priority.len()).rev() {
                self.priority.swap(i, self.random.below(i as u64 + 1) as usize);
            }
        }
        let ready = |lane: &&usize| self.queues[**lane].front().is_some_and(LaneWork::is_ready);
        let Some(&lane) = self.priority.iter().find(ready) else {
            // Waits refer to earlier records only (see `issue`), so the earliest open step is always ready.
            assert!(self.queues.iter().all(VecDeque::is_empty), "no open step is ready");
            return false;
        };
        let queue = &mut self.queues[lane];
        if let Some(work) = queue.front_mut() {
            work.advance();
            if work.is_done() {
                queue.pop_front();
            }
        }
        true
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, good enough to draw orders.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
