//! Programs for people: one line an entry, in program order.

use crate::{Cmd, Contract, EventId, Program};
use megatrain_base::{Access, Command, Span};
use std::fmt;

impl<O: Command, T: Command> fmt::Display for Program<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contract = &*self.contract;
        writeln!(f, "program `{}`: {} entries", self.name, self.commands.len())?;
        for (index, entry) in self.commands.iter().enumerate() {
            let lane = contract.lanes.get(entry.lane.0 as usize).map_or_else(|| "?".into(), ToString::to_string);
            write!(f, "{index:>6}  {lane:<12}  ")?;
            match &entry.cmd {
                Cmd::Wait(event) => writeln!(f, "  wait    {}", Event(contract, *event))?,
                Cmd::Record(event) => writeln!(f, "  record  {}", Event(contract, *event))?,
                Cmd::Copy { src, dst } => {
                    writeln!(f, "copy {} -> {}  ({})", Place(contract, *src), Place(contract, *dst), entry.label)?;
                }
                cmd => {
                    write!(f, "{}", cmd.name())?;
                    let mut result = Ok(());
                    cmd.accesses(&mut |span, access| {
                        let how = match access {
                            Access::Read => "reads",
                            Access::Write => "writes",
                            Access::Update => "updates",
                        };
                        if result.is_ok() {
                            result = write!(f, " {how} {}", Place(contract, span));
                        }
                    });
                    result?;
                    writeln!(f, "  ({})", entry.label)?;
                }
            }
        }
        Ok(())
    }
}

/// A boundary by its name, another event as `e0`, `e1`, ...
struct Event<'a>(&'a Contract, EventId);

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.boundaries.get(self.1.0 as usize) {
            Some(boundary) => f.write_str(&boundary.name),
            None => write!(f, "e{}", self.1.0 as usize - self.0.boundaries.len()),
        }
    }
}

/// Bytes with the region's name.
struct Place<'a>(&'a Contract, Span);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place(contract, span) = self;
        match contract.regions.get(span.region.0 as usize) {
            Some(region) => write!(f, "{}[{}..{}]", region.name, span.offset_bytes, span.end_bytes()),
            None => write!(f, "{span}"),
        }
    }
}
