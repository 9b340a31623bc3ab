//! What can be wrong with a contract, a command or an order, in words for people.

use crate::{EventId, Label, Lane, LaneKind, Space};
use megatrain_base::{Access, Rank, RegionId, Span};
use std::fmt;

/// A command as errors name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// In [`crate::BuildError`] its number among the commands added so far; in [`crate::VerifyError`] its index in
    /// [`crate::Program::commands`].
    pub index: usize,
    /// Its lane; `None` if the contract has no such lane.
    pub lane: Option<Lane>,
    /// Whose work it is.
    pub label: Label,
    /// Its name.
    pub name: &'static str,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {} `{}` ({}", self.index, self.name, self.label)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        f.write_str(")")
    }
}

/// Bytes of a region as errors name them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes {
    /// Name of the region.
    pub region: String,
    /// The range.
    pub span: Span,
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{} of `{}`", self.span.offset_bytes, self.span.end_bytes(), self.region)
    }
}

/// A contract that contradicts itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ContractError {
    /// A guard names a region that is not there.
    #[error("boundary `{boundary}` guards {region}, but the contract has {regions} regions")]
    UnknownRegion {
        /// Name of the boundary.
        boundary: String,
        /// What it names.
        region: RegionId,
        /// How many there are.
        regions: usize,
    },
    /// A guard reaches beyond its region.
    #[error("boundary `{boundary}` guards {bytes}, which has {len_bytes} bytes")]
    OutOfRange {
        /// Name of the boundary.
        boundary: String,
        /// What it guards.
        bytes: Bytes,
        /// Length of the region.
        len_bytes: u64,
    },
    /// A byte is guarded twice.
    #[error("boundaries `{first}` and `{second}` both guard {bytes}; every byte needs exactly one guard")]
    GuardedTwice {
        /// One boundary.
        first: String,
        /// The other, or the same.
        second: String,
        /// Shared bytes.
        bytes: Bytes,
    },
}

/// A command that is wrong by itself, or that touches bytes it may not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandFault {
    /// No such lane.
    #[error("lane {lane} does not exist; the contract has {lanes}")]
    UnknownLane {
        /// The lane named.
        lane: u16,
        /// How many there are.
        lanes: usize,
    },
    /// No such region.
    #[error("touches {region}, but the contract has {regions} regions")]
    UnknownRegion {
        /// The region named.
        region: RegionId,
        /// How many there are.
        regions: usize,
    },
    /// A range reaches beyond its region.
    #[error("touches {bytes}, which has {len_bytes} bytes")]
    OutOfRange {
        /// The range.
        bytes: Bytes,
        /// Length of the region.
        len_bytes: u64,
    },
    /// A copy between ranges of different length.
    #[error("copies {src_bytes} bytes to a range of {dst_bytes} bytes")]
    UnequalCopy {
        /// Length of the source.
        src_bytes: u64,
        /// Length of the destination.
        dst_bytes: u64,
    },
    /// A copy on a lane that does not copy in that direction.
    #[error("copies from {from} to {to} on a lane of kind {kind}, which copies {allowed}")]
    WrongDirection {
        /// Space of the source.
        from: Space,
        /// Space of the destination.
        to: Space,
        /// Kind of the lane.
        kind: LaneKind,
        /// What such a lane may do.
        allowed: &'static str,
    },
    /// A command on a lane of the wrong kind.
    #[error("{what} on a lane of kind {kind}; it belongs on {allowed}")]
    WrongLane {
        /// What the command is.
        what: &'static str,
        /// Kind of the lane.
        kind: LaneKind,
        /// Where it belongs.
        allowed: &'static str,
    },
    /// A command that touches memory its lane cannot reach.
    #[error("{what} of rank {rank} touches {bytes}, which lies in {space}")]
    WrongSpace {
        /// What the command is.
        what: &'static str,
        /// Rank of the lane.
        rank: Rank,
        /// The bytes.
        bytes: Bytes,
        /// Where they lie.
        space: Space,
    },
    /// A command that writes bytes it touches through another operand.
    #[error("two operands of the command share {bytes} and one of them is written")]
    SelfOverlap {
        /// Shared bytes.
        bytes: Bytes,
    },
    /// Bytes that no boundary guards.
    #[error("touches {bytes}, which no boundary guards; add them to a boundary of the contract")]
    Unguarded {
        /// The bytes.
        bytes: Bytes,
    },
    /// A read of bytes that nothing has written.
    #[error("reads {bytes}, which nothing has written in this program and which are not defined at entry")]
    Unwritten {
        /// The bytes.
        bytes: Bytes,
    },
    /// A collective issued by a rank outside its group.
    #[error("collective with tag {tag} is issued by rank {rank}, which is not in its group")]
    NotInGroup {
        /// Tag of the collective.
        tag: u32,
        /// Rank of the lane.
        rank: Rank,
    },
    /// A group that lists a rank twice.
    #[error("the group of the collective with tag {tag} lists rank {rank} twice")]
    RepeatedMember {
        /// Tag of the collective.
        tag: u32,
        /// The rank.
        rank: Rank,
    },
}

/// Why a program cannot be built.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum BuildError {
    /// The contract contradicts itself.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A command is wrong. The first one added counts.
    #[error("{place} {fault}")]
    Command {
        /// The command.
        place: Box<Place>,
        /// What is wrong with it.
        fault: CommandFault,
    },
    /// More commands than a program can number.
    #[error("a program holds at most {limit} commands; split it")]
    TooLong {
        /// The limit.
        limit: u32,
    },
}

