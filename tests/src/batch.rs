//! Documents and micro-batches made for a test.

use megatrain_data::{IGNORE, MicroBatch, Random, Sequence};

/// One document: its targets are its tokens shifted by one, the first `masked` of them ignored.
pub fn document(tokens: Vec<i32>, masked: usize) -> Sequence {
    let mut targets: Vec<i32> = tokens[1..].iter().copied().chain([IGNORE]).collect();
    targets.iter_mut().take(masked).for_each(|t| *t = IGNORE);
    Sequence { doc_lens: vec![tokens.len() as u32], tokens, targets }
}

/// A document of `len` random tokens.
pub fn random_document(random: &mut Random, len: usize, vocab: usize, masked: usize) -> Sequence {
    document((0..len).map(|_| random.below(vocab as u64) as i32).collect(), masked)
}

/// The sequences one after the other in `capacity` places.
///
/// # Panics
/// If they do not fit.
pub fn micro(sequences: &[Sequence], capacity: usize) -> MicroBatch {
    MicroBatch::assemble(sequences, capacity).expect("the sequences fit the micro-batch")
}

/// Micro-batches of random documents, one list a step: as many micro-batches as `counts` says, each of two documents of
/// unequal length, a masked beginning and some padding.
pub fn random_steps(counts: &[usize], capacity: usize, vocab: usize, seed: u64) -> Vec<Vec<MicroBatch>> {
    let mut random = Random::new(seed, 0);
    let mut one = || {
        let first = 2 + random.below(capacity as u64 / 2) as usize;
        let second = 2 + random.below((capacity - first - 1) as u64) as usize;
        let masked = random.below(2) as usize;
        let documents = [(first, masked), (second.min(capacity - first), 0)];
        micro(&documents.map(|(len, masked)| random_document(&mut random, len, vocab, masked)), capacity)
    };
    counts.iter().map(|&count| (0..count).map(|_| one()).collect()).collect()
}
