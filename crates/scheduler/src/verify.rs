//! [`verify()`]: proves a program free of races, whoever made it.
//!
//! It takes nothing from the builder but the interval map and the checks of single commands: it walks the program as it
//! stands, follows records and waits, and holds every access against the last ones to the same bytes. No order is
//! taken from collectives: that a member is through says nothing here about the others.

use crate::check::{self, bytes, place};
use crate::clock::Clock;
use crate::error::{CommandFault, VerifyError};
use crate::interval::IntervalMap;
use crate::{Cmd, Contract, EventId, Program, rendezvous};
use megatrain_base::{Access, Command, Span};
use std::convert::Infallible;
use std::fmt;

/// What was proved, in figures. Holding one means: every execution that keeps lane order and events gives the bytes
/// that the commands give one after another, and so does any sequence of programs proved under the same contract.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Commands that do something.
    pub commands: usize,
    /// Waits among all entries.
    pub waits: usize,
    /// Records among all entries.
    pub records: usize,
    /// Accesses held against one another.
    pub accesses: usize,
    /// Collectives, each member's command counted.
    pub collectives: usize,
    /// Boundaries the program touches, and so records again.
    pub touched: Vec<EventId>,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proof { commands, waits, records, accesses, collectives, touched } = self;
        write!(
            f,
            "{commands} commands with {accesses} accesses, {waits} waits, {records} records, {collectives} collectives, \
             {} boundaries touched",
            touched.len()
        )
    }
}

/// Stands in a piece for the boundary's event on entry.
const ENTRY: u32 = u32::MAX;

/// What is known of a range of bytes. Commands are indices into [`Program::commands`].
#[derive(Clone, PartialEq)]
struct Bytes {
    boundary: u32,
    defined: bool,
    /// Last write, or [`ENTRY`].
    write: u32,
    /// How it wrote, for errors.
    write_access: Access,
    /// Reads since, the last of each lane.
    reads: Vec<u32>,
}

/// Proves that
/// - every command fits its lane, and its ranges lie inside their regions;
/// - any two commands that touch the same byte, one of them writing, are ordered by lanes and events;
/// - no byte is read that nothing has written;
/// - boundary events are awaited before the first access of their bytes, and recorded again, once, behind the last one
///   if and only if there is one;
/// - the program's own events are recorded exactly once, and before (in program order) any wait on them;
/// - collectives come in the same order on all ranks of their group;
/// - nothing waits for ever.
///
/// # Errors
/// The first thing that fails, naming the commands and bytes.
pub fn verify<O: Command, T: Command>(program: &Program<O, T>) -> Result<Proof, VerifyError> {
    check::contract(&program.contract)?;
    if program.commands.len() >= ENTRY as usize {
        return Err(VerifyError::TooLong { limit: ENTRY - 1 });
    }
    let mut walk = Walk::new(program);
    for index in 0..program.commands.len() {
        walk.step(index)?;
    }
    walk.exit()?;
    rendezvous::check(program, &walk.record_of_wait)?;
    Ok(walk.proof)
}

struct Walk<'a, O, T> {
    program: &'a Program<O, T>,
    memory: Vec<IntervalMap<Bytes>>,
    /// Per lane, behind its last command so far.
    clocks: Vec<Clock>,
    /// Per event, its record so far and the clock there.
    records: Vec<Option<(u32, Clock)>>,
    /// Per wait, the record it waits for ([`ENTRY`] for an event pending on entry); unused for other commands.
    record_of_wait: Vec<u32>,
    /// Per boundary, a command that touched it.
    touched: Vec<Option<(u32, Span)>>,
    spans: Vec<(Span, Access)>,
    proof: Proof,
}

