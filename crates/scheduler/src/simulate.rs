//! [`simulate()`]: how long a program would take on a machine, who is busy and who waits for whom.
//!
//! A fluid model: every lane runs its commands in order; a command alone takes as long as its slowest part (arithmetic
//! or memory); commands that run together and share the host's cores and memory, a link or the files are slowed down, so
//! that their sum fits. Between two starts or ends all speeds are constant, so the model jumps from one to the next.

use crate::check::place;
use crate::cost::{self, Alone, Demand, Resource};
use crate::error::Place;
use crate::profile::{MachineProfile, ProfileError};
use crate::timeline::{LaneBusy, Slice, Timeline};
use crate::{Cmd, Entry, EventId, Lane, LaneId, LaneKind, Program};
use megatrain_base::{Command, Rank};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Why a simulation cannot be made.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SimulateError {
    /// An impossible figure.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The program stands still, or is malformed: it has not been verified.
    #[error("{0} can never start; verify the program first")]
    Stuck(Box<Place>),
    /// Programs of different contracts in one sequence.
    #[error("program {0} of the sequence is under another contract than the first")]
    Contract(usize),
}

/// Why a command did not start earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// It did: it started at once.
    Start,
    /// The command before it on its lane.
    Lane,
    /// A command of another lane, through this event.
    Event(EventId),
    /// The last rank to reach the collective.
    Collective,
}

/// One step of the critical path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CriticalStep {
    /// Index into [`Timeline::slices`].
    pub slice: usize,
    /// Why it waited for the step before.
    pub behind: Behind,
}

/// A predicted run.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulation {
    /// From the first start to the last end, µs.
    pub step_us: f64,
    /// When each program of the sequence ended, µs.
    pub ends_us: Vec<f64>,
    /// How busy each lane was.
    pub lanes: Vec<LaneBusy>,
    /// The chain of commands that made it take so long, first to last.
    pub critical: Vec<CriticalStep>,
    /// All commands.
    pub timeline: Timeline,
    /// Per slice of the timeline, what limits that command when it runs alone.
    pub limits: Vec<Resource>,
}

/// A program in the middle of being repeated.
#[derive(Clone, PartialEq, Debug)]
pub struct Steady {
    /// From one end to the next, µs.
    pub step_us: f64,
    /// What the critical path spent those µs on, longest first; the rest went into waiting for events.
    pub critical: Vec<(Resource, f64)>,
    /// Busy time of each lane between the two ends, µs.
    pub busy_us: Vec<(Lane, f64)>,
}

impl Simulation {
    /// What the critical path spends its time on between two moments, µs each, longest first.
    pub fn critical_by_resource(&self, from_us: f64, to_us: f64) -> Vec<(Resource, f64)> {
        let mut sums: BTreeMap<Resource, f64> = BTreeMap::new();
        for step in &self.critical {
            let us = within(&self.timeline.slices[step.slice], from_us, to_us);
            *sums.entry(self.limits[step.slice]).or_default() += us;
        }
        let mut out: Vec<_> = sums.into_iter().filter(|(_, us)| *us > 0.0).collect();
        out.sort_by(|a, b| b.1.total_cmp(&a.1));
        out
    }

    /// The critical path by lane and command name: µs spent, longest first.
    pub fn critical_by_name(&self) -> Vec<(LaneId, &'static str, f64)> {
        let mut out: Vec<(LaneId, &'static str, f64)> = Vec::new();
        for slice in self.critical.iter().map(|step| &self.timeline.slices[step.slice]) {
            let spent = slice.end_us - slice.start_us;
            match out.iter_mut().find(|(lane, name, _)| (*lane, *name) == (slice.lane, slice.name)) {
                Some((_, _, sum)) => *sum += spent,
                None => out.push((slice.lane, slice.name, spent)),
            }
        }
        out.sort_by(|a, b| b.2.total_cmp(&a.2));
        out
    }
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\ncritical path, {} commands:", self.timeline, self.critical.len())?;
        for (lane, name, us) in self.critical_by_name().iter().take(8) {
            let lane = self.timeline.lanes[lane.0 as usize].to_string();
            write!(f, "\n{lane:<14} {:>5.1}% {name}", 100.0 * us / self.step_us.max(f64::MIN_POSITIVE))?;
        }
        Ok(())
    }
}

