//! The program: what runs, on which lane, after which events.
//!
//! Commands of one lane run in the order of [`Program::commands`]. Commands of different lanes are ordered only by
//! events: a `Wait(e)` holds its lane until the most recent `Record(e)` before it in program order has completed.

use megatrain_base::{Access, Command, Rank, RegionId, Span, UnitId, Work};
use std::fmt;
use std::sync::Arc;

/// An event. Ids below `Contract::boundaries.len()` are the boundary events, in order; the others are the program's own
/// and are recorded once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EventId(pub u32);

/// Index into [`Contract::lanes`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LaneId(pub u16);

/// What a lane does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneKind {
    /// Copies host to device.
    H2d,
    /// Kernels.
    Compute,
    /// Copies device to host.
    D2h,
    /// Host: optimizer updates and norms.
    Update,
    /// Host: batches, gathered embedding rows.
    Data,
    /// Host: files.
    Io,
}

impl LaneKind {
    /// Whether it runs on the host's processor.
    pub const fn on_host(self) -> bool {
        matches!(self, LaneKind::Update | LaneKind::Data | LaneKind::Io)
    }
}

/// A lane: an in-order queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    /// The device it belongs to (host lanes: the rank whose node they run on).
    pub rank: Rank,
    /// What it does.
    pub kind: LaneKind,
}

impl fmt::Display for LaneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaneKind::H2d => "h2d",
            LaneKind::Compute => "compute",
            LaneKind::D2h => "d2h",
            LaneKind::Update => "update",
            LaneKind::Data => "data",
            LaneKind::Io => "io",
        })
    }
}

impl fmt::Display for Lane {
    /// `0.0/h2d`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.rank, self.kind)
    }
}

/// Where a region lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Space {
    /// Host memory.
    Host,
    /// Device memory of a rank.
    Device(Rank),
    /// A file.
    File,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Host => f.write_str("host memory"),
            Space::Device(rank) => write!(f, "device memory of rank {rank}"),
            Space::File => f.write_str("a file"),
        }
    }
}

/// A region of memory. Index in [`Contract::regions`] = [`RegionId`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionSpec {
    /// For people.
    pub name: String,
    /// Where it lies.
    pub space: Space,
    /// Its size.
    pub len_bytes: u64,
    /// Whether its bytes hold something when a program starts (weights, states); if not, a program must write before it reads.
    pub defined_at_entry: bool,
}

/// A boundary event and the bytes it guards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Boundary {
    /// E.g. `updated[3]`, `slot_free[0]`.
    pub name: String,
    /// The bytes. No byte is guarded twice, and a program may touch only guarded bytes.
    pub guards: Vec<Span>,
}

/// What all programs of one plan agree on. On entry every boundary event is pending: work of an earlier program on its
/// bytes ends when the event completes. A program waits on it (directly or through other lanes) before its first
/// access of those bytes, and if it accesses any, records it again after all its accesses; otherwise it leaves it alone.
/// Any sequence of programs that keep the contract is then free of races.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Contract {
    /// Memory.
    pub regions: Vec<RegionSpec>,
    /// Queues.
    pub lanes: Vec<Lane>,
    /// Boundary events; index = [`EventId`].
    pub boundaries: Vec<Boundary>,
}

impl Contract {
    /// Adds a region.
    pub fn region(
        &mut self,
        name: impl Into<String>,
        space: Space,
        len_bytes: u64,
        defined_at_entry: bool,
    ) -> RegionId {
        self.regions.push(RegionSpec { name: name.into(), space, len_bytes, defined_at_entry });
        RegionId(self.regions.len() as u32 - 1)
    }
    /// Adds a lane.
    pub fn lane(&mut self, rank: Rank, kind: LaneKind) -> LaneId {
        self.lanes.push(Lane { rank, kind });
        LaneId(self.lanes.len() as u16 - 1)
    }
    /// Adds a boundary event.
    pub fn boundary(&mut self, name: impl Into<String>, guards: Vec<Span>) -> EventId {
        self.boundaries.push(Boundary { name: name.into(), guards });
        EventId(self.boundaries.len() as u32 - 1)
    }
}

