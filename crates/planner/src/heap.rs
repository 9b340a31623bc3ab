//! Placement: a bump allocator for regions laid out once, and lifetimes to addresses for temporaries.

use megatrain_base::slab::ALIGN_BYTES;

/// Hands out consecutive aligned offsets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bump {
    end_bytes: u64,
}

impl Bump {
    /// The next `len_bytes` bytes.
    pub fn take(&mut self, len_bytes: u64) -> u64 {
        let offset = self.end_bytes;
        self.end_bytes = offset + len_bytes.next_multiple_of(ALIGN_BYTES);
        offset
    }

    /// Bytes handed out.
    pub fn total_bytes(&self) -> u64 {
        self.end_bytes
    }
}

/// A temporary: alive from the op `first` to the op `last`, both included.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// First op that touches it.
    pub first: usize,
    /// Last op that touches it.
    pub last: usize,
    /// Its size.
    pub len_bytes: u64,
}

/// Places lifetimes so that no two that are alive together overlap: largest first, each at the lowest offset that is
/// free during its life. Returns the offsets, in the order given, and the bytes used.
pub fn place(lifetimes: &[Lifetime]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].len_bytes), lifetimes[i].first, i));
    let mut offsets = vec![0; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let life = lifetimes[i];
        let len = life.len_bytes.next_multiple_of(ALIGN_BYTES);
        let mut busy: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&j| lifetimes[j].first <= life.last && life.first <= lifetimes[j].last)
            .map(|&j| (offsets[j], offsets[j] + lifetimes[j].len_bytes.next_multiple_of(ALIGN_BYTES)))
            .collect();
        busy.sort_unstable();
        let mut at = 0;
        for (start, end) in busy {
            if at + len <= start {
                break;
            }
            at = at.max(end);
        }
        offsets[i] = at;
        total = total.max(at + len);
        placed.push(i);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lifetimes_that_meet_never_share_bytes(lives in prop::collection::vec((0usize..20, 0usize..8, 1u64..5000), 1..40)) {
            let lives: Vec<Lifetime> =
                lives.into_iter().map(|(first, len, len_bytes)| Lifetime { first, last: first + len, len_bytes }).collect();
            let (offsets, total) = place(&lives);
            for (i, a) in lives.iter().enumerate() {
                prop_assert!(offsets[i] % ALIGN_BYTES == 0 && offsets[i] + a.len_bytes <= total);
                for (j, b) in lives.iter().enumerate().skip(i + 1) {
                    let meet = a.first <= b.last && b.first <= a.last;
                    let overlap = offsets[i] < offsets[j] + b.len_bytes && offsets[j] < offsets[i] + a.len_bytes;
                    prop_assert!(!(meet && overlap));
                }
            }
        }
    }

    #[test]
    fn lifetimes_apart_share_bytes() {
        let life = |first, last| Lifetime { first, last, len_bytes: 1024 };
        assert_eq!(place(&[life(0, 1), life(1, 2), life(2, 3)]).1, 2048);
    }
}
