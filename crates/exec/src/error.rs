//! [`ExecError`]: what stops an executor, said with the program, the command, its lane and its label.

use megatrain_base::Span;
use megatrain_scheduler::{Label, Lane, LaneId};
use std::fmt;
use std::sync::Arc;

/// Where in a program something happened.
#[derive(Clone, PartialEq, Debug)]
pub struct Place {
    /// Name of the op or host task; `copy`, `record`, `wait` or the collective's kind otherwise.
    pub name: &'static str,
    /// The lane's number.
    pub lane: LaneId,
    /// What the lane does, and for which rank.
    pub kind: Lane,
    /// Whose work it is.
    pub label: Label,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { name, lane, kind, label } = self;
        write!(f, "`{name}` ({label}) on lane {} ({kind})", lane.0)
    }
}

/// Why a command did not do its work.
#[derive(Clone, PartialEq, Debug)]
pub enum Reason {
    /// The host task returned this error.
    Task(String),
    /// The device or its driver returned this error.
    Device(String),
    /// The kernel or host task panicked with this message.
    Panic(String),
    /// Another command held bytes that this one needs, and one of the two writes them: the program lacks a wait.
    Race(Box<Race>),
}

/// Two commands that no event orders, on the same bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Race {
    /// Bytes that the refused command declares.
    pub span: Span,
    /// The program of the other command.
    pub other_program: Arc<str>,
    /// The other command.
    pub other: Place,
    /// What the other command holds.
    pub other_span: Span,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Task(text) | Reason::Device(text) => write!(f, "failed: {text}"),
            Reason::Panic(text) => write!(f, "panicked: {text}"),
            Reason::Race(race) => {
                let Race { span, other_program, other, other_span } = &**race;
                write!(
                    f,
                    "races for {span} with {other} of program `{other_program}`, which holds {other_span}: \
                     no event orders the two"
                )
            }
        }
    }
}

/// What stops an executor. The first failure wins; it is cloned to every ticket that it touches.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The memory handed over does not fit the contract.
    #[error("memory does not fit the contract: {0}")]
    Memory(String),
    /// The device cannot be used.
    #[error("{0}")]
    Device(String),
    /// Threads could not be started.
    #[error("cannot start {what}: {cause}; lower the number of threads or raise the process limit")]
    Spawn {
        /// What was started.
        what: String,
        /// The system's words.
        cause: String,
    },
    /// The program was refused as a whole, before any command ran.
    #[error("program `{program}` refused: {what}")]
    Refused {
        /// The program.
        program: Arc<str>,
        /// What is wrong with it.
        what: String,
    },
    /// The program was refused because of one command, before any command ran.
    #[error("program `{program}` refused: command {index}, {place}, {what}")]
    Malformed {
        /// The program.
        program: Arc<str>,
        /// Index into the program's commands.
        index: usize,
        /// The command.
        place: Place,
        /// What is wrong with it.
        what: String,
    },
    /// A command failed while the program ran. No host task was started after it.
    #[error("program `{program}`: {place} {reason}")]
    Failed {
        /// The program.
        program: Arc<str>,
        /// The command.
        place: Place,
        /// Why.
        reason: Reason,
    },
    /// The program came after a failure. Memory may be half written: make a new executor from a checkpoint.
    #[error("program `{program}` did not run: the executor stopped before it: {first}")]
    Stopped {
        /// The program.
        program: Arc<str>,
        /// The failure.
        first: Arc<ExecError>,
    },
}
