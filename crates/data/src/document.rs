//! Documents: token ids with, for pre-tokenized ones, labels; and the split that sets some apart for evaluation.
//!
//! A data set may be as large as a disk, so documents are not objects of their own: their numbers lie one after the other in
//! one array, and each has an entry of 32 bytes that says where.

use crate::error::{Error, Origin};
use crate::random::Random;
use crate::words::Words;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use twox_hash::XxHash3_128;

/// The target that means "nothing is trained here", as in PyTorch's cross entropy.
pub const IGNORE: i32 = -100;

/// The stream of [`Random`] that chooses held-out documents; epochs use the numbers from 0 on.
const HELD_OUT_STREAM: u64 = u64::MAX;

/// A document: a text, or a pre-tokenized line. A view of [`Documents`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Document<'a> {
    /// Token ids, never empty.
    pub tokens: &'a [i32],
    /// For a pre-tokenized line: beside each token itself, *unshifted*, the id to learn at that place or [`IGNORE`].
    /// None for text, where every token but the first is learnt.
    pub labels: Option<&'a [i32]>,
    /// Index into [`Documents::files`].
    pub file: u32,
    /// Line in that file, counted from 1; 0 where the document is the whole file.
    pub line: u64,
}

impl Document<'_> {
    /// A hash of tokens and labels, by which equal documents are found.
    fn fingerprint(&self) -> u128 {
        let mut hash = XxHash3_128::new();
        let mut write = |ids: &[i32]| {
            hash.write(&(ids.len() as u64).to_le_bytes());
            ids.iter().for_each(|id| hash.write(&id.to_le_bytes()));
        };
        write(self.tokens);
        write(self.labels.unwrap_or_default());
        hash.finish_128()
    }

    /// How many tokens of `tokens[start..end]`, taken alone, are predicted from the ones before them.
    pub fn targets(&self, start: usize, end: usize) -> u64 {
        let first = (start + 1).min(end);
        match self.labels {
            None => (end - first) as u64,
            Some(labels) => labels[first..end].iter().filter(|&&label| label != IGNORE).count() as u64,
        }
    }
}

/// Where a document is among the words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// First token; the labels of a labelled document come right behind its tokens.
    pub start: u64,
    /// Tokens.
    pub len: u64,
    pub line: u64,
    pub file: u32,
    pub labelled: bool,
}

impl Entry {
    /// Behind its last word.
    pub fn end(&self) -> Option<u64> {
        self.len.checked_mul(1 + u64::from(self.labelled))?.checked_add(self.start)
    }
}

const _: () = assert!(size_of::<Entry>() == 32);

/// All documents of a data set, in file order. Their tokens are in memory or, read from a [`TokenCache`](crate::TokenCache),
/// in a file; a clone, and each part of a split, shares them.
#[derive(Clone, Default)]
pub struct Documents {
    files: Arc<[PathBuf]>,
    entries: Vec<Entry>,
    words: Arc<Words>,
}

impl Documents {
    /// Documents whose entries lie within the words.
    pub(crate) fn from_parts(files: Arc<[PathBuf]>, entries: Vec<Entry>, words: Words) -> Documents {
        Documents { files, entries, words: Arc::new(words) }
    }

