//! Sequences laid into the fixed-size arrays that a device program takes.

use crate::document::IGNORE;
use crate::error::Error;
use crate::pack::Sequence;

/// Longest document of padding: attention costs the square of a document's length, and padding should cost little.
const PADDING_DOC_TOKENS: usize = 64;

/// One micro-batch in arrays of a fixed capacity T, whatever its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MicroBatch {
    /// `[T]` token ids; 0 in the padding.
    pub tokens: Vec<i32>,
    /// `[T]` ids to be predicted next, or [`IGNORE`]; padding is recognised by place, never by a token id, so a model
    /// whose padding token is its end token still learns to end.
    pub targets: Vec<i32>,
    /// `[T]` places within each document, from 0.
    pub positions: Vec<i32>,
    /// `[T + 1]` where documents begin: document `d` is `cu_seqlens[d]..cu_seqlens[d + 1]`. The first is 0; the padding
    /// is cut into short documents of its own at the end; all entries after the last document repeat T.
    pub cu_seqlens: Vec<i32>,
    /// Places that are not padding.
    pub used: usize,
    /// Number of documents, the padding not counted.
    pub docs: usize,
    /// Places with a target.
    pub target_count: u64,
}

impl MicroBatch {
    /// Lays sequences into micro-batches of one capacity, in order, each taking as many as fit.
    ///
    /// # Errors
    /// A sequence does not fit alone.
    pub fn fill(sequences: &[Sequence], capacity: usize) -> Result<Vec<MicroBatch>, Error> {
        let mut micros = Vec::new();
        let (mut first, mut used) = (0, 0);
        for (i, sequence) in sequences.iter().enumerate() {
            if i > first && used + sequence.tokens.len() > capacity {
                micros.push(MicroBatch::assemble(&sequences[first..i], capacity)?);
                (first, used) = (i, 0);
            }
            used += sequence.tokens.len();
        }
        micros.push(MicroBatch::assemble(&sequences[first..], capacity)?);
        Ok(micros)
    }

    /// Lays sequences one after the other and pads. Fails where they do not fit.
    pub fn assemble(sequences: &[Sequence], capacity: usize) -> Result<MicroBatch, Error> {
        let used: usize = sequences.iter().map(|s| s.tokens.len()).sum();
        if used > capacity || capacity > i32::MAX as usize {
            let problem = format!("{used} tokens do not fit a micro-batch of {capacity}; lower --micro-batch-size");
            return Err(Error::Invalid(problem));
        }
        let mut batch = MicroBatch {
            tokens: Vec::with_capacity(capacity),
            targets: Vec::with_capacity(capacity),
            positions: Vec::with_capacity(capacity),
            cu_seqlens: Vec::with_capacity(capacity + 1),
            used,
            docs: sequences.iter().map(|s| s.doc_lens.len()).sum(),
            target_count: sequences.iter().map(Sequence::target_count).sum(),
        };
        batch.cu_seqlens.push(0);
        for sequence in sequences {
            batch.tokens.extend_from_slice(&sequence.tokens);
            batch.targets.extend_from_slice(&sequence.targets);
            for &len in &sequence.doc_lens {
                batch.positions.extend(0..len as i32);
                batch.cu_seqlens.push(batch.positions.len() as i32);
            }
        }
        batch.tokens.resize(capacity, 0);
        batch.targets.resize(capacity, IGNORE);
        while batch.positions.len() < capacity {
            let len = PADDING_DOC_TOKENS.min(capacity - batch.positions.len());
            batch.positions.extend(0..len as i32);
            batch.cu_seqlens.push(batch.positions.len() as i32);
        }
        batch.cu_seqlens.resize(capacity + 1, capacity as i32);
        Ok(batch)
    }
}
