//! Vector clocks: what a point of a lane knows to have completed.
//!
//! A lane's entry is one more than the index, in program order, of its last command known to be complete (0: none).
//! Lane order follows program order, so "command `i` of lane `l` is complete" is `clock[l] > i`. Boundary events are
//! not lanes: an event has been passed or not, one bit each.

/// The clock of one point of one lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Clock {
    /// One word a lane, then the boundary bits, 32 a word.
    words: Box<[u32]>,
    lanes: usize,
}

impl Clock {
    /// Knows nothing.
    pub(crate) fn new(lanes: usize, boundaries: usize) -> Self {
        Clock { words: vec![0; lanes + boundaries.div_ceil(32)].into_boxed_slice(), lanes }
    }

    /// Whether command `index` of `lane` is known to be complete.
    pub(crate) fn has_command(&self, lane: usize, index: u32) -> bool {
        self.words[lane] > index
    }

    /// Learns that command `index` of `lane` is complete.
    pub(crate) fn learn_command(&mut self, lane: usize, index: u32) {
        self.words[lane] = self.words[lane].max(index + 1);
    }

    /// Whether a boundary's event on entry is known to be complete.
    pub(crate) fn has_entry(&self, boundary: u32) -> bool {
        self.words[self.lanes + boundary as usize / 32] >> (boundary % 32) & 1 == 1
    }

    /// Learns that a boundary's event on entry is complete.
    pub(crate) fn learn_entry(&mut self, boundary: u32) {
        self.words[self.lanes + boundary as usize / 32] |= 1 << (boundary % 32);
    }

    /// Learns all that `other` knows.
    pub(crate) fn join(&mut self, other: &Clock) {
        let (lanes, bits) = self.words.split_at_mut(self.lanes);
        let (other_lanes, other_bits) = other.words.split_at(other.lanes);
        lanes.iter_mut().zip(other_lanes).for_each(|(a, b)| *a = (*a).max(*b));
        bits.iter_mut().zip(other_bits).for_each(|(a, b)| *a |= b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_keeps_the_later_command_and_every_bit() {
        let (mut a, mut b) = (Clock::new(2, 40), Clock::new(2, 40));
        a.learn_command(0, 5);
        a.learn_command(1, 1);
        a.learn_entry(3);
        b.learn_command(0, 2);
        b.learn_command(1, 7);
        b.learn_entry(39);
        a.join(&b);
        assert!(a.has_command(0, 5) && !a.has_command(0, 6) && a.has_command(1, 7));
        assert!(a.has_entry(3) && a.has_entry(39) && !a.has_entry(38));
    }
}
