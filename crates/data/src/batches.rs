//! Sequences step by step, epoch after epoch, from any position.

use crate::error::Error;
use crate::micro::MicroBatch;
use crate::pack::{Epoch, Packer, Sequence};
use serde::{Deserialize, Serialize};

/// A place between two steps: what a run saves and seeks to when it resumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Position {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// Sequences of that epoch already handed out.
    pub sequence: u64,
}

impl Position {
    /// Refuses a place behind the last of an epoch's sequences.
    pub(crate) fn beyond(self, sequences: u64) -> Error {
        let Position { epoch, sequence } = self;
        Error::Invalid(format!(
            "cannot continue at sequence {sequence} of epoch {epoch}, which has only {sequences}: the data, --seq-len or \
             --seed are not those of the saved run"
        ))
    }
}

/// The sequences of one optimizer step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepBatch {
    /// `batch_size` sequences, or fewer at the end of an epoch; never none.
    pub sequences: Vec<Sequence>,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of places with a target: the divisor of the step's loss.
    pub targets: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
}

impl StepBatch {
    /// Counts what the sequences hold.
    pub(crate) fn new(sequences: Vec<Sequence>, epoch: u64) -> StepBatch {
        StepBatch {
            tokens: sequences.iter().map(|s| s.tokens.len() as u64).sum(),
            targets: sequences.iter().map(Sequence::target_count).sum(),
            epoch,
            sequences,
        }
    }

    /// Splits the step into micro-batches, each laid out in arrays of `micro_batch_size * seq_len` places: sequences in
    /// order, as many as fit. Short ones thus take fewer micro-batches, never more than one of `micro_batch_size` each.
    pub fn micro_batches(&self, micro_batch_size: usize, seq_len: usize) -> Result<Vec<MicroBatch>, Error> {
        if micro_batch_size == 0 {
            return Err(Error::Invalid("--micro-batch-size must be at least 1".to_owned()));
        }
        MicroBatch::fill(&self.sequences, micro_batch_size * seq_len)
    }
}

/// An endless source of steps: each epoch's sequences once, the last step of an epoch possibly smaller.
#[derive(Clone, Debug)]
pub struct Batches {
    packer: Packer,
    batch_size: usize,
    epoch: Epoch,
    position: Position,
}

impl Batches {
    /// Starts at the first step of epoch 0.
    pub fn new(packer: Packer, batch_size: usize) -> Result<Batches, Error> {
        if batch_size == 0 {
            return Err(Error::Invalid("--batch-size must be at least 1".to_owned()));
        }
        let epoch = packer.epoch(0);
        Ok(Batches { packer, batch_size, epoch, position: Position::default() })
    }

    /// Sequences in the current epoch. Differs a little between shuffled epochs where documents are packed.
    pub fn sequences_in_epoch(&self) -> usize {
        self.epoch.len()
    }

    /// Steps in the current epoch.
    pub fn steps_in_epoch(&self) -> usize {
        self.epoch.len().div_ceil(self.batch_size)
    }

    /// What makes the sequences.
    pub fn packer(&self) -> &Packer {
        &self.packer
    }

    /// The position before the next step.
    pub fn state(&self) -> Position {
        self.position
    }

    /// Continues from a saved position. With the same data and options, what follows is what would have followed.
    pub fn seek(&mut self, position: Position) -> Result<(), Error> {
        let epoch = self.packer.epoch(position.epoch);
        if position.sequence > epoch.len() as u64 {
            return Err(position.beyond(epoch.len() as u64));
        }
        self.epoch = epoch;
        self.position = position;
        Ok(())
    }

    /// The next step. Ends never: after an epoch comes the next, in a new order where shuffling is on.
    pub fn next_step(&mut self) -> StepBatch {
        if self.position.sequence == self.epoch.len() as u64 {
            self.position = Position { epoch: self.position.epoch + 1, sequence: 0 };
            self.epoch = self.packer.epoch(self.position.epoch);
        }
        let first = self.position.sequence as usize;
        let end = (first + self.batch_size).min(self.epoch.len());
        self.position.sequence = end as u64;
        StepBatch::new((first..end).map(|i| self.epoch.sequence(i)).collect(), self.position.epoch)
    }
}

impl Iterator for Batches {
    type Item = StepBatch;

    /// Always some step.
    fn next(&mut self) -> Option<StepBatch> {
        Some(self.next_step())
    }
}
