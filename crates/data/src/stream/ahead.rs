//! [`Ahead`]: the thread that reads and packs the next window.

use super::source::{DocumentSource, StreamOptions};
use super::windows::{Window, Windows};
use crate::batches::Position;
use crate::error::Error;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Made<S> = Result<Window<<S as DocumentSource>::Notes>, <S as DocumentSource>::Error>;

/// A thread that makes windows, one ahead of who receives them.
pub(super) struct Ahead<S: DocumentSource> {
    windows: Receiver<Made<S>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<S>,
}

impl<S: DocumentSource> Ahead<S> {
    pub fn start(source: S, options: StreamOptions, from: Position) -> Result<Ahead<S>, Error> {
        // Without room: a finished window waits in the thread's hands, and the next is begun when it was taken.
        let (sender, windows) = mpsc::sync_channel(0);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            let mut windows = Windows::new(source, options, from);
            while let Some(made) = windows.next(|| stopped.load(Ordering::Relaxed)).transpose() {
                let failed = made.is_err();
                // Nobody receives any more once the stream was dropped.
                if sender.send(made).is_err() || failed {
                    break;
                }
            }
            windows.source
        };
        let thread = thread::Builder::new().name("data".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::Invalid(format!("no thread to read data on: {error}")))?;
        Ok(Ahead { windows, stop, thread })
    }

    /// Waits for a window for so long. The error is None where the thread ended without one.
    pub fn receive(&self, wait: Duration) -> Result<Option<Window<S::Notes>>, Option<S::Error>> {
        match self.windows.recv_timeout(wait) {
            Ok(made) => made.map(Some).map_err(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(None),
        }
    }

    /// Ends the thread, at the latest after the read that it is in.
    ///
    /// # Errors
    /// It panicked.
    pub fn end(self) -> Result<S, Error> {
        let Ahead { windows, stop, thread } = self;
        stop.store(true, Ordering::Relaxed);
        drop(windows);
        thread.join().map_err(|panic| {
            Error::Invalid(format!("a fault of this program, not of the data, while data was read: {}", text(&*panic)))
        })
    }
}

/// What a panic said.
fn text(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panic")
}
