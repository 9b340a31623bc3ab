//! [`Windows`]: from a source to packed windows, pass after pass. Knows nothing of threads.

use super::source::{DocumentSource, Room, StreamOptions};
use crate::batches::Position;
use crate::document::DocumentsBuilder;
use crate::error::Error;
use crate::pack::{Epoch, PackOptions, Packer};
use crate::random::Random;
use std::path::PathBuf;
use std::sync::Arc;

/// The stream of [`Random`] that seeds the second window of an epoch; later ones use the numbers below it. Epochs use the
/// numbers from 0 on.
const WINDOW_STREAM: u64 = u64::MAX - 2;

/// Some documents of an epoch, shuffled among themselves and packed.
pub(super) struct Window<N> {
    /// The epoch, counted from 0.
    pub epoch: u64,
    pub sequences: Epoch,
    /// The first sequence to hand out; the ones before were, in the run that is continued.
    pub first: usize,
    /// Whether the epoch ends with it.
    pub last: bool,
    pub notes: N,
}

/// The windows of all epochs from a position on.
pub(super) struct Windows<S> {
    pub source: S,
    options: StreamOptions,
    epoch: u64,
    /// Sequences of this epoch still to skip,
    skip: u64,
    /// of so many from its beginning.
    skipped_to: u64,
    pass: Option<Pass>,
}

/// Where the reading of an epoch is.
struct Pass {
    files: Vec<PathBuf>,
    windows: u64,
    documents: u64,
    targets: u64,
}

impl<S: DocumentSource> Windows<S> {
    pub fn new(source: S, options: StreamOptions, from: Position) -> Windows<S> {
        let Position { epoch, sequence } = from;
        Windows { source, options, epoch, skip: sequence, skipped_to: sequence, pass: None }
    }

    /// The next window; None as soon as `stopped`.
    ///
    /// # Errors
    /// What the source says; a whole pass without anything to learn; a position that the epoch does not have.
    pub fn next(&mut self, stopped: impl Fn() -> bool) -> Result<Option<Window<S::Notes>>, S::Error> {
        loop {
            let Some(window) = self.read_window(&stopped)? else { return Ok(None) };
            let skip = self.skip.min(window.sequences.len() as u64);
            self.skip -= skip;
            if window.last {
                self.end_pass()?;
            }
            // An epoch's end is told even by an empty window, but not the end of what was handed out before.
            let all_skipped = skip > 0 && skip == window.sequences.len() as u64;
            if self.skip == 0 && !all_skipped {
                return Ok(Some(Window { first: skip as usize, ..window }));
            }
        }
    }

    fn read_window(&mut self, stopped: &impl Fn() -> bool) -> Result<Option<Window<S::Notes>>, S::Error> {
        let pass = match &mut self.pass {
            Some(pass) => pass,
            None => {
                let files = self.source.begin()?;
                self.pass.insert(Pass { files, windows: 0, documents: 0, targets: 0 })
            }
        };
        let options = &self.options;
        let (number, tokens) = (pass.windows, options.tokens_in(self.epoch, pass.windows));
        let mut window = DocumentsBuilder::in_memory(pass.files.clone());
        let mut more = true;
        while more && window.tokens() < tokens {
            let enough = window.len() >= options.buffer_size;
            if enough && window.tokens() >= options.step_tokens() {
                break;
            }
            if stopped() {
                return Ok(None);
            }
            let documents = if enough { options.batch_size } else { options.buffer_size - window.len() };
            more = self.source.read(Room { documents, tokens: tokens - window.tokens() }, &mut window)?;
        }
        let documents = Arc::new(window.finish());
        let pack = PackOptions { seed: seed(options.pack.seed, number), ..options.pack };
        let pack = self.source.packing(pack, &documents);
        let packer = Packer::cut(documents.clone(), pack)?;
        pass.windows += 1;
        pass.documents += documents.len() as u64;
        pass.targets += packer.targets();
        let notes = self.source.notes(&documents);
        Ok(Some(Window { epoch: self.epoch, sequences: packer.epoch(self.epoch), first: 0, last: !more, notes }))
    }

    fn end_pass(&mut self) -> Result<(), Error> {
        let pass = self.pass.take().expect("a pass has just been read");
        if pass.targets == 0 {
            return Err(Packer::no_targets(pass.documents));
        }
        if self.skip > 0 {
            return Err(Position { epoch: self.epoch, sequence: self.skipped_to }.beyond(self.skipped_to - self.skip));
        }
        self.epoch += 1;
        Ok(())
    }
}

/// The seed of a window, counted from 0. The first has that of the whole, so that data in one window has the order that it
/// has without a stream.
fn seed(seed: u64, window: u64) -> u64 {
    match window.checked_sub(1) {
        None => seed,
        Some(later) => Random::new(seed, WINDOW_STREAM - later).next_u64(),
    }
}