/// Part of a step, for labels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// Inputs to the device.
    #[default]
    Input,
    /// Forward.
    Forward,
    /// Head, loss and their backward.
    Loss,
    /// Backward, recomputation included.
    Backward,
    /// Norms and optimizer.
    Update,
}

/// Whose work a command is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Label {
    /// Part of the step.
    pub phase: Phase,
    /// Unit, if one.
    pub unit: Option<UnitId>,
    /// Micro-batch, if one.
    pub micro: Option<u32>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.phase)?;
        if let Some(unit) = self.unit {
            write!(f, " unit {}", unit.0)?;
        }
        if let Some(micro) = self.micro {
            write!(f, " micro-batch {micro}")?;
        }
        Ok(())
    }
}

/// A collective over ranks: every member issues one with the same `tag`, in the same order on all of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Collective {
    /// E.g. `all_gather`.
    pub kind: &'static str,
    /// Members.
    pub group: Arc<[Rank]>,
    /// Matches the members' commands with one another.
    pub tag: u32,
    /// This rank's memory.
    pub accesses: Vec<(Span, Access)>,
}

/// One command.
#[derive(Clone, PartialEq, Debug)]
pub enum Cmd<O, T> {
    /// Copies `src` to `dst`, as many bytes. The lane's kind tells the direction.
    Copy {
        /// From.
        src: Span,
        /// To.
        dst: Span,
    },
    /// Runs an op on the device.
    Launch(O),
    /// Runs a task on the host.
    Host(T),
    /// Takes part in a collective.
    Collective(Collective),
    /// Marks this point of the lane.
    Record(EventId),
    /// Holds the lane until the event's last record in program order completes.
    Wait(EventId),
}

impl<O: Command, T: Command> Cmd<O, T> {
    /// Every span the command touches.
    pub fn accesses(&self, visit: &mut dyn FnMut(Span, Access)) {
        match self {
            Cmd::Copy { src, dst } => {
                visit(*src, Access::Read);
                visit(*dst, Access::Write);
            }
            Cmd::Launch(op) => op.accesses(visit),
            Cmd::Host(task) => task.accesses(visit),
            Cmd::Collective(c) => c.accesses.iter().for_each(|(span, access)| visit(*span, *access)),
            Cmd::Record(_) | Cmd::Wait(_) => {}
        }
    }

    /// What it costs. A copy counts the bytes that cross, once; a collective this rank's bytes.
    pub fn work(&self) -> Work {
        let bytes = |bytes: u64| Work { flops: 0.0, bytes: bytes as f64 };
        match self {
            Cmd::Copy { src, .. } => bytes(src.len_bytes),
            Cmd::Launch(op) => op.work(),
            Cmd::Host(task) => task.work(),
            Cmd::Collective(c) => bytes(c.accesses.iter().map(|(span, _)| span.len_bytes).sum()),
            Cmd::Record(_) | Cmd::Wait(_) => Work::default(),
        }
    }

    /// Name for traces and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Cmd::Copy { .. } => "copy",
            Cmd::Launch(op) => op.name(),
            Cmd::Host(task) => task.name(),
            Cmd::Collective(c) => c.kind,
            Cmd::Record(_) => "record",
            Cmd::Wait(_) => "wait",
        }
    }
}

/// A command with its place.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry<O, T> {
    /// Its lane.
    pub lane: LaneId,
    /// Whose work it is.
    pub label: Label,
    /// What it does.
    pub cmd: Cmd<O, T>,
}

/// A program. Made by the builder, proved by `verify`; executors run it as it stands.
#[derive(Clone, Debug)]
pub struct Program<O, T> {
    /// For people: `train 4x256`, `evaluate`.
    pub name: String,
    /// What it shares with the other programs of the plan.
    pub contract: Arc<Contract>,
    /// Number of events, boundary events included.
    pub events: u32,
    /// Commands in program order.
    pub commands: Vec<Entry<O, T>>,
}
