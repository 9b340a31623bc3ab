//! Steps from data that is read while it is trained on: in bounded memory, however large the files.
//!
//! A thread reads the documents of a *window* from a [`DocumentSource`] and packs them while the window before is handed out;
//! [`StreamBatches`] takes steps from one window after the other. Shuffling and packing are within a window. What comes is a
//! function of the source, the options and the seed: windows are cut by counts, never by time.

mod ahead;
mod source;
mod windows;

pub use source::{DocumentSource, Room, StreamOptions};

use crate::batches::{Position, StepBatch};
use crate::error::Error;
use crate::pack::Sequence;
use ahead::Ahead;
use std::time::{Duration, Instant};
use windows::Window;

/// An endless source of steps, as [`Batches`](crate::Batches), from documents that are read meanwhile. Steps reach across
/// the borders of windows; only the last of an epoch may be smaller.
///
/// At most two windows are in memory: the one that is handed out, and the next. Dropping this ends the thread.
pub struct StreamBatches<S: DocumentSource> {
    options: StreamOptions,
    /// None after an error.
    ahead: Option<Ahead<S>>,
    window: Option<Window<()>>,
    /// The beginning of the next step.
    step: Vec<Sequence>,
    position: Position,
    notes: Vec<(u64, S::Notes)>,
    waited: Duration,
}

impl<S: DocumentSource> StreamBatches<S> {
    /// Begins to read, for the first step of epoch 0; waits for nothing.
    ///
    /// # Errors
    /// Options that make no sense; the system has no more threads.
    pub fn new(source: S, options: StreamOptions) -> Result<StreamBatches<S>, Error> {
        for (name, value) in [("--batch-size", options.batch_size), ("--buffer-size", options.buffer_size)] {
            if value == 0 {
                return Err(Error::Invalid(format!("{name} must be at least 1")));
            }
        }
        options.pack.check()?;
        let position = Position::default();
        let ahead = Some(Ahead::start(source, options, position)?);
        let (step, notes) = (Vec::new(), Vec::new());
        Ok(StreamBatches { options, ahead, window: None, step, position, notes, waited: Duration::ZERO })
    }

    /// The position before the next step.
    pub fn state(&self) -> Position {
        self.position
    }

    /// Continues from a saved position: reads the epoch from its beginning and packs, but keeps nothing that comes before.
    /// With the same data and options, what follows is what would have followed. Waits for the first window.
    ///
    /// # Errors
    /// The epoch has no such place, or whatever reading fails with.
    pub fn seek(&mut self, position: Position) -> Result<(), S::Error> {
        let source = self.ahead.take().ok_or_else(after_an_error)?.end()?;
        self.window = None;
        self.step.clear();
        self.notes.clear();
        self.position = position;
        self.ahead = Some(Ahead::start(source, self.options, position)?);
        self.ready()
    }

    /// Waits until the next window is there, unless one is.
    ///
    /// # Errors
    /// Whatever reading fails with, or nothing to learn in all of the data.
    pub fn ready(&mut self) -> Result<(), S::Error> {
        while self.window.is_none() && !self.receive(Duration::MAX)? {}
        Ok(())
    }

    /// The next step. Ends never: after an epoch the data is read again.
    ///
    /// # Errors
    /// As [`StreamBatches::ready`]. What was read before the error has been handed out, in whole windows. There is nothing more
    /// after an error.
    pub fn next_step(&mut self) -> Result<StepBatch, S::Error> {
        loop {
            if let Some(step) = self.poll_step(Duration::MAX)? {
                return Ok(step);
            }
        }
    }

    /// The next step, or None if its data does not come within this time.
    ///
    /// # Errors
    /// As [`StreamBatches::next_step`].
    pub fn poll_step(&mut self, wait: Duration) -> Result<Option<StepBatch>, S::Error> {
        loop {
            if let Some(window) = &mut self.window {
                let wanted = self.options.batch_size - self.step.len();
                let end = window.sequences.len().min(window.first + wanted);
                self.step.extend((window.first..end).map(|i| window.sequences.sequence(i)));
                window.first = end;
                let complete = self.step.len() == self.options.batch_size;
                let ends = window.last && end == window.sequences.len();
                if complete || (ends && !self.step.is_empty()) {
                    return Ok(Some(self.hand_out()));
                }
                self.window = None;
            }
            if !self.receive(wait)? {
                return Ok(None);
            }
        }
    }

    fn hand_out(&mut self) -> StepBatch {
        let sequences = std::mem::take(&mut self.step);
        self.position.sequence += sequences.len() as u64;
        StepBatch::new(sequences, self.position.epoch)
    }

    /// How often the data was handed out to its end, counted from epoch 0 wherever this began.
    pub fn epochs_done(&self) -> u64 {
        let ended = |window: &Window<_>| window.last && window.first == window.sequences.len();
        self.position.epoch + u64::from(self.window.as_ref().is_some_and(ended) && self.step.is_empty())
    }

    /// Number of documents and of sequences in the window that is handed out.
    pub fn window(&self) -> Option<(usize, usize)> {
        self.window.as_ref().map(|window| (window.sequences.documents().len(), window.sequences.len()))
    }

    /// The notes of windows that were begun to be handed out since the last call, each with its epoch.
    pub fn take_notes(&mut self) -> Vec<(u64, S::Notes)> {
        std::mem::take(&mut self.notes)
    }

    /// How long steps had to wait for data.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Waits for the next window for so long. Whether it came.
    fn receive(&mut self, wait: Duration) -> Result<bool, S::Error> {
        let begun = Instant::now();
        let received = self.ahead.as_ref().ok_or_else(after_an_error)?.receive(wait);
        self.waited += begun.elapsed();
        let window = match received {
            Ok(None) => return Ok(false),
            Ok(Some(window)) => window,
            Err(ended) => {
                let ahead = self.ahead.take().expect("it has just answered");
                return Err(match ended {
                    Some(error) => error,
                    // It ends of itself only after an error, which was handed out, or by a panic, which `end` tells of.
                    None => ahead.end().err().unwrap_or_else(after_an_error).into(),
                });
            }
        };
        if window.epoch > self.position.epoch {
            self.position = Position { epoch: window.epoch, sequence: 0 };
        }
        let Window { epoch, sequences, first, last, notes } = window;
        self.notes.push((epoch, notes));
        self.window = Some(Window { epoch, sequences, first, last, notes: () });
        Ok(true)
    }
}

impl<S: DocumentSource> Drop for StreamBatches<S> {
    fn drop(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            // Whoever drops the stream no longer asks how it ended.
            let _ = ahead.end();
        }
    }
}

fn after_an_error() -> Error {
    Error::Invalid("the stream of data has ended with an error before".to_owned())
}