    /// Texts that come from no file, already encoded. Empty ones are left out.
    pub fn from_tokens(texts: Vec<Vec<i32>>) -> Self {
        let mut builder = DocumentsBuilder::in_memory(vec![PathBuf::from("(built in)")]);
        for (i, tokens) in texts.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
            builder.push(tokens, None, 0, i as u64 + 1).expect("a text of a file that there is");
        }
        builder.finish()
    }

    /// Pre-tokenized lines that come from no file: tokens and labels of each. `name` stands for the file in messages.
    ///
    /// # Errors
    /// As [`DocumentsBuilder::push`].
    pub fn from_lines(name: &str, lines: impl IntoIterator<Item = (Vec<i32>, Vec<i32>)>) -> Result<Self, Error> {
        let mut builder = DocumentsBuilder::in_memory(vec![PathBuf::from(name)]);
        for (i, (tokens, labels)) in lines.into_iter().enumerate() {
            builder.push(&tokens, Some(&labels), 0, i as u64 + 1)?;
        }
        Ok(builder.finish())
    }

    /// The files they come from.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The document at an index below [`Documents::len`].
    ///
    /// # Panics
    /// At any other.
    pub fn get(&self, index: usize) -> Document<'_> {
        self.view(&self.entries[index])
    }

    /// The documents in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Document<'_>> + DoubleEndedIterator {
        self.entries.iter().map(|entry| self.view(entry))
    }

    fn view(&self, entry: &Entry) -> Document<'_> {
        let (start, len) = (entry.start as usize, entry.len as usize);
        let words = self.words.as_slice();
        let tokens = &words[start..start + len];
        let labels = entry.labelled.then(|| &words[start + len..start + 2 * len]);
        Document { tokens, labels, file: entry.file, line: entry.line }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len).sum()
    }

    /// Where a document comes from, for messages.
    pub fn origin(&self, doc: Document) -> Origin {
        origin(&self.files, doc.file, doc.line)
    }

    /// Sets about `fraction` of the tokens apart: `(training, held out)`, neither empty and nothing in both.
    ///
    /// Documents are drawn in a seeded order and taken while they fit the fraction; each part keeps file order. Equal ones,
    /// such as a record that a mixture repeats, stay together: what was learnt by heart would say nothing as evaluation. Where
    /// no document fits (one long text), the end of the longest text is cut off instead. The choice depends on the
    /// documents, the fraction and the seed alone.
    ///
    /// # Errors
    /// The fraction is none, or the documents are too small.
    pub fn split_held_out(self, fraction: f64, seed: u64) -> Result<(Documents, Documents), Error> {
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(Error::Invalid(format!("a held-out fraction must lie between 0 and 1, not {fraction}")));
        }
        let wanted = ((self.tokens() as f64 * fraction) as u64).max(1);
        let mut order: Vec<usize> = (0..self.len()).collect();
        Random::new(seed, HELD_OUT_STREAM).shuffle(&mut order);
        let (mut held, mut taken) = (vec![false; self.len()], 0);
        // By content, and within it by rank in that order; then the groups of equal ones by the first rank of each.
        let mut ranked: Vec<(u128, usize)> =
            order.iter().enumerate().map(|(rank, &i)| (self.get(i).fingerprint(), rank)).collect();
        ranked.sort_unstable();
        let mut equal_ones: Vec<&[(u128, usize)]> = ranked.chunk_by(|a, b| a.0 == b.0).collect();
        equal_ones.sort_unstable_by_key(|equal| equal[0].1);
        for equal in equal_ones {
            let documents = || equal.iter().map(|&(_, rank)| order[rank]);
            let tokens: u64 = documents().map(|i| self.entries[i].len).sum();
            if taken + tokens <= wanted {
                documents().for_each(|i| held[i] = true);
                taken += tokens;
            }
        }
        let Documents { files, mut entries, words } = self;
        let part = |entries| Documents { files: files.clone(), entries, words: words.clone() };
        if taken > 0 {
            let mut parts = (Vec::new(), Vec::new());
            for (entry, held) in entries.into_iter().zip(held) {
                if held { parts.1.push(entry) } else { parts.0.push(entry) }
            }
            return Ok((part(parts.0), part(parts.1)));
        }
        // At least two tokens on either side: one to see and one to predict.
        let wanted = wanted.max(2);
        // The first of the longest, so that equal lengths leave no choice.
        let long = entries.iter_mut().rev().filter(|entry| !entry.labelled && entry.len >= wanted + 2);
        let Some(longest) = long.max_by_key(|entry| entry.len) else {
            let problem = format!(
                "the data is too small to hold {fraction} of it out, equal documents together; give more data or a larger share"
            );
            return Err(Error::Invalid(problem));
        };
        longest.len -= wanted;
        let tail = Entry { start: longest.start + longest.len, len: wanted, ..*longest };
        Ok((part(entries), part(vec![tail])))
    }
}

impl PartialEq for Documents {
    /// Whether the documents are equal, wherever they lie.
    fn eq(&self, other: &Self) -> bool {
        self.files == other.files && self.iter().eq(other.iter())
    }
}

impl Eq for Documents {}

impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.files)?;
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Collects documents in memory, one after the other.
#[derive(Debug)]
pub struct DocumentsBuilder {
    files: Arc<[PathBuf]>,
    entries: Vec<Entry>,
    words: Vec<i32>,
    tokens: u64,
}

impl DocumentsBuilder {
    /// No documents yet, of these files.
    pub fn in_memory(files: impl Into<Arc<[PathBuf]>>) -> Self {
        DocumentsBuilder { files: files.into(), entries: Vec::new(), words: Vec::new(), tokens: 0 }
    }

    /// Appends a document; see [`Document`] for what its parts mean.
    ///
    /// # Errors
    /// It has no token, as many labels as tokens are not there, or there is no such file.
    pub fn push(&mut self, tokens: &[i32], labels: Option<&[i32]>, file: u32, line: u64) -> Result<(), Error> {
        let problem = match labels {
            _ if tokens.is_empty() => "a document has no tokens".to_owned(),
            Some(labels) if labels.len() != tokens.len() => {
                format!("a document has {} tokens, but {} labels", tokens.len(), labels.len())
            }
            _ if file as usize >= self.files.len() => format!("there is no file {file} of a document"),
            _ => {
                let start = self.words.len() as u64;
                self.words.extend_from_slice(tokens);
                self.words.extend_from_slice(labels.unwrap_or_default());
                let len = tokens.len() as u64;
                self.entries.push(Entry { start, len, line, file, labelled: labels.is_some() });
                self.tokens += len;
                return Ok(());
            }
        };
        Err(Error::At { origin: self.origin(file, line), problem })
    }