/// Simulates one program that starts with nothing pending.
///
/// # Errors
/// An impossible profile, or a program that does not get to its end (verified programs do).
pub fn simulate<O: Command, T: Command>(
    program: &Program<O, T>,
    profile: &MachineProfile,
) -> Result<Simulation, SimulateError> {
    simulate_sequence(&[program], profile)
}

/// The time from one end to the next when a program is repeated: boundaries let the next run start before the last ends.
///
/// # Errors
/// As [`simulate()`].
pub fn steady_step_us<O: Command, T: Command>(
    program: &Program<O, T>,
    profile: &MachineProfile,
) -> Result<f64, SimulateError> {
    Ok(steady(program, profile)?.step_us)
}

/// The second of three repetitions: how long, what held it up, who was busy.
///
/// # Errors
/// As [`simulate()`].
pub fn steady<O: Command, T: Command>(
    program: &Program<O, T>,
    profile: &MachineProfile,
) -> Result<Steady, SimulateError> {
    let simulation = simulate_sequence(&[program, program, program], profile)?;
    let (from_us, to_us) = (simulation.ends_us[1], simulation.ends_us[2]);
    let mut busy_us: Vec<(Lane, f64)> = simulation.timeline.lanes.iter().map(|lane| (*lane, 0.0)).collect();
    for slice in &simulation.timeline.slices {
        busy_us[slice.lane.0 as usize].1 += within(slice, from_us, to_us);
    }
    let critical = simulation.critical_by_resource(from_us, to_us);
    Ok(Steady { step_us: to_us - from_us, critical, busy_us })
}

/// How much of a slice lies between two moments, µs.
fn within(slice: &Slice, from_us: f64, to_us: f64) -> f64 {
    (slice.end_us.min(to_us) - slice.start_us.max(from_us)).max(0.0)
}

/// Simulates programs issued one after the other, so that each starts as soon as lanes and boundaries let it.
///
/// # Errors
/// As [`simulate()`], or programs under different contracts.
pub fn simulate_sequence<O: Command, T: Command>(
    programs: &[&Program<O, T>],
    profile: &MachineProfile,
) -> Result<Simulation, SimulateError> {
    profile.check()?;
    if let Some(other) = programs.iter().position(|p| p.contract != programs[0].contract) {
        return Err(SimulateError::Contract(other));
    }
    if programs.is_empty() {
        let timeline = Timeline::default();
        return Ok(Simulation {
            step_us: 0.0,
            ends_us: Vec::new(),
            lanes: Vec::new(),
            critical: Vec::new(),
            timeline,
            limits: Vec::new(),
        });
    }
    let mut run = Run::new(programs, profile)?;
    loop {
        while run.start() {}
        match run.next_change() {
            Some((us, speeds)) => run.advance(us, &speeds),
            None => break,
        }
    }
    run.finish(programs)
}

/// A running command.
struct Active {
    program: usize,
    slice: usize,
    /// What is left of the time it takes alone.
    left_us: f64,
    demands: Vec<Demand>,
}

/// A lane at work.
#[derive(Default)]
struct LaneRun {
    /// Its commands.
    queue: Vec<usize>,
    next: usize,
    active: Option<Active>,
    /// When it last became free, or will be: later than now while an event is on its way.
    free_us: f64,
    /// What its next command would be behind.
    cause: Option<usize>,
    behind: Option<Behind>,
}

struct Run<'a, O, T> {
    entries: Vec<(usize, &'a Entry<O, T>)>,
    profile: &'a MachineProfile,
    program: &'a Program<O, T>,
    /// Per wait, the record it waits for.
    target: Vec<Option<usize>>,
    /// Per collective command, its meeting; the members of each.
    meeting: HashMap<usize, usize>,
    members: Vec<Vec<usize>>,
    group_len: Vec<usize>,
    /// Per record, when it completed and behind which slice.
    recorded: Vec<Option<(f64, Option<usize>)>>,
    lanes: Vec<LaneRun>,
    now_us: f64,
    slices: Vec<Slice>,
    /// Per slice.
    causes: Vec<(Option<usize>, Behind)>,
    /// Per slice.
    limits: Vec<Resource>,
    ends_us: Vec<f64>,
}

