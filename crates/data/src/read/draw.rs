//! `num_samples`: so many samples of a source, drawn at random in one pass over samples whose number is known.

use crate::conversation::Sample;
use crate::random::Random;

/// Draws `count` of the samples of a source: each `count / there` times, and `count % there` of them once more, every
/// choice of those equally likely (selection sampling: Knuth, The Art of Computer Programming 2, 3.4.2, algorithm S).
pub(super) struct Draw {
    count: u64,
    /// As it was given, for every pass.
    seeded: Random,
    random: Random,
    /// Samples in the source, once that is known.
    there: Option<u64>,
    /// Samples of this pass not met yet, and how many of them come once more than others.
    ahead: u64,
    extra: u64,
    /// A sample that is handed out, and how often still.
    sample: Option<(Sample, u64)>,
}

impl Draw {
    pub(super) fn new(count: u64, random: Random) -> Draw {
        Draw { count, seeded: random.clone(), random, there: None, ahead: 0, extra: 0, sample: None }
    }

    /// What the choice depends on, beside the samples.
    pub(super) fn settings(&self) -> String {
        format!(" {} drawn by {:?}", self.count, self.seeded)
    }

    /// Whether [`Draw::count`] was told.
    pub(super) fn counted(&self) -> bool {
        self.there.is_some()
    }

    /// How many samples there are.
    pub(super) fn count(&mut self, there: u64) {
        self.there = Some(there);
        self.rewind();
    }

    /// Begins the pass again, with the same choice.
    pub(super) fn rewind(&mut self) {
        let there = self.there.unwrap_or(0);
        self.random = self.seeded.clone();
        (self.ahead, self.extra) = (there, self.count.checked_rem(there).unwrap_or(0));
        self.sample = None;
    }

    /// Decides how often a sample comes.
    pub(super) fn meet(&mut self, sample: Sample) {
        let more = self.random.below(self.ahead.max(1)) < self.extra;
        self.extra -= u64::from(more);
        self.ahead = self.ahead.saturating_sub(1);
        let each = self.there.and_then(|there| self.count.checked_div(there)).unwrap_or(0);
        self.sample = Some((sample, each + u64::from(more)));
    }

    /// The sample met last, as often as it comes.
    pub(super) fn again(&mut self) -> Option<Sample> {
        match self.sample.take()? {
            (_, 0) => None,
            (sample, 1) => Some(sample),
            (sample, times) => {
                self.sample = Some((sample.clone(), times - 1));
                Some(sample)
            }
        }
    }
}