    /// The files that documents come from.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// A place in one of the files, for messages.
    pub fn origin(&self, file: u32, line: u64) -> Origin {
        origin(&self.files, file, line)
    }

    /// Number of documents so far.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of tokens so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The documents.
    pub fn finish(self) -> Documents {
        let DocumentsBuilder { files, mut entries, mut words, .. } = self;
        entries.shrink_to_fit();
        words.shrink_to_fit();
        Documents::from_parts(files, entries, Words::Owned(words))
    }
}

fn origin(files: &[PathBuf], file: u32, line: u64) -> Origin {
    Origin { path: files.get(file as usize).cloned().unwrap_or_default(), line: (line > 0).then_some(line) }
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
        let all: Vec<i32> = docs.iter().flat_map(|doc| doc.tokens.to_vec()).collect();
        let (train, held) = docs.clone().split_held_out(fraction, 7).unwrap();
        assert!(train.tokens() >= 2 && held.tokens() > 0);
        let mut joined: Vec<i32> = train.iter().chain(held.iter()).flat_map(|doc| doc.tokens.to_vec()).collect();
        joined.sort();
        assert_eq!(joined, all, "every token is in exactly one part");
        assert_eq!(docs.split_held_out(fraction, 7).unwrap(), (train.clone(), held.clone()));
        (train, held)
    }

    #[test]
    fn documents_or_the_end_of_one_are_held_out() {
        let (train, held) = check(&[10; 100], 0.1);
        assert_eq!((train.len(), held.len()), (90, 10));
        let (train, held) = check(&[1000], 0.05);
        assert_eq!((train.tokens(), held.get(0).tokens[0]), (950, 950));
        check(&[5000, 3, 4, 5000], 0.01);
        let (_, held) = check(&[1000, 1000], 0.001);
        assert_eq!(held.get(0).tokens, [998, 999], "the first of equally long texts is cut");
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

    #[test]
    fn documents_are_views_of_one_array() {
        let mut builder = DocumentsBuilder::in_memory(["a".into(), "b".into()]);
        builder.push(&[1, 2, 3], None, 0, 0).unwrap();
        builder.push(&[4, 5], Some(&[IGNORE, 5]), 1, 7).unwrap();
        builder.push(&[6], None, 1, 8).unwrap();
        for (tokens, labels, file) in [(&[][..], None, 0), (&[1, 2], Some(&[1][..]), 1), (&[1], None, 2)] {
            assert!(builder.push(tokens, labels, file, 9).is_err());
        }
        assert_eq!((builder.len(), builder.tokens()), (3, 6), "what is refused leaves nothing behind");
        let docs = builder.finish();
        assert_eq!((docs.len(), docs.tokens()), (3, 6));
        let labelled = Document { tokens: &[4, 5], labels: Some(&[IGNORE, 5]), file: 1, line: 7 };
        assert_eq!(docs.get(1), labelled);
        assert_eq!(docs.origin(labelled).to_string(), "b:7");
        assert_eq!(docs.get(2).tokens, [6]);
        assert_eq!(docs.iter().map(|doc| doc.targets(0, doc.tokens.len())).collect::<Vec<_>>(), [2, 1, 0]);
        let (train, held) = docs.split_held_out(0.5, 1).unwrap();
        assert!(Arc::ptr_eq(&train.words, &held.words));
    }

    #[test]
    fn what_is_held_out_is_not_learnt_as_a_copy() {
        // As a mixture repeats records: each of 20 comes 5 times; with others between that come once.
        let lines = |copies: usize| {
            let repeated = (0..20).flat_map(move |i| (0..copies).map(move |_| (vec![1, i, 3], vec![IGNORE, i, 3])));
            let once = (100..200).map(|i| (vec![1, i, 3], vec![IGNORE, i, 3]));
            Documents::from_lines("a", repeated.chain(once)).unwrap()
        };
        for seed in 0..5 {
            let (train, held) = lines(5).split_held_out(0.25, seed).unwrap();
            assert_eq!((train.len() + held.len(), held.len()), (200, 50));
            assert!(held.iter().all(|doc| train.iter().all(|other| other.tokens != doc.tokens)));
            let copies = held.iter().filter(|doc| doc.tokens[1] < 20).count();
            assert!(copies > 0 && copies % 5 == 0, "{copies}");
        }
        // Labels count.
        let pair = [(vec![1, 2], vec![IGNORE, 2]), (vec![1, 2], vec![1, 2])];
        let (train, held) = Documents::from_lines("a", pair).unwrap().split_held_out(0.5, 0).unwrap();
        assert_eq!((train.len(), held.len()), (1, 1));
    }
}