impl<'a, O: Command, T: Command> Run<'a, O, T> {
    fn new(programs: &[&'a Program<O, T>], profile: &'a MachineProfile) -> Result<Self, SimulateError> {
        let contract = &programs[0].contract;
        let entries: Vec<_> =
            programs.iter().enumerate().flat_map(|(p, program)| program.commands.iter().map(move |e| (p, e))).collect();
        let mut lanes: Vec<LaneRun> = contract.lanes.iter().map(|_| LaneRun::default()).collect();
        let mut target = vec![None; entries.len()];
        let mut last_record: HashMap<(usize, EventId), usize> = HashMap::new();
        let (mut meeting, mut members, mut group_len) = (HashMap::new(), Vec::<Vec<usize>>::new(), Vec::new());
        let mut meetings: HashMap<(usize, &[Rank], LaneKind, u32), usize> = HashMap::new();
        for (index, (p, entry)) in entries.iter().enumerate() {
            let Some(lane) = lanes.get_mut(entry.lane.0 as usize) else {
                return Err(SimulateError::Stuck(place(contract, index, entry)));
            };
            lane.queue.push(index);
            // Boundary events live on from program to program; the others are each program's own.
            let key = |e: EventId| (if (e.0 as usize) < contract.boundaries.len() { usize::MAX } else { *p }, e);
            match &entry.cmd {
                Cmd::Record(event) => drop(last_record.insert(key(*event), index)),
                Cmd::Wait(event) => {
                    target[index] = last_record.get(&key(*event)).copied();
                    if target[index].is_none() && key(*event).0 == *p {
                        return Err(SimulateError::Stuck(place(contract, index, entry)));
                    }
                }
                Cmd::Collective(c) => {
                    let kind = contract.lanes[entry.lane.0 as usize].kind;
                    let number = *meetings.entry((*p, &c.group, kind, c.tag)).or_insert_with(|| {
                        members.push(Vec::new());
                        group_len.push(c.group.len());
                        members.len() - 1
                    });
                    members[number].push(index);
                    meeting.insert(index, number);
                }
                Cmd::Copy { .. } | Cmd::Launch(_) | Cmd::Host(_) => {}
            }
        }
        Ok(Run {
            recorded: vec![None; entries.len()],
            entries,
            profile,
            program: programs[0],
            target,
            meeting,
            members,
            group_len,
            lanes,
            now_us: 0.0,
            slices: Vec::new(),
            causes: Vec::new(),
            limits: Vec::new(),
            ends_us: vec![0.0; programs.len()],
        })
    }

    /// Lets every free lane go on as far as it can now; whether any did.
    fn start(&mut self) -> bool {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            while self.lanes[lane].active.is_none() && self.lanes[lane].free_us <= self.now_us {
                let Some(&index) = self.lanes[lane].queue.get(self.lanes[lane].next) else { break };
                if !self.try_start(lane, index) {
                    break;
                }
                moved = true;
            }
        }
        moved
    }

    fn try_start(&mut self, lane: usize, index: usize) -> bool {
        let entry = self.entries[index].1;
        let target = self.target[index].map(|record| (record, self.hop_us(self.entries[record].1.lane, entry.lane)));
        let run = &mut self.lanes[lane];
        match &entry.cmd {
            Cmd::Record(_) => {
                self.recorded[index] = Some((self.now_us, run.cause));
                run.next += 1;
            }
            Cmd::Wait(event) => {
                if let Some((record, hop_us)) = target {
                    let Some((at_us, cause)) = self.recorded[record] else { return false };
                    let release = at_us + hop_us;
                    if release > run.free_us {
                        (run.cause, run.behind) = (cause, cause.map(|_| Behind::Event(*event)));
                        run.free_us = release;
                    }
                }
                run.next += 1;
            }
            Cmd::Collective(_) => return self.try_meet(index),
            Cmd::Copy { .. } | Cmd::Launch(_) | Cmd::Host(_) => {
                let alone = self.alone(index);
                self.launch(index, alone);
            }
        }
        true
    }

    /// From a record on one lane to the start of another.
    fn hop_us(&self, from: LaneId, to: LaneId) -> f64 {
        let on_host = |lane: LaneId| self.program.contract.lanes[lane.0 as usize].kind.on_host();
        match from == to {
            true => 0.0,
            false if on_host(from) || on_host(to) => self.profile.hop_us(),
            false => self.profile.event_us,
        }
    }

