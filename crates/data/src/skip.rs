//! Records left out: counted by kind, the first of them with place and reason.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// How many skipped records are kept with place and reason; beyond that they are only counted.
pub const MAX_LISTED_SKIPS: usize = 10_000;

/// A record that was left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Skip {
    /// Index into the reader's files.
    pub file: u32,
    /// Line of that file (row of a table), counted from 1; 0 where it is the whole file.
    pub line: u64,
    /// What kind of fault it has, in few words: what totals are counted by.
    pub kind: Cow<'static, str>,
    /// What exactly is wrong, and what to do.
    pub reason: String,
}

/// The records left out so far.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Skips {
    /// The first [`MAX_LISTED_SKIPS`] of them, in the order in which they were met.
    pub listed: Vec<Skip>,
    /// How many there are of each kind, listed or not.
    pub totals: BTreeMap<Cow<'static, str>, u64>,
}

impl Skips {
    /// Counts a skipped record and, while there is room, lists it.
    pub fn add(&mut self, skip: Skip) {
        *self.totals.entry(skip.kind.clone()).or_default() += 1;
        if self.listed.len() < MAX_LISTED_SKIPS {
            self.listed.push(skip);
        }
    }

    /// Adds what another reader left out.
    pub fn extend(&mut self, other: Skips) {
        for (kind, count) in other.totals {
            *self.totals.entry(kind).or_default() += count;
        }
        let room = MAX_LISTED_SKIPS.saturating_sub(self.listed.len());
        self.listed.extend(other.listed.into_iter().take(room));
    }

    /// How many there are in all.
    pub fn total(&self) -> u64 {
        self.totals.values().sum()
    }

    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.totals.is_empty()
    }

    /// For people: the total and, for each kind, how many and the first. `files` are those that [`Skip::file`] counts.
    pub fn summary<'a>(&'a self, files: &'a [PathBuf]) -> impl fmt::Display + 'a {
        Summary { skips: self, files }
    }
}

struct Summary<'a> {
    skips: &'a Skips,
    files: &'a [PathBuf],
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.skips.total();
        write!(f, "{total} record{} skipped", if total == 1 { "" } else { "s" })?;
        for (kind, count) in &self.skips.totals {
            write!(f, "\n  {count} x {kind}")?;
            let Some(first) = self.skips.listed.iter().find(|skip| skip.kind == *kind) else { continue };
            write!(f, ", first ")?;
            if let Some(path) = self.files.get(first.file as usize) {
                write!(f, "{}:", path.display())?;
            }
            write!(f, "{}: {}", first.line, first.reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_are_listed() {
        let mut skips = Skips::default();
        assert!(skips.is_empty());
        let skip =
            |line, kind: &'static str| Skip { file: 0, line, kind: kind.into(), reason: format!("reason {line}") };
        skips.add(skip(3, "b"));
        for line in 0..MAX_LISTED_SKIPS as u64 + 5 {
            skips.add(skip(line, "a"));
        }
        assert_eq!((skips.total(), skips.listed.len()), (MAX_LISTED_SKIPS as u64 + 6, MAX_LISTED_SKIPS));
        let mut other = Skips::default();
        other.add(skip(9, "b"));
        other.extend(skips);
        assert_eq!((other.totals["a"], other.totals["b"]), (MAX_LISTED_SKIPS as u64 + 5, 2));
        assert_eq!(other.listed.len(), MAX_LISTED_SKIPS);
        let text = other.summary(&[PathBuf::from("f.json")]).to_string();
        assert_eq!(
            text,
            "10007 records skipped\n  10005 x a, first f.json:0: reason 0\n  2 x b, first f.json:9: reason 9"
        );
    }
}
