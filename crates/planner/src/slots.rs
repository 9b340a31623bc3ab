//! Which block's weights lie in which device slot: the sequence of uses is known, so the victim is always the block
//! that is needed again last (Belady's rule), which keeps the last blocks of a forward pass for the backward pass.

/// The block slots of the device while a program is written.
#[derive(Debug)]
pub struct Slots {
    held: Vec<Option<usize>>,
    uses: Vec<usize>,
    at: usize,
}

/// A block that has to be copied into a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// The block.
    pub block: usize,
    /// Its slot.
    pub slot: usize,
}

impl Slots {
    /// `count` empty slots for this sequence of blocks used.
    pub fn new(count: usize, uses: Vec<usize>) -> Self {
        Slots { held: vec![None; count], uses, at: 0 }
    }

    /// Begins the next use: the slot the block lies in, and what to copy beforehand: the block itself if it is not
    /// there, and the block used after it, as early as a slot is free for it.
    pub fn advance(&mut self) -> (usize, Vec<Fetch>) {
        let block = self.uses[self.at];
        let mut fetches = Vec::new();
        let slot = self.ensure(self.at, None, &mut fetches);
        self.at += 1;
        if self.held.len() > 1 && self.at < self.uses.len() {
            self.ensure(self.at, Some(slot), &mut fetches);
        }
        debug_assert_eq!(self.held[slot], Some(block));
        (slot, fetches)
    }

    fn ensure(&mut self, use_index: usize, pinned: Option<usize>, fetches: &mut Vec<Fetch>) -> usize {
        let block = self.uses[use_index];
        if let Some(slot) = self.held.iter().position(|h| *h == Some(block)) {
            return slot;
        }
        let next_use = |held: &Option<usize>| match held {
            None => usize::MAX,
            Some(b) => self.uses[use_index..].iter().position(|u| u == b).map_or(usize::MAX - 1, |i| i),
        };
        let slot = (0..self.held.len())
            .filter(|s| Some(*s) != pinned)
            .max_by_key(|&s| (next_use(&self.held[s]), std::cmp::Reverse(s)))
            .expect("two slots at least where something is pinned");
        self.held[slot] = Some(block);
        fetches.push(Fetch { block, slot });
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(slots: usize, layers: usize, groups: usize) -> usize {
        let uses: Vec<usize> = (0..groups).flat_map(|_| (0..layers).chain((0..layers).rev())).collect();
        let mut s = Slots::new(slots, uses.clone());
        let mut count = 0;
        for block in uses {
            let (slot, fetches) = s.advance();
            count += fetches.len();
            assert_eq!(s.held[slot], Some(block));
        }
        count
    }

    #[test]
    fn fetches_are_as_few_as_arithmetic_allows() {
        for layers in 1..9 {
            for slots in 2..10 {
                for groups in 1..4 {
                    let held = slots.min(layers);
                    let want = if held == layers { layers } else { 2 * groups * layers - (2 * groups - 1) * held };
                    assert_eq!(fetched(slots, layers, groups), want, "{layers} layers, {slots} slots, {groups} groups");
                }
            }
        }
    }
}
