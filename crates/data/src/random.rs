//! The one source of randomness in this crate: a small generator whose sequence is part of the contract.
//!
//! SplitMix64: state advances by 0x9e3779b97f4a7c15; the output mixes it with two multiply-xorshift rounds. Source:
//! Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. Every seed has the full period of 2^64.

/// A seeded generator. The same seed and stream give the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of a seed and a stream within it (an epoch, a purpose). Both are mixed, so that neighbouring
    /// seeds and streams do not run into each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        Random { state: mix(mix(seed) ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03)) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A uniform number below `bound`, which must not be 0; unbiased: the incomplete last range is drawn again.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        let rejected = bound.wrapping_neg() % bound;
        loop {
            let draw = self.next_u64();
            if draw >= rejected {
                return draw % bound;
            }
        }
    }

    /// A uniform number in [0, 1), a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Shuffles in place; all orders are equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_splitmix64() {
        // First outputs of SplitMix64 from state 0, as its authors' reference gives them.
        let mut random = Random { state: 0 };
        assert_eq!(
            [random.next_u64(), random.next_u64(), random.next_u64()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
        );
    }

    #[test]
    fn shuffles_reach_every_order_about_equally_often() {
        let mut counts = [0u32; 6];
        for seed in 0..6000 {
            let mut items = [0, 1, 2];
            Random::new(seed, 0).shuffle(&mut items);
            counts[items[0] * 2 + usize::from(items[1] > items[2])] += 1;
        }
        // Binomial(6000, 1/6): mean 1000, deviation 29; five deviations either way.
        assert!(counts.iter().all(|count| (855..1145).contains(count)), "{counts:?}");
    }

    #[test]
    fn numbers_below_a_bound_are_unbiased() {
        // For 3 * 2^62 a plain remainder would give the lowest third half of the time.
        let (mut random, third) = (Random::new(1, 0), 1u64 << 62);
        let low = (0..6000).filter(|_| random.below(3 * third) < third).count();
        // Binomial(6000, 1/3): mean 2000, deviation 37; five deviations either way.
        assert!((1815..2185).contains(&low), "{low}");
    }

    #[test]
    fn seeds_and_streams_differ() {
        let first = |seed, stream| Random::new(seed, stream).next_u64();
        let all: std::collections::HashSet<_> = (0..50).flat_map(|s| (0..50).map(move |e| first(s, e))).collect();
        assert_eq!(all.len(), 2500);
    }
}
