//! The order of eager updates: lowest unit first among those whose gradient has landed, because the next forward pass
//! needs the lowest units first. Decided here, from estimated times, so that it is part of the program.

/// Units that have landed and wait for their update.
#[derive(Debug, Default)]
pub struct UpdateQueue {
    waiting: Vec<Waiting>,
    free_at_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    unit: u32,
    landed_s: f64,
    seconds: f64,
}

impl UpdateQueue {
    /// A unit's gradient lands at `landed_s` (estimated) and its update will take `seconds`. Returns the units whose
    /// updates start before that, in order.
    pub fn land(&mut self, unit: u32, landed_s: f64, seconds: f64) -> Vec<u32> {
        let mut started = Vec::new();
        while self.free_at_s.max(self.earliest_s()) < landed_s {
            started.extend(self.start_lowest());
        }
        self.waiting.push(Waiting { unit, landed_s, seconds });
        started
    }

    /// Starts the update of `unit` out of turn, because its gradient slab is needed.
    pub fn force(&mut self, unit: u32) -> Vec<u32> {
        let mut started = Vec::new();
        if let Some(i) = self.waiting.iter().position(|w| w.unit == unit) {
            started.push(self.start(i));
        }
        started
    }

    /// Starts all that wait, lowest first.
    pub fn drain(&mut self) -> Vec<u32> {
        let mut started = Vec::new();
        while let Some(unit) = self.start_lowest() {
            started.push(unit);
        }
        started
    }

    fn earliest_s(&self) -> f64 {
        self.waiting.iter().map(|w| w.landed_s).fold(f64::INFINITY, f64::min)
    }

    fn start_lowest(&mut self) -> Option<u32> {
        // At the moment the lane is free, only what has landed by then can be chosen.
        let now = self.free_at_s.max(self.earliest_s());
        let lowest = (0..self.waiting.len())
            .filter(|&i| self.waiting[i].landed_s <= now)
            .min_by_key(|&i| self.waiting[i].unit)?;
        Some(self.start(lowest))
    }

    fn start(&mut self, i: usize) -> u32 {
        let w = self.waiting.remove(i);
        self.free_at_s = self.free_at_s.max(w.landed_s) + w.seconds;
        w.unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_lane_keeps_landing_order_and_a_slow_one_prefers_low_units() {
        let run = |seconds: f64| {
            let mut queue = UpdateQueue::default();
            let mut order = Vec::new();
            for (i, unit) in (0..6).rev().enumerate() {
                order.extend(queue.land(unit, i as f64, seconds));
            }
            order.extend(queue.drain());
            order
        };
        assert_eq!(run(0.5), [5, 4, 3, 2, 1, 0]);
        assert_eq!(run(2.5), [5, 3, 0, 1, 2, 4]);
        assert_eq!(run(100.0), [5, 0, 1, 2, 3, 4]);
    }
}
