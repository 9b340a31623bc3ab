//! Documents: token ids with, for pre-tokenized ones, labels; and the split that sets some apart for evaluation.

use crate::error::{Error, Origin};
use crate::random::Random;
use std::path::PathBuf;

/// The target that means "nothing is trained here", as in PyTorch's cross entropy.
pub const IGNORE: i32 = -100;

/// The stream of [`Random`] that chooses held-out documents; epochs use the numbers from 0 on.
const HELD_OUT_STREAM: u64 = u64::MAX;

/// A document: a text, or a pre-tokenized line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Document {
    /// Token ids, never empty.
    pub tokens: Vec<i32>,
    /// For a pre-tokenized line: beside each token itself, *unshifted*, the id to learn at that place or [`IGNORE`].
    /// None for text, where every token but the first is learnt.
    pub labels: Option<Vec<i32>>,
    /// Index into [`Documents::files`].
    pub file: u32,
    /// Line in that file, counted from 1; 0 where the document is the whole file.
    pub line: u64,
}

impl Document {
    /// How many tokens of `tokens[start..end]`, taken alone, are predicted from the ones before them.
    pub fn targets(&self, start: usize, end: usize) -> u64 {
        let first = (start + 1).min(end);
        match &self.labels {
            None => (end - first) as u64,
            Some(labels) => labels[first..end].iter().filter(|&&label| label != IGNORE).count() as u64,
        }
    }
}

/// All documents of a data set, in file order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Documents {
    /// The files they come from.
    pub files: Vec<PathBuf>,
    /// The documents.
    pub docs: Vec<Document>,
}

impl Documents {
    /// Texts that come from no file, already encoded. Empty ones are left out.
    pub fn from_tokens(texts: Vec<Vec<i32>>) -> Self {
        let texts = texts.into_iter().enumerate().filter(|(_, tokens)| !tokens.is_empty());
        let docs = texts.map(|(i, tokens)| Document { tokens, labels: None, file: 0, line: i as u64 + 1 });
        Documents { files: vec![PathBuf::from("(built in)")], docs: docs.collect() }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u64 {
        self.docs.iter().map(|doc| doc.tokens.len() as u64).sum()
    }

    /// Where a document comes from, for messages.
    pub fn origin(&self, doc: &Document) -> Origin {
        let path = self.files.get(doc.file as usize).cloned().unwrap_or_default();
        Origin { path, line: (doc.line > 0).then_some(doc.line) }
    }

    /// Sets about `fraction` of the tokens apart: `(training, held out)`, neither empty and nothing in both.
    ///
    /// Documents are drawn in a seeded order and taken while they fit the fraction; each part keeps file order. Where
    /// no document fits (one long text), the end of the longest text is cut off instead. The choice depends on the
    /// documents, the fraction and the seed alone.
    pub fn split_held_out(self, fraction: f64, seed: u64) -> Result<(Documents, Documents), Error> {
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(Error::Invalid(format!("a held-out fraction must lie between 0 and 1, not {fraction}")));
        }
        let wanted = ((self.tokens() as f64 * fraction) as u64).max(1);
        let mut order: Vec<usize> = (0..self.docs.len()).collect();
        Random::new(seed, HELD_OUT_STREAM).shuffle(&mut order);
        let (mut held, mut taken) = (vec![false; self.docs.len()], 0);
        for i in order {
            let tokens = self.docs[i].tokens.len() as u64;
            if taken + tokens <= wanted {
                held[i] = true;
                taken += tokens;
            }
        }
        let Documents { files, docs } = self;
        if taken > 0 {
            let mut parts = (Vec::new(), Vec::new());
            for (doc, held) in docs.into_iter().zip(held) {
                if held { parts.1.push(doc) } else { parts.0.push(doc) }
            }
            let part = |docs| Documents { files: files.clone(), docs };
            return Ok((part(parts.0), part(parts.1)));
        }
        let mut train = Documents { files, docs };
        // At least two tokens on either side: one to see and one to predict.
        let wanted = wanted.max(2) as usize;
        // The first of the longest, so that equal lengths leave no choice.
        let longest = train
            .docs
            .iter_mut()
            .rev()
            .filter(|doc| doc.labels.is_none() && doc.tokens.len() >= wanted + 2)
            .max_by_key(|doc| doc.tokens.len());
        let Some(doc) = longest else {
            let problem = format!("the data is too small to hold {fraction} of it out; give more data");
            return Err(Error::Invalid(problem));
        };
        let tokens = doc.tokens.split_off(doc.tokens.len() - wanted);
        let tail = Document { tokens, labels: None, file: doc.file, line: doc.line };
        let files = train.files.clone();
        Ok((train, Documents { files, docs: vec![tail] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lens: &[usize], fraction: f64) -> (Documents, Documents) {
        let mut next = 0;
        let mut text = |len: usize| {
            let tokens: Vec<i32> = (next..next + len as i32).collect();
            next += len as i32;
            tokens
        };
        let docs = Documents::from_tokens(lens.iter().map(|&len| text(len)).collect());
        let all: Vec<i32> = docs.docs.iter().flat_map(|doc| doc.tokens.clone()).collect();
        let (train, held) = docs.clone().split_held_out(fraction, 7).unwrap();
        assert!(train.tokens() >= 2 && held.tokens() > 0);
        let mut joined: Vec<i32> = train.docs.iter().chain(&held.docs).flat_map(|doc| doc.tokens.clone()).collect();
        joined.sort();
        assert_eq!(joined, all, "every token is in exactly one part");
        assert_eq!(docs.split_held_out(fraction, 7).unwrap(), (train.clone(), held.clone()));
        (train, held)
    }

    #[test]
    fn documents_or_the_end_of_one_are_held_out() {
        let (train, held) = check(&[10; 100], 0.1);
        assert_eq!((train.docs.len(), held.docs.len()), (90, 10));
        let (train, held) = check(&[1000], 0.05);
        assert_eq!((train.tokens(), held.docs[0].tokens[0]), (950, 950));
        check(&[5000, 3, 4, 5000], 0.01);
        let (_, held) = check(&[1000, 1000], 0.001);
        assert_eq!(held.docs[0].tokens, [998, 999], "the first of equally long texts is cut");
        assert!(Documents::from_tokens(vec![vec![1, 2, 3]]).split_held_out(0.1, 0).is_err());
        assert!(Documents::default().split_held_out(0.1, 0).is_err());
        assert!(Documents::from_tokens(vec![vec![1; 100]]).split_held_out(1.0, 0).is_err());
    }

    #[test]
    fn the_seed_chooses() {
        let docs = Documents::from_tokens((0..100).map(|i| vec![i; 10]).collect());
        let held = |seed| docs.clone().split_held_out(0.1, seed).unwrap().1;
        assert_ne!(held(1), held(2));
    }
}