impl<'a, O: Command, T: Command> Walk<'a, O, T> {
    fn new(program: &'a Program<O, T>) -> Self {
        let contract = &program.contract;
        let (lanes, boundaries) = (contract.lanes.len(), contract.boundaries.len());
        let mut memory: Vec<_> = contract.regions.iter().map(|_| IntervalMap::default()).collect();
        for (b, boundary) in (0u32..).zip(&contract.boundaries) {
            for guard in boundary.guards.iter().filter(|g| g.len_bytes > 0) {
                let region = guard.region.0 as usize;
                let defined = contract.regions[region].defined_at_entry;
                let entry =
                    Bytes { boundary: b, defined, write: ENTRY, write_access: Access::Write, reads: Vec::new() };
                memory[region].insert(guard.offset_bytes..guard.end_bytes(), entry);
            }
        }
        let events = boundaries.max(program.events as usize);
        Walk {
            program,
            memory,
            clocks: vec![Clock::new(lanes, boundaries); lanes],
            records: vec![None; events],
            record_of_wait: vec![ENTRY; program.commands.len()],
            touched: vec![None; boundaries],
            spans: Vec::new(),
            proof: Proof { commands: 0, waits: 0, records: 0, accesses: 0, collectives: 0, touched: Vec::new() },
        }
    }

    fn place(&self, index: u32) -> Box<crate::error::Place> {
        place(&self.program.contract, index as usize, &self.program.commands[index as usize])
    }

    fn step(&mut self, index: usize) -> Result<(), VerifyError> {
        let program = self.program;
        let entry = &program.commands[index];
        let index = index as u32;
        let mut spans = std::mem::take(&mut self.spans);
        check::command(&program.contract, entry.lane, &entry.cmd, &mut spans)
            .map_err(|fault| VerifyError::Command { place: self.place(index), fault })?;
        let lane = entry.lane.0 as usize;
        match &entry.cmd {
            Cmd::Wait(event) => self.wait(lane, index, *event)?,
            Cmd::Record(event) => self.record(lane, index, *event)?,
            cmd => {
                for &(span, access) in &spans {
                    self.access(lane, index, span, access)?;
                }
                self.proof.commands += 1;
                self.proof.accesses += spans.len();
                self.proof.collectives += usize::from(matches!(cmd, Cmd::Collective(_)));
            }
        }
        self.clocks[lane].learn_command(lane, index);
        self.spans = spans;
        Ok(())
    }

    fn known(&self, index: u32, event: EventId) -> Result<(), VerifyError> {
        if (event.0 as usize) < self.records.len() {
            return Ok(());
        }
        Err(VerifyError::UnknownEvent { place: self.place(index), event, events: self.records.len() as u32 })
    }

    fn wait(&mut self, lane: usize, index: u32, event: EventId) -> Result<(), VerifyError> {
        self.known(index, event)?;
        self.proof.waits += 1;
        match &self.records[event.0 as usize] {
            Some((record, clock)) => {
                self.clocks[lane].join(clock);
                self.record_of_wait[index as usize] = *record;
                Ok(())
            }
            None if (event.0 as usize) < self.touched.len() => {
                self.clocks[lane].learn_entry(event.0);
                Ok(())
            }
            None => Err(VerifyError::WaitBeforeRecord { place: self.place(index), event }),
        }
    }

    fn record(&mut self, lane: usize, index: u32, event: EventId) -> Result<(), VerifyError> {
        self.known(index, event)?;
        self.proof.records += 1;
        if let Some((first, _)) = &self.records[event.0 as usize] {
            let (first, second) = (self.place(*first), self.place(index));
            return Err(VerifyError::RecordedTwice { event, first, second });
        }
        self.records[event.0 as usize] = Some((index, self.clocks[lane].clone()));
        Ok(())
    }

