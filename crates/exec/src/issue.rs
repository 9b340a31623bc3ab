//! [`Issuer`]: checks a program against the contract and resolves its events to recordings, in the order of issue.
//!
//! A wait refers to the last record of its event that was issued before it; boundary events carry over from program to
//! program. So a wait never refers to something later, and the earliest command that has not run can always run: no order
//! of the lanes deadlocks.

use crate::{ExecError, Memory, Place, Reason};
use megatrain_base::{Access, Command, Span};
use megatrain_ops::Op;
use megatrain_scheduler::{Cmd, Collective, Contract, Entry, LaneId, Program};
use std::sync::Arc;

/// What a lane does at one command. `E` is one recording of an event: each executor has its own.
#[derive(Debug)]
pub enum Action<E> {
    /// Runs the command.
    Run,
    /// Completes this recording.
    Record(Arc<E>),
    /// Waits for this recording.
    Wait(Arc<E>),
}

/// One command with its events resolved.
#[derive(Debug)]
pub struct Step<E> {
    /// Index into the program's commands.
    pub index: usize,
    /// Its lane.
    pub lane: LaneId,
    /// What to do.
    pub action: Action<E>,
}

/// The last recording of every boundary event.
#[derive(Debug)]
pub struct Issuer<E> {
    boundaries: Vec<Option<Arc<E>>>,
}

impl<E: Default> Issuer<E> {
    /// Nothing is recorded yet.
    pub fn new(contract: &Contract) -> Self {
        Issuer { boundaries: vec![None; contract.boundaries.len()] }
    }

    /// Resolves a program that passed [`check`] to steps in program order. Waits on boundary events that nothing has
    /// recorded yet hold nobody and are left out.
    pub fn resolve<T: Command>(&mut self, program: &Program<Op, T>) -> Vec<Step<E>> {
        let boundaries = self.boundaries.len();
        let mut last = std::mem::take(&mut self.boundaries);
        last.resize(boundaries.max(program.events as usize), None);
        let mut steps = Vec::with_capacity(program.commands.len());
        for (index, entry) in program.commands.iter().enumerate() {
            let action = match &entry.cmd {
                Cmd::Record(event) => Some(Action::Record(last[event.0 as usize].insert(Arc::default()).clone())),
                Cmd::Wait(event) => last[event.0 as usize].clone().map(Action::Wait),
                _ => Some(Action::Run),
            };
            steps.extend(action.map(|action| Step { index, lane: entry.lane, action }));
        }
        last.truncate(boundaries);
        self.boundaries = last;
        steps
    }
}

/// The place of a command whose lane exists.
pub fn place<T: Command>(contract: &Contract, entry: &Entry<Op, T>) -> Place {
    let kind = contract.lanes[entry.lane.0 as usize];
    Place { name: entry.cmd.name(), lane: entry.lane, kind, label: entry.label }
}

/// Refuses a program that could not run on this memory: another contract, unknown lanes or events, spans outside their
/// region, ops whose operands do not fit together, collectives of several ranks.
pub fn check<T: Command>(
    contract: &Arc<Contract>,
    memory: &Memory,
    program: &Program<Op, T>,
    name: &Arc<str>,
) -> Result<(), ExecError> {
    let refused = |what: String| ExecError::Refused { program: name.clone(), what };
    if !Arc::ptr_eq(contract, &program.contract) && **contract != *program.contract {
        return Err(refused("it was made for another contract than the executor's memory".into()));
    }
    let mut recorded = vec![false; program.events as usize];
    for (index, entry) in program.commands.iter().enumerate() {
        if entry.lane.0 as usize >= contract.lanes.len() {
            let (lane, lanes) = (entry.lane.0, contract.lanes.len());
            return Err(refused(format!("command {index} is on lane {lane}; the contract has {lanes} lanes")));
        }
        check_entry(contract, memory, entry, &mut recorded).map_err(|what| ExecError::Malformed {
            program: name.clone(),
            index,
            place: place(contract, entry),
            what,
        })?;
    }
    Ok(())
}

fn check_entry<T: Command>(
    contract: &Contract,
    memory: &Memory,
    entry: &Entry<Op, T>,
    recorded: &mut [bool],
) -> Result<(), String> {
    match &entry.cmd {
        Cmd::Record(event) | Cmd::Wait(event) => {
            let count = recorded.len();
            let Some(recorded) = recorded.get_mut(event.0 as usize) else {
                return Err(format!("names event {}; the program has {count}", event.0));
            };
            if matches!(entry.cmd, Cmd::Record(_)) {
                *recorded = true;
            } else if !*recorded && event.0 as usize >= contract.boundaries.len() {
                return Err(format!("would never end: nothing before it records event {}", event.0));
            }
            return Ok(());
        }
        Cmd::Copy { src, dst } if src.len_bytes != dst.len_bytes => {
            return Err(format!("copies {} bytes of {src} to {} bytes of {dst}", src.len_bytes, dst.len_bytes));
        }
        Cmd::Launch(op) => op.check().map_err(|error| error.to_string())?,
        Cmd::Collective(collective) => identity(collective).map(|_| ())?,
        Cmd::Copy { .. } | Cmd::Host(_) => {}
    }
    let spans = accesses(&entry.cmd);
    for (i, (span, access)) in spans.iter().enumerate() {
        memory.check(contract, span)?;
        if let Some((other, _)) = spans[..i].iter().find(|(s, a)| a.conflicts(*access) && s.overlaps(span)) {
            return Err(format!("writes bytes that two of its operands share: {other} and {span}"));
        }
    }
    Ok(())
}

/// Every span a command touches.
pub fn accesses<T: Command>(cmd: &Cmd<Op, T>) -> Vec<(Span, Access)> {
    let mut spans = Vec::new();
    cmd.accesses(&mut |span, access| spans.push((span, access)));
    spans
}

/// What a collective of one rank comes to: the spans to copy, if it does not work in place.
pub fn identity(collective: &Collective) -> Result<Option<(Span, Span)>, String> {
    let ranks = collective.group.len();
    if ranks > 1 {
        return Err(format!("spans {ranks} ranks; the CPU executor runs programs of one rank"));
    }
    match *collective.accesses.as_slice() {
        [(_, Access::Update)] | [] => Ok(None),
        [(src, Access::Read), (dst, Access::Write)] | [(dst, Access::Write), (src, Access::Read)]
            if src.len_bytes == dst.len_bytes =>
        {
            Ok(Some((src, dst)))
        }
        _ => Err("is neither a copy of one span to another as long nor one span in place".into()),
    }
}

impl Reason {
    /// A panic's message.
    pub fn of_panic(payload: &(dyn std::any::Any + Send)) -> Reason {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Reason::Panic(text.unwrap_or("(no message)").into())
    }
}
