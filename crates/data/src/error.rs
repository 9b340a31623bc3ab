//! What can be wrong with data, said for the person who has to repair it.

use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// Why data could not be read, packed or handed out.
#[derive(Debug, Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {action} failed: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The system's reason; part of the message, so not the error's source too.
        reason: std::io::Error,
    },
    /// A place in a file is wrong.
    #[error("{origin}: {problem}")]
    At {
        /// File and, where known, line.
        origin: Origin,
        /// What is wrong and what to do.
        problem: String,
    },
    /// An option, or the data as a whole.
    #[error("{0}")]
    Invalid(String),
}

/// A place in the data: a file and, where one is meant, a line of it, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: Option<u64>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// Shorthand for errors about a whole file.
pub(crate) fn file(path: impl Into<PathBuf>, problem: impl Into<String>) -> Error {
    Error::At { origin: Origin { path: path.into(), line: None }, problem: problem.into() }
}

/// Shorthand for errors about a line.
pub(crate) fn line(path: impl Into<PathBuf>, line: u64, problem: impl Into<String>) -> Error {
    Error::At { origin: Origin { path: path.into(), line: Some(line) }, problem: problem.into() }
}

/// Turns a system error into ours: `.map_err(io(path, "reading"))`.
pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.into();
    move |reason| Error::Io { path, action, reason }
}
