//! What an order of work needs to know about a piece of work, and nothing else: which bytes it reads and writes, and
//! how much it costs. The scheduler is generic over [`Command`]; ops and host tasks implement it.

use crate::{Span, units};
use std::fmt;

/// How a command touches a span.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reads every byte or some; the bytes must have been written before.
    Read,
    /// Writes **every** byte and reads none.
    Write,
    /// Reads and writes in place.
    Update,
}

impl Access {
    /// Whether old bytes are read.
    pub const fn reads(self) -> bool {
        !matches!(self, Access::Write)
    }
    /// Whether bytes change.
    pub const fn writes(self) -> bool {
        !matches!(self, Access::Read)
    }
    /// Whether two accesses of the same byte need an order.
    pub const fn conflicts(self, other: Access) -> bool {
        self.writes() || other.writes()
    }
}

/// Floating-point operations and memory traffic of one command.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Floating-point operations; a fused multiply-add counts two.
    pub flops: f64,
    /// Bytes read plus bytes written in the memory of the lane's processor.
    pub bytes: f64,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} GFLOP, {}", self.flops / 1e9, units::fmt_bytes(self.bytes as u64))
    }
}

/// A piece of work that can stand in a program.
pub trait Command: Clone + fmt::Debug + Send + Sync + 'static {
    /// Short name for traces and errors, e.g. `matmul`.
    fn name(&self) -> &'static str;
    /// Calls `visit` for every span the command touches. The order is fixed for a given command.
    fn accesses(&self, visit: &mut dyn FnMut(Span, Access));
    /// What it costs.
    fn work(&self) -> Work;
}