    fn access(&mut self, lane: usize, index: u32, span: Span, access: Access) -> Result<(), VerifyError> {
        let program = self.program;
        let contract: &Contract = &program.contract;
        let (clock, touched) = (&self.clocks[lane], &mut self.touched);
        let lane_of = |i: u32| program.commands[i as usize].lane;
        let place = |i: u32| place(contract, i as usize, &program.commands[i as usize]);
        let (range, mut pieces) = (span.offset_bytes..span.end_bytes(), 0);
        let memory = &mut self.memory[span.region.0 as usize];
        memory.visit(range.clone(), |r, known| {
            let part = || bytes(contract, Span::new(span.region, r.start, r.end - r.start));
            let wrong = |fault| Err(VerifyError::Command { place: place(index), fault });
            let Some(known) = known else { return wrong(CommandFault::Unguarded { bytes: part() }) };
            pieces += 1;
            if access.reads() && !known.defined {
                return wrong(CommandFault::Unwritten { bytes: part() });
            }
            if known.write == ENTRY {
                if !clock.has_entry(known.boundary) {
                    let boundary = contract.boundaries[known.boundary as usize].name.clone();
                    return Err(VerifyError::EntryNotAwaited { place: place(index), bytes: part(), boundary });
                }
                let at = Span::new(span.region, r.start, r.end - r.start);
                touched[known.boundary as usize].get_or_insert((index, at));
            } else if !ordered(clock, lane, lane_of(known.write), known.write) {
                return Err(VerifyError::Race {
                    earlier: place(known.write),
                    earlier_access: known.write_access,
                    later: place(index),
                    later_access: access,
                    bytes: part(),
                });
            }
            if access.writes() {
                if let Some(&read) = known.reads.iter().find(|&&i| !ordered(clock, lane, lane_of(i), i)) {
                    return Err(VerifyError::Race {
                        earlier: place(read),
                        earlier_access: Access::Read,
                        later: place(index),
                        later_access: access,
                        bytes: part(),
                    });
                }
                (known.write, known.write_access, known.defined) = (index, access, true);
                known.reads.clear();
            } else {
                match known.reads.iter_mut().find(|i| lane_of(**i).0 as usize == lane) {
                    Some(last) => *last = index,
                    None => known.reads.push(index),
                }
            }
            Ok(())
        })?;
        if access.writes() && pieces > 1 {
            memory.merge(range);
        }
        Ok(())
    }

    /// Holds every boundary's record against the last accesses of its bytes.
    fn exit(&mut self) -> Result<(), VerifyError> {
        let program = self.program;
        let contract: &Contract = &program.contract;
        for event in contract.boundaries.len()..self.records.len() {
            if self.records[event].is_none() {
                return Err(VerifyError::NeverRecorded { event: EventId(event as u32) });
            }
        }
        for (b, boundary) in contract.boundaries.iter().enumerate() {
            let name = || boundary.name.clone();
            let (record, clock) = match (&self.touched[b], &self.records[b]) {
                (None, None) => continue,
                (None, Some((record, _))) => {
                    return Err(VerifyError::ExitUntouched { record: self.place(*record), boundary: name() });
                }
                (Some((access, at)), None) => {
                    let (place, bytes) = (self.place(*access), bytes(contract, *at));
                    return Err(VerifyError::ExitNotRecorded { place, bytes, boundary: name() });
                }
                (Some(_), Some((record, clock))) => (*record, clock),
            };
            let behind = |i: u32| {
                let lane = program.commands[i as usize].lane;
                clock.has_command(lane.0 as usize, i)
            };
            let mut early = None;
            for guard in boundary.guards.iter().filter(|g| g.len_bytes > 0) {
                let range = guard.offset_bytes..guard.end_bytes();
                let Ok(()) = self.memory[guard.region.0 as usize].visit(range, |r, known| {
                    let Some(known) = known else { return Ok::<(), Infallible>(()) };
                    let last = known.reads.iter().copied().chain((known.write != ENTRY).then_some(known.write));
                    if let Some(access) = last.into_iter().find(|&i| !behind(i)) {
                        early.get_or_insert((access, Span::new(guard.region, r.start, r.end - r.start)));
                    }
                    Ok(())
                });
            }
            // Bytes left at their entry state need no look of their own: the others' accesses are behind the event.
            if let Some((access, at)) = early {
                return Err(VerifyError::ExitTooEarly {
                    record: self.place(record),
                    access: self.place(access),
                    bytes: bytes(contract, at),
                    boundary: name(),
                });
            }
            self.proof.touched.push(EventId(b as u32));
        }
        Ok(())
    }
}

/// Whether a command of `lane` with this clock comes behind command `earlier` of lane `from`.
fn ordered(clock: &Clock, lane: usize, from: crate::LaneId, earlier: u32) -> bool {
    from.0 as usize == lane || clock.has_command(from.0 as usize, earlier)
}
