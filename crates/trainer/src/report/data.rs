//! [`DataFacts`]: what a run trains on, counted.

use megatrain_data::{Documents, Skips};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a run trains on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct DataFacts {
    /// Names of the files, as given.
    pub files: Vec<String>,
    /// Documents that are trained on.
    pub documents: u64,
    /// Tokens in them.
    pub tokens: u64,
    /// Of these, what is learnt.
    pub targets: u64,
    /// Tokens in the longest document.
    pub longest: u64,
    /// Documents by length: how many have up to 2^i tokens and more than 2^(i-1), for each i from 0 on.
    pub lengths: Vec<u64>,
    /// Documents kept apart for evaluation.
    pub held_out: u64,
    /// Documents that were shortened.
    pub truncated: u64,
    /// Records left out, by kind of fault.
    pub skipped: BTreeMap<String, u64>,
    /// Whether this is what a stream has read so far, and there may be more.
    pub partial: bool,
}

/// Files that are named one by one.
const LISTED_FILES: usize = 20;

impl DataFacts {
    /// Counts documents.
    pub fn of(documents: &Documents) -> Self {
        let files = documents.files().iter().take(LISTED_FILES).map(|path| path.display().to_string()).collect();
        let mut facts = DataFacts { files, ..DataFacts::default() };
        if documents.files().len() > LISTED_FILES {
            facts.files.push(format!("and {} more", documents.files().len() - LISTED_FILES));
        }
        for doc in documents.iter() {
            let tokens = doc.tokens.len();
            facts.documents += 1;
            facts.tokens += tokens as u64;
            facts.targets += doc.targets(0, tokens);
            facts.longest = facts.longest.max(tokens as u64);
            let bin = tokens.max(1).next_power_of_two().ilog2() as usize;
            facts.lengths.resize(facts.lengths.len().max(bin + 1), 0);
            facts.lengths[bin] += 1;
        }
        facts
    }

    /// The same facts, of some of these documents.
    pub fn counting(self, documents: &Documents) -> Self {
        let DataFacts { truncated, skipped, .. } = self;
        DataFacts { truncated, skipped, ..DataFacts::of(documents) }
    }

    /// Adds what was read after this, of the same files.
    pub fn merge(&mut self, later: DataFacts) {
        self.files = later.files;
        self.documents += later.documents;
        self.tokens += later.tokens;
        self.targets += later.targets;
        self.longest = self.longest.max(later.longest);
        self.lengths.resize(self.lengths.len().max(later.lengths.len()), 0);
        self.lengths.iter_mut().zip(&later.lengths).for_each(|(sum, count)| *sum += count);
        self.held_out += later.held_out;
        self.truncated += later.truncated;
        for (kind, count) in later.skipped {
            *self.skipped.entry(kind).or_default() += count;
        }
        self.partial = later.partial;
    }

    /// Adds what was left out while reading.
    pub fn with_skips(mut self, skips: &Skips) -> Self {
        for (kind, count) in &skips.totals {
            *self.skipped.entry(kind.to_string()).or_default() += count;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_data::{DocumentsBuilder, IGNORE};

    #[test]
    fn documents_are_counted_by_length() {
        let mut builder = DocumentsBuilder::in_memory(vec!["(built in)".into()]);
        for len in [1, 4, 5] {
            builder.push(&[1; 5][..len], None, 0, 1).unwrap();
        }
        builder.push(&[5, 6, 7], Some(&[IGNORE, IGNORE, 7]), 0, 9).unwrap();
        let facts = DataFacts::of(&builder.finish());
        assert_eq!((facts.documents, facts.tokens, facts.targets, facts.longest), (4, 13, 8, 5));
        assert_eq!(facts.lengths, [1, 0, 2, 1]);
        assert_eq!(facts.files, ["(built in)"]);
    }
}
