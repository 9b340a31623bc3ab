//! [`Builder`]: takes commands in program order and derives every event from what they access.
//!
//! Per byte it remembers the last write and the reads since, per lane a vector clock. A command waits on exactly those
//! earlier commands that it conflicts with and that neither its lane nor another of its waits already puts behind it.
//! The README shows why no such wait can be left out.

use crate::clock::Clock;
use crate::error::{BuildError, CommandFault};
use crate::interval::IntervalMap;
use crate::{Cmd, Collective, Contract, Entry, EventId, Label, LaneId, Program, check};
use megatrain_base::{Access, Command, Span};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

/// Who must be waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// Whatever the boundary's event on entry stands for.
    Entry(u32),
    /// A command of this program.
    Command(LaneId, u32),
}

/// What is known of a range of bytes.
#[derive(Clone, PartialEq)]
struct Piece {
    /// The boundary that guards it.
    boundary: u32,
    /// Whether it holds something.
    defined: bool,
    /// The last write, or the boundary's event.
    writer: Source,
    /// Reads since, the last of each lane.
    readers: Vec<(LaneId, u32)>,
}

struct LaneState {
    /// What the lane knows at its end.
    clock: Clock,
    /// The clock behind each command that waited for something, by command. In between it grows by the lane itself only.
    history: Vec<(u32, Clock)>,
    /// Its last command.
    last: Option<u32>,
}

struct Planned<O, T> {
    entry: Entry<O, T>,
    waits: Vec<Source>,
    /// Whether another command waits on it.
    recorded: bool,
    /// Boundaries whose bytes nothing touches behind it.
    closes: Vec<EventId>,
}

/// Builds a [`Program`]. Calls add commands in program order: the order in which one queue would run them.
///
/// Faults are kept and reported by [`Builder::finish`], the first one added.
pub struct Builder<O, T> {
    name: String,
    contract: Arc<Contract>,
    label: Label,
    memory: Vec<IntervalMap<Piece>>,
    lanes: Vec<LaneState>,
    planned: Vec<Planned<O, T>>,
    touched: Vec<bool>,
    fault: Option<BuildError>,
    spans: Vec<(Span, Access)>,
}

impl<O: Command, T: Command> Builder<O, T> {
    /// An empty program under `contract`.
    pub fn new(name: impl Into<String>, contract: Arc<Contract>) -> Self {
        let fault = check::contract(&contract).err().map(BuildError::Contract);
        let (lanes, boundaries) = (contract.lanes.len(), contract.boundaries.len());
        let mut memory: Vec<IntervalMap<Piece>> = contract.regions.iter().map(|_| IntervalMap::default()).collect();
        if fault.is_none() {
            for (b, boundary) in (0u32..).zip(&contract.boundaries) {
                for guard in boundary.guards.iter().filter(|g| g.len_bytes > 0) {
                    let region = guard.region.0 as usize;
                    let defined = contract.regions[region].defined_at_entry;
                    let piece = Piece { boundary: b, defined, writer: Source::Entry(b), readers: Vec::new() };
                    memory[region].insert(guard.offset_bytes..guard.end_bytes(), piece);
                }
            }
        }
        let lane = || LaneState { clock: Clock::new(lanes, boundaries), history: Vec::new(), last: None };
        Builder {
            name: name.into(),
            label: Label::default(),
            memory,
            lanes: (0..lanes).map(|_| lane()).collect(),
            planned: Vec::new(),
            touched: vec![false; boundaries],
            fault,
            spans: Vec::new(),
            contract,
        }
    }

    /// Labels the commands that follow.
    pub fn label(&mut self, label: Label) {
        self.label = label;
    }

    /// Copies `src` to `dst`, as many bytes, in the direction of the lane's kind.
    pub fn copy(&mut self, lane: LaneId, src: Span, dst: Span) {
        self.add(lane, Cmd::Copy { src, dst });
    }

    /// Runs an op on a compute lane.
    pub fn launch(&mut self, lane: LaneId, op: O) {
        self.add(lane, Cmd::Launch(op));
    }

    /// Runs a task on a host lane.
    pub fn host(&mut self, lane: LaneId, task: T) {
        self.add(lane, Cmd::Host(task));
    }

    /// Takes part in a collective; the other members' commands are added separately, on lanes of the same kind.
    pub fn collective(&mut self, lane: LaneId, collective: Collective) {
        self.add(lane, Cmd::Collective(collective));
    }

