//! [`Claims`]: who holds which bytes right now.
//!
//! Every command claims what it declares before it touches a byte and never waits for it: events have already ordered
//! whatever may not overlap, so contention is a race in the program, and both commands are named. This is also what makes
//! the executor sound whatever program it is given: a conflicting command is refused, not run.

use megatrain_base::{Access, Span};
use megatrain_exec::{Place, Race};
use std::sync::{Arc, Mutex, PoisonError};

/// A command as a race report names it.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) program: Arc<str>,
    pub(crate) place: Place,
}

#[derive(Debug)]
struct Claim {
    id: u64,
    spans: Vec<(Span, Access)>,
    holder: Holder,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    held: Vec<Claim>,
}

/// The claims of all commands in flight: at most one command a lane, so a list is searched fast enough.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Table>);

impl Claims {
    /// Claims all spans or none.
    pub(crate) fn take(&self, spans: &[(Span, Access)], holder: impl FnOnce() -> Holder) -> Result<Held<'_>, Race> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for claim in &table.held {
            for (theirs, their_access) in &claim.spans {
                if let Some((ours, _)) = spans.iter().find(|(s, a)| a.conflicts(*their_access) && s.overlaps(theirs)) {
                    let Holder { program, place } = claim.holder.clone();
                    let (span, other_span) = (*ours, *theirs);
                    return Err(Race { span, other_program: program, other: place, other_span });
                }
            }
        }
        let id = table.next;
        table.next += 1;
        table.held.push(Claim { id, spans: spans.to_vec(), holder: holder() });
        Ok(Held { claims: self, id })
    }
}

/// Gives the bytes back when dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    claims: &'a Claims,
    id: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut table = self.claims.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.held.retain(|claim| claim.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_base::{Rank, RegionId};
    use megatrain_scheduler::{Label, Lane, LaneId, LaneKind};

    fn holder(name: &'static str) -> impl FnOnce() -> Holder {
        let kind = Lane { rank: Rank::default(), kind: LaneKind::Update };
        move || Holder { program: "p".into(), place: Place { name, lane: LaneId(3), kind, label: Label::default() } }
    }

    #[test]
    fn readers_share_writers_do_not_and_both_are_named() {
        let claims = Claims::default();
        let at = |offset, len, access| vec![(Span::new(RegionId(0), offset, len), access)];
        let first = claims.take(&at(0, 10, Access::Read), holder("first")).unwrap();
        let second = claims.take(&at(5, 10, Access::Read), holder("second")).unwrap();
        let race = claims.take(&at(12, 1, Access::Write), holder("third")).unwrap_err();
        assert_eq!((race.span.to_string(), race.other.name), ("r0[12..13]".into(), "second"));
        drop(second);
        let third = claims.take(&at(12, 1, Access::Update), holder("third")).unwrap();
        assert!(claims.take(&at(12, 1, Access::Read), holder("fourth")).is_err());
        drop((first, third));
        assert!(claims.take(&at(0, 99, Access::Write), holder("fifth")).is_ok());
    }
}
