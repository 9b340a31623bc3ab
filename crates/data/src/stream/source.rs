//! [`DocumentSource`]: what a stream's documents come from, and [`StreamOptions`]: how much of it is in memory at once.

use crate::document::{Documents, DocumentsBuilder};
use crate::error::Error;
use crate::pack::PackOptions;
use std::path::PathBuf;

/// Documents that are read anew in every epoch, some at a time. Each pass has to give the same ones in the same order: what
/// is trained is then a function of the data and the options.
pub trait DocumentSource: Send + 'static {
    /// What can go wrong.
    type Error: From<Error> + Send + 'static;

    /// What is to be known about a window beside its documents: counts, what was left out.
    type Notes: Send + 'static;

    /// Begins a pass at the first document. Gives the files that documents name.
    ///
    /// # Errors
    /// The data is not there.
    fn begin(&mut self) -> Result<Vec<PathBuf>, Self::Error>;

    /// Appends some of the next documents, and says whether there may be more. It may append none and still have more;
    /// it has to come to an end, and should take no longer than a second or so, since a stream ends between two calls.
    ///
    /// # Errors
    /// Whatever is wrong with the data: there is nothing more after it.
    fn read(&mut self, room: Room, into: &mut DocumentsBuilder) -> Result<bool, Self::Error>;

    /// How the documents of a window are packed, if they themselves decide. `options` are those of the stream.
    fn packing(&self, options: PackOptions, _window: &Documents) -> PackOptions {
        options
    }

    /// What is to be known about the documents read since the last call, which are a window's.
    fn notes(&mut self, window: &Documents) -> Self::Notes;
}

/// How much a window still takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Most documents to append; at least 1.
    pub documents: usize,
    /// About so many tokens, at least 1: more do no harm but to memory.
    pub tokens: u64,
}

/// How a stream is cut into windows and steps.
///
/// A window ends when it has `buffer_tokens`, or `buffer_size` documents and a step's worth of tokens (`batch_size` times
/// `seq_len`), or when the data ends. It thus has enough for a step whatever the options; its last document, and the last
/// call of [`DocumentSource::read`], may take it beyond its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// How the documents of a window become sequences.
    pub pack: PackOptions,
    /// Sequences in a step, at least 1.
    pub batch_size: usize,
    /// Documents in a window, at least 1: among so many they are shuffled and packed.
    pub buffer_size: usize,
    /// Tokens in a window, which bounds memory however long documents are.
    pub buffer_tokens: u64,
    /// Tokens in the first window of the first epoch, but a step's worth at least; each after it has twice as many, up to the
    /// full size. So the first step need not wait for a whole window. `u64::MAX`: the first is as large as any.
    pub first_tokens: u64,
}

impl StreamOptions {
    /// Tokens in a full step.
    pub(super) fn step_tokens(&self) -> u64 {
        (self.batch_size as u64).saturating_mul(self.pack.seq_len as u64)
    }

    /// Tokens that end a window of an epoch, both counted from 0.
    pub(super) fn tokens_in(&self, epoch: u64, window: u64) -> u64 {
        let most = self.buffer_tokens.max(self.step_tokens());
        match epoch {
            0 => self.first_tokens.max(self.step_tokens()).saturating_mul(1 << window.min(63)).min(most),
            _ => most,
        }
    }
}