/// Why a program is refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// The contract contradicts itself.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A command is wrong by itself, or reads what nothing wrote.
    #[error("{place} {fault}")]
    Command {
        /// The command.
        place: Box<Place>,
        /// What is wrong with it.
        fault: CommandFault,
    },
    /// More commands than a program can number.
    #[error("a program holds at most {limit} commands; split it")]
    TooLong {
        /// The limit.
        limit: u32,
    },
    /// Two commands touch the same bytes, one writes, and no event orders them.
    #[error("race on {bytes}: {later} ({later_access}) is not ordered behind {earlier} ({earlier_access})",
        later_access = access_name(*.later_access), earlier_access = access_name(*.earlier_access))]
    Race {
        /// First in program order.
        earlier: Box<Place>,
        /// How it touches the bytes.
        earlier_access: Access,
        /// Second in program order.
        later: Box<Place>,
        /// How it touches the bytes.
        later_access: Access,
        /// The bytes.
        bytes: Bytes,
    },
    /// A command touches guarded bytes while an earlier program may still use them.
    #[error("{place} touches {bytes} without having waited for boundary `{boundary}`")]
    EntryNotAwaited {
        /// The command.
        place: Box<Place>,
        /// The bytes.
        bytes: Bytes,
        /// Name of the boundary.
        boundary: String,
    },
    /// A boundary whose bytes were touched is not recorded again.
    #[error("boundary `{boundary}` is not recorded again although {place} touched {bytes}")]
    ExitNotRecorded {
        /// A command that touched it.
        place: Box<Place>,
        /// The bytes.
        bytes: Bytes,
        /// Name of the boundary.
        boundary: String,
    },
    /// A boundary is recorded again while a command may still use its bytes.
    #[error("{record} records boundary `{boundary}` again, but is not ordered behind {access}, which touches {bytes}")]
    ExitTooEarly {
        /// The record.
        record: Box<Place>,
        /// The command.
        access: Box<Place>,
        /// The bytes.
        bytes: Bytes,
        /// Name of the boundary.
        boundary: String,
    },
    /// A boundary that the program does not touch is recorded.
    #[error("{record} records boundary `{boundary}`, none of whose bytes the program touches")]
    ExitUntouched {
        /// The record.
        record: Box<Place>,
        /// Name of the boundary.
        boundary: String,
    },
    /// An event beyond the program's count.
    #[error("{place} names event {}, but the program has {events}", .event.0)]
    UnknownEvent {
        /// The command.
        place: Box<Place>,
        /// What it names.
        event: EventId,
        /// How many there are.
        events: u32,
    },
    /// An event recorded twice.
    #[error("event {} is recorded twice: by {first} and by {second}", .event.0)]
    RecordedTwice {
        /// The event.
        event: EventId,
        /// First record.
        first: Box<Place>,
        /// Second record.
        second: Box<Place>,
    },
    /// An event of the program that is never recorded.
    #[error("event {} of the program is never recorded", .event.0)]
    NeverRecorded {
        /// The event.
        event: EventId,
    },
    /// A wait that comes, in program order, before the event's record.
    #[error("{place} waits on event {}, which is recorded only later in program order or never", .event.0)]
    WaitBeforeRecord {
        /// The wait.
        place: Box<Place>,
        /// The event.
        event: EventId,
    },
    /// Two ranks of a group issue different collectives at the same turn.
    #[error(
        "collective {turn} of the group differs between ranks: {first} with tag {first_tag}, {second} with tag {second_tag}"
    )]
    CollectiveOrder {
        /// Turn, counted from 0 in the group and lane kind.
        turn: usize,
        /// One rank's command.
        first: Box<Place>,
        /// Its tag.
        first_tag: u32,
        /// The other rank's command.
        second: Box<Place>,
        /// Its tag.
        second_tag: u32,
    },
    /// A rank of the group does not take part.
    #[error(
        "{place} with tag {tag} waits for rank {rank} for ever: that rank issues no such collective on a lane of this kind"
    )]
    CollectiveMissing {
        /// The command of a rank that does.
        place: Box<Place>,
        /// Its tag.
        tag: u32,
        /// The rank that does not.
        rank: Rank,
    },
    /// A tag used twice in a group.
    #[error("tag {tag} is used twice by one rank: by {first} and by {second}")]
    TagTwice {
        /// The tag.
        tag: u32,
        /// First use.
        first: Box<Place>,
        /// Second use.
        second: Box<Place>,
    },
    /// A collective on a lane whose rank has another lane of that kind: their order would be open.
    #[error("{place} is a collective, but rank {} has a second {} lane; collectives need the only one", .lane.rank, .lane.kind)]
    CollectiveLanes {
        /// The command.
        place: Box<Place>,
        /// What both lanes are.
        lane: Lane,
    },
    /// Collectives and waits hold one another up.
    #[error(
        "deadlock: {first} can never run, because it waits, through collectives, for {second}, which never runs either"
    )]
    Deadlock {
        /// First stuck command.
        first: Box<Place>,
        /// Stuck command of another lane.
        second: Box<Place>,
    },
}

/// `Read` -> `reads`.
pub(crate) const fn access_name(access: Access) -> &'static str {
    match access {
        Access::Read => "reads",
        Access::Write => "writes",
        Access::Update => "updates",
    }
}