    /// Starts all members of a collective, if all have come.
    fn try_meet(&mut self, index: usize) -> bool {
        let number = self.meeting[&index];
        let members: Vec<(usize, usize)> =
            self.members[number].iter().map(|&i| (i, self.entries[i].1.lane.0 as usize)).collect();
        let there = |&(i, lane): &(usize, usize)| {
            let lane = &self.lanes[lane];
            lane.active.is_none() && lane.free_us <= self.now_us && lane.queue.get(lane.next) == Some(&i)
        };
        if members.len() != self.group_len[number] || !members.iter().all(there) {
            return false;
        }
        let free_us = |lane: usize| self.lanes[lane].free_us;
        let last = members.iter().map(|&(_, lane)| lane).max_by(|a, b| free_us(*a).total_cmp(&free_us(*b)));
        let cause = last.and_then(|lane| self.lanes[lane].cause);
        let us = members.iter().map(|&(i, _)| self.alone(i).us).fold(0.0, f64::max);
        let limit = Resource::Peers;
        for &(i, lane) in &members {
            if Some(lane) != last {
                (self.lanes[lane].cause, self.lanes[lane].behind) = (cause, cause.map(|_| Behind::Collective));
            }
            self.launch(i, Alone { us, limit, demands: Vec::new() });
        }
        true
    }

    fn alone(&self, index: usize) -> Alone {
        cost::alone(&self.program.contract, self.profile, self.entries[index].1)
    }

    fn launch(&mut self, index: usize, alone: Alone) {
        let (program, entry) = self.entries[index];
        let run = &mut self.lanes[entry.lane.0 as usize];
        let slice = self.slices.len();
        self.limits.push(alone.limit);
        self.causes.push((run.cause, run.behind.unwrap_or(Behind::Start)));
        (run.cause, run.behind) = (Some(slice), Some(Behind::Lane));
        run.next += 1;
        run.active = Some(Active { program, slice, left_us: alone.us, demands: alone.demands });
        self.slices.push(Slice {
            lane: entry.lane,
            label: entry.label,
            name: entry.cmd.name(),
            start_us: self.now_us,
            end_us: self.now_us,
            work: entry.cmd.work(),
        });
    }

    /// The time to the next end of a command or arrival of an event, with the speeds until then.
    fn next_change(&self) -> Option<(f64, Vec<f64>)> {
        let demands = self.lanes.iter().map(|lane| lane.active.as_ref().map_or(&[][..], |a| &a.demands));
        let speeds = cost::speeds(self.profile, demands);
        let change = |(lane, speed): (&LaneRun, &f64)| match &lane.active {
            Some(active) => Some(active.left_us / speed),
            None => (lane.free_us > self.now_us).then_some(lane.free_us - self.now_us),
        };
        let us = self.lanes.iter().zip(&speeds).filter_map(change).min_by(f64::total_cmp)?;
        Some((us, speeds))
    }

    fn advance(&mut self, us: f64, speeds: &[f64]) {
        let before_us = self.now_us;
        self.now_us += us;
        for (lane, speed) in self.lanes.iter_mut().zip(speeds) {
            match &mut lane.active {
                Some(active) => {
                    active.left_us -= us * speed;
                    // Rounding must not leave a sliver that time is too coarse to pass.
                    if active.left_us <= 1e-12 * (self.now_us + 1.0) {
                        self.slices[active.slice].end_us = self.now_us;
                        self.ends_us[active.program] = self.now_us;
                        lane.active = None;
                        lane.free_us = self.now_us;
                    }
                }
                // Adding and subtracting may miss by a rounding; the earliest event has come.
                None if lane.free_us > before_us && lane.free_us - before_us <= us => {
                    self.now_us = self.now_us.max(lane.free_us);
                }
                None => {}
            }
        }
    }

    fn finish(self, programs: &[&Program<O, T>]) -> Result<Simulation, SimulateError> {
        let contract = &programs[0].contract;
        if let Some(&index) = self.lanes.iter().find_map(|lane| lane.queue.get(lane.next)) {
            return Err(SimulateError::Stuck(place(contract, index, self.entries[index].1)));
        }
        let timeline = Timeline { lanes: contract.lanes.clone(), slices: self.slices };
        let mut critical = Vec::new();
        let ends = timeline.slices.iter().map(|s| s.end_us).enumerate();
        let mut at = ends.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(slice, _)| slice);
        while let Some(slice) = at {
            let (cause, behind) = self.causes[slice];
            critical.push(CriticalStep { slice, behind });
            at = cause;
        }
        critical.reverse();
        Ok(Simulation {
            step_us: timeline.length_us(),
            ends_us: self.ends_us,
            lanes: timeline.busy(),
            critical,
            timeline,
            limits: self.limits,
        })
    }
}