    /// The program, with its events, the boundaries it touched recorded again.
    ///
    /// # Errors
    /// The first thing that was wrong: the contract, or a command, by number and label.
    pub fn finish(mut self) -> Result<Program<O, T>, BuildError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let mut tail = Vec::new();
        for b in 0..self.touched.len() {
            if self.touched[b] {
                self.close(b, &mut tail);
            }
        }
        Ok(self.emit(tail))
    }

    fn add(&mut self, lane: LaneId, cmd: Cmd<O, T>) {
        if self.fault.is_some() {
            return;
        }
        let index = self.planned.len() as u32;
        let entry = Entry { lane, label: self.label, cmd };
        // Event ids and clocks are u32; each command adds at most one event beside the boundaries.
        let limit = u32::MAX / 2;
        if index >= limit {
            self.fault = Some(BuildError::TooLong { limit });
            return;
        }
        let contract = self.contract.clone();
        let mut spans = std::mem::take(&mut self.spans);
        let sources = check::command(&contract, lane, &entry.cmd, &mut spans)
            .and_then(|()| self.sources(&contract, lane, &spans));
        match sources {
            Ok(sources) => {
                let waits = self.prune(lane, sources);
                self.arrive(lane, &waits);
                self.touch(&contract, lane, index, &spans);
                let state = &mut self.lanes[lane.0 as usize];
                if !waits.is_empty() {
                    state.history.push((index, state.clock.clone()));
                }
                state.clock.learn_command(lane.0 as usize, index);
                state.last = Some(index);
                self.planned.push(Planned { entry, waits, recorded: false, closes: Vec::new() });
            }
            Err(fault) => {
                let place = check::place(&contract, index as usize, &entry);
                self.fault = Some(BuildError::Command { place, fault });
            }
        }
        self.spans = spans;
    }

    /// What the accesses conflict with: per lane the last such command, and boundary events.
    fn sources(
        &mut self,
        contract: &Contract,
        lane: LaneId,
        spans: &[(Span, Access)],
    ) -> Result<Vec<Source>, CommandFault> {
        let mut sources = Vec::new();
        for &(span, access) in spans {
            let part = |r: Range<u64>| check::bytes(contract, Span::new(span.region, r.start, r.end - r.start));
            self.memory[span.region.0 as usize].visit(span.offset_bytes..span.end_bytes(), |range, piece| {
                let Some(piece) = piece else { return Err(CommandFault::Unguarded { bytes: part(range) }) };
                if access.reads() && !piece.defined {
                    return Err(CommandFault::Unwritten { bytes: part(range) });
                }
                add_source(&mut sources, lane, piece.writer);
                if access.writes() {
                    piece.readers.iter().for_each(|&(l, i)| add_source(&mut sources, lane, Source::Command(l, i)));
                }
                Ok(())
            })?;
        }
        Ok(sources)
    }

    /// Drops what the lane knows already and what another source implies.
    fn prune(&self, lane: LaneId, mut sources: Vec<Source>) -> Vec<Source> {
        let clock = &self.lanes[lane.0 as usize].clock;
        sources.retain(|s| !knows(clock, *s));
        let all = sources.clone();
        sources.retain(|s| !all.iter().any(|other| self.implies(*other, *s)));
        sources
    }

    /// Whether waiting on `a` puts `b` behind, too.
    fn implies(&self, a: Source, b: Source) -> bool {
        let Source::Command(lane, index) = a else { return false };
        a != b && self.clock_of(lane, index).is_some_and(|clock| knows(clock, b))
    }

    /// What is known behind command `index` of `lane`, but for the lane's own commands; `None`: nothing.
    fn clock_of(&self, lane: LaneId, index: u32) -> Option<&Clock> {
        let history = &self.lanes[lane.0 as usize].history;
        let at = history.partition_point(|(i, _)| *i <= index);
        at.checked_sub(1).map(|i| &history[i].1)
    }

    /// Lets `lane` pass the waits.
    fn arrive(&mut self, lane: LaneId, waits: &[Source]) {
        let state = &self.lanes[lane.0 as usize];
        let mut clock = state.clock.clone();
        for wait in waits {
            match *wait {
                Source::Entry(b) => clock.learn_entry(b),
                Source::Command(from, index) => {
                    if let Some(known) = self.clock_of(from, index) {
                        clock.join(known);
                    }
                    clock.learn_command(from.0 as usize, index);
                    self.planned[index as usize].recorded = true;
                }
            }
        }
        self.lanes[lane.0 as usize].clock = clock;
    }

    /// Notes the accesses of a command.
    fn touch(&mut self, contract: &Contract, lane: LaneId, index: u32, spans: &[(Span, Access)]) {
        debug_assert!(spans.iter().all(|(s, _)| (s.region.0 as usize) < contract.regions.len()));
        for &(span, access) in spans {
            let range = span.offset_bytes..span.end_bytes();
            let map = &mut self.memory[span.region.0 as usize];
            let (touched, mut pieces) = (&mut self.touched, 0);
            let Ok(()) = map.visit(range.clone(), |_, piece| {
                let Some(piece) = piece else { return Ok::<(), Infallible>(()) };
                pieces += 1;
                touched[piece.boundary as usize] = true;
                if access.writes() {
                    piece.writer = Source::Command(lane, index);
                    piece.defined = true;
                    piece.readers.clear();
                } else if let Some(reader) = piece.readers.iter_mut().find(|(l, _)| *l == lane) {
                    reader.1 = index;
                } else {
                    piece.readers.push((lane, index));
                }
                Ok(())
            });
            if access.writes() && pieces > 1 {
                map.merge(range);
            }
        }
    }

    /// Decides where boundary `b` is recorded again.
    fn close(&mut self, b: usize, tail: &mut Vec<Tail>) {
        let mut sources = Vec::new();
        for guard in &self.contract.boundaries[b].guards {
            let range = guard.offset_bytes..guard.end_bytes();
            if range.is_empty() {
                continue;
            }
            // Bytes still at their entry state need nothing: whoever touched the others has waited on the event.
            let Ok(()) = self.memory[guard.region.0 as usize].visit(range, |_, piece| {
                if let Some(piece) = piece {
                    let accesses = piece.readers.iter().map(|&(l, i)| Source::Command(l, i)).chain([piece.writer]);
                    accesses.filter(|s| matches!(s, Source::Command(..))).for_each(|s| keep_last(&mut sources, s));
                }
                Ok::<(), Infallible>(())
            });
        }
        let event = EventId(b as u32);
        // Best: directly behind the first command that has all accesses behind it, so that the next program need not
        // wait for the rest of that lane.
        let covering = (0..self.lanes.len()).filter_map(|l| self.first_covering(LaneId(l as u16), &sources)).min();
        if let Some(index) = covering {
            self.planned[index as usize].closes.push(event);
            return;
        }
        // Else at the end of the lane that needs the fewest waits; of those, the one that is busy longest.
        let best = (0..self.lanes.len() as u16)
            .map(LaneId)
            .map(|l| (l, self.prune(l, sources.clone())))
            .min_by_key(|(l, waits)| (waits.len(), std::cmp::Reverse(self.lanes[l.0 as usize].last)));
        if let Some((lane, waits)) = best {
            self.arrive(lane, &waits);
            tail.push(Tail { lane, waits, event });
        }
    }

    /// The first command of `lane` that has all `sources` behind it or is the last of them.
    fn first_covering(&self, lane: LaneId, sources: &[Source]) -> Option<u32> {
        let own = sources.iter().find_map(|s| match s {
            Source::Command(l, index) if *l == lane => Some(*index),
            _ => None,
        });
        let foreign = |s: &&Source| !matches!(s, Source::Command(l, _) if *l == lane);
        let covers = |clock: &Clock| sources.iter().filter(foreign).all(|s| knows(clock, *s));
        let history = &self.lanes[lane.0 as usize].history;
        match (own, sources.iter().any(|s| foreign(&s))) {
            (own, false) => own,
            (own, true) => {
                let at = history.partition_point(|(_, clock)| !covers(clock));
                history.get(at).map(|(index, _)| (*index).max(own.unwrap_or(0)))
            }
        }
    }

    /// Writes everything out: waits, command, record of each; then what is left for the ends of lanes.
    fn emit(self, tail: Vec<Tail>) -> Program<O, T> {
        let mut events = self.contract.boundaries.len() as u32;
        let mut event_of = vec![EventId(u32::MAX); self.planned.len()];
        let mut commands = Vec::with_capacity(self.planned.len() * 2);
        let mut last_label = vec![Label::default(); self.lanes.len()];
        let event = |event_of: &[EventId], source: Source| match source {
            Source::Entry(b) => EventId(b),
            Source::Command(_, index) => event_of[index as usize],
        };
        for (index, planned) in self.planned.into_iter().enumerate() {
            let (lane, label) = (planned.entry.lane, planned.entry.label);
            last_label[lane.0 as usize] = label;
            let at = |cmd| Entry { lane, label, cmd };
            commands.extend(planned.waits.iter().map(|s| at(Cmd::Wait(event(&event_of, *s)))));
            commands.push(planned.entry);
            if planned.recorded {
                event_of[index] = EventId(events);
                commands.push(at(Cmd::Record(EventId(events))));
                events += 1;
            }
            commands.extend(planned.closes.iter().map(|e| at(Cmd::Record(*e))));
        }
        for end in tail {
            let at = |cmd| Entry { lane: end.lane, label: last_label[end.lane.0 as usize], cmd };
            commands.extend(end.waits.iter().map(|s| at(Cmd::Wait(event(&event_of, *s)))));
            commands.push(at(Cmd::Record(end.event)));
        }
        Program { name: self.name, contract: self.contract, events, commands }
    }
}

/// A boundary recorded at the end of a lane.
struct Tail {
    lane: LaneId,
    waits: Vec<Source>,
    event: EventId,
}

/// Whether a clock has a source behind it.
fn knows(clock: &Clock, source: Source) -> bool {
    match source {
        Source::Entry(b) => clock.has_entry(b),
        Source::Command(lane, index) => clock.has_command(lane.0 as usize, index),
    }
}

/// Adds a source for a command of `lane`, unless the lane's own order serves.
fn add_source(sources: &mut Vec<Source>, lane: LaneId, source: Source) {
    if !matches!(source, Source::Command(l, _) if l == lane) {
        keep_last(sources, source);
    }
}

/// Adds a source; of one lane the last command stands for all.
fn keep_last(sources: &mut Vec<Source>, source: Source) {
    let same = sources.iter_mut().find(|s| match (**s, source) {
        (Source::Command(a, _), Source::Command(b, _)) => a == b,
        (a, b) => a == b,
    });
    match (same, source) {
        (Some(Source::Command(_, last)), Source::Command(_, index)) => *last = (*last).max(index),
        (Some(_), _) => {}
        (None, _) => sources.push(source),
    }
}
