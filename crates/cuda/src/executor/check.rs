//! Refuses programs whose commands are on lanes, or touch memory, that this executor cannot serve.

use megatrain_base::{Access, Command, Span};
use megatrain_exec::{ExecError, accesses, identity, place};
use megatrain_ops::Op;
use megatrain_scheduler::{Cmd, Contract, Entry, LaneKind, Program, Space};
use std::sync::Arc;

/// Whether a lane is a stream of the device; the others are threads of the host.
pub(crate) fn is_stream(kind: LaneKind) -> bool {
    matches!(kind, LaneKind::H2d | LaneKind::Compute | LaneKind::D2h)
}

/// # Errors
/// [`ExecError::Malformed`] for the first command that cannot run: an op off the compute lane or on host memory, a host
/// task on a stream or on device memory, a copy that its lane cannot make.
pub(crate) fn spaces<T: Command>(
    contract: &Contract,
    program: &Program<Op, T>,
    name: &Arc<str>,
) -> Result<(), ExecError> {
    for (index, entry) in program.commands.iter().enumerate() {
        check(contract, entry).map_err(|what| ExecError::Malformed {
            program: name.clone(),
            index,
            place: place(contract, entry),
            what,
        })?;
    }
    Ok(())
}

fn check<T: Command>(contract: &Contract, entry: &Entry<Op, T>) -> Result<(), String> {
    let kind = contract.lanes[entry.lane.0 as usize].kind;
    let space = |span: &Span| contract.regions[span.region.0 as usize].space;
    let all =
        |wanted: &dyn Fn(Space) -> bool, what: &str| match accesses(&entry.cmd).iter().find(|(s, _)| !wanted(space(s)))
        {
            None => Ok(()),
            Some((span, _)) => Err(format!("touches {span} in {}; {what}", space(span))),
        };
    let device = |space: Space| matches!(space, Space::Device(_));
    match &entry.cmd {
        Cmd::Launch(_) if kind != LaneKind::Compute => Err("is an op; ops run on compute lanes".into()),
        Cmd::Launch(_) => all(&device, "ops run on device memory"),
        Cmd::Host(_) if is_stream(kind) => Err("is a host task; those run on host lanes".into()),
        Cmd::Host(_) => all(&|space| space == Space::Host, "host tasks run on host memory"),
        Cmd::Copy { src, dst } => copy(kind, space(src), space(dst)),
        Cmd::Collective(collective) => match identity(collective)? {
            None => Ok(()),
            Some((src, dst)) => copy(kind, space(&src), space(&dst)),
        },
        Cmd::Record(_) | Cmd::Wait(_) => Ok(()),
    }
}

fn copy(kind: LaneKind, from: Space, to: Space) -> Result<(), String> {
    let fits = match (from, to) {
        (Space::Host, Space::Host) => !is_stream(kind),
        (Space::File, _) | (_, Space::File) => false,
        _ => is_stream(kind),
    };
    if fits { Ok(()) } else { Err(format!("copies from {from} to {to}, which a lane of kind {kind} cannot do")) }
}

/// The spans that a command overwrites without reading them.
pub(crate) fn written<T: Command>(cmd: &Cmd<Op, T>) -> impl Iterator<Item = Span> {
    accesses(cmd).into_iter().filter(|(_, access)| *access == Access::Write).map(|(span, _)| span)
}
