//! [`Feed`]: where the steps of a run come from, be their documents in memory or still on the way.

use super::stream::Streamed;
use super::{Packing, describe_packing, training_packer};
use crate::options::TrainOptions;
use crate::report::DataFacts;
use crate::setup::StepShape;
use anyhow::Result;
use megatrain_data::{Batches, Documents, Packer, StepBatch};
use std::time::Duration;

/// What is trained on.
pub enum Training {
    /// All of it.
    Documents(Documents, Packing),
    /// Its beginning, and what reads the rest.
    Stream(Box<Streamed>),
}

impl Training {
    /// The steps of it.
    ///
    /// # Errors
    /// There is nothing to learn, or a pre-tokenized line is too long.
    pub fn feed(self, options: &TrainOptions, shape: StepShape) -> Result<Feed> {
        Ok(match self {
            Training::Stream(stream) => Feed::Stream(stream),
            Training::Documents(documents, packing) => {
                Feed::Whole(Batches::new(training_packer(documents, options, shape, packing)?, shape.batch_size)?)
            }
        })
    }
}

/// The steps of a run, epoch after epoch.
pub enum Feed {
    /// From documents in memory.
    Whole(Batches),
    /// From a stream.
    Stream(Box<Streamed>),
}

impl Feed {
    /// The next step, or None if its data does not come within this time.
    ///
    /// # Errors
    /// Whatever is wrong with data that had not been read before.
    pub fn poll_step(&mut self, wait: Duration) -> Result<Option<StepBatch>> {
        match self {
            Feed::Whole(batches) => Ok(Some(batches.next_step())),
            Feed::Stream(stream) => stream.poll_step(wait),
        }
    }

    /// How documents lie in sequences, in lines.
    pub fn describe(&self, shape: StepShape) -> String {
        match self {
            Feed::Stream(stream) => stream.describe(),
            Feed::Whole(batches) => {
                let mut text = describe_packing(batches.packer(), shape);
                let sequences = batches.sequences_in_epoch();
                if sequences < shape.batch_size {
                    text += &format!(
                        "\nnote     the data has only {sequences} sequence(s) an epoch, so steps are smaller than \
                         --batch-size {}",
                        shape.batch_size
                    );
                }
                text
            }
        }
    }

    /// Steps that so many epochs take; None for a stream, whose end nobody knows.
    pub fn steps_in(&self, epochs: u64, shape: StepShape) -> Option<u64> {
        match self {
            Feed::Whole(batches) => Some(steps_in(batches.packer(), shape, epochs)),
            Feed::Stream(_) => None,
        }
    }

    /// What a stream has read, if there is news of it.
    pub fn news(&mut self) -> Option<&DataFacts> {
        match self {
            Feed::Whole(_) => None,
            Feed::Stream(stream) => stream.news(),
        }
    }

    /// What a stream has read at its end, in lines.
    pub fn summary(&self) -> Option<String> {
        match self {
            Feed::Whole(_) => None,
            Feed::Stream(stream) => Some(stream.summary()),
        }
    }
}

/// Steps that some epochs take. Shuffled epochs of packed documents differ a little, so each is counted, unless there are
/// very many.
fn steps_in(packer: &Packer, shape: StepShape, epochs: u64) -> u64 {
    const COUNTED: u64 = 64;
    let steps = |epoch| packer.epoch(epoch).len().div_ceil(shape.batch_size) as u64;
    let counted: u64 = (0..epochs.min(COUNTED)).map(steps).sum();
    match epochs.checked_sub(COUNTED) {
        None => counted,
        Some(more) => counted.saturating_add(steps(0).saturating_mul(more)),
    }
}
