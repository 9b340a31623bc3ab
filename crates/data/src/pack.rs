//! Cuts documents into pieces, orders them by a seed and packs them into sequences of a length.

use crate::document::{Document, Documents, IGNORE};
use crate::error::Error;
use crate::random::Random;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// How documents become sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackOptions {
    /// Most tokens in a sequence, at least 2.
    pub seq_len: usize,
    /// Chooses the order.
    pub seed: u64,
    /// Whether pieces are put in a new random order every epoch; else they stay in file order.
    pub shuffle: bool,
    /// Whether texts may share a sequence; else each piece of one is a sequence of its own.
    pub pack_texts: bool,
    /// Whether documents with labels (pre-tokenized lines, conversations) may share a sequence; else each is one of its
    /// own.
    pub pack_lines: bool,
    /// Of so many pieces at a time in the order of the epoch, the longest comes first, so that those of about one length
    /// come together (`group_by_length` of Hugging Face's trainer). None: the order is left as it is.
    pub group_by_length: Option<usize>,
}

impl PackOptions {
    /// Refuses a length that leaves nothing to predict.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let seq_len = self.seq_len;
        if seq_len < 2 || seq_len > i32::MAX as usize {
            let problem = format!("--seq-len must be at least 2 (one token to see, one to predict), not {seq_len}");
            return Err(Error::Invalid(problem));
        }
        Ok(())
    }
}

/// Token ids of one or several documents, isolated from each other, and what is to be predicted at each place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sequence {
    /// Token ids; at least one, at most `seq_len`.
    pub tokens: Vec<i32>,
    /// At each place the id to be predicted *next*, or [`IGNORE`]; the same length. Already shifted: inside each
    /// document by one, the last place of each being [`IGNORE`], so that no target crosses a border.
    pub targets: Vec<i32>,
    /// Tokens of each document (or piece of one), in order; they sum to the length. Positions restart at each.
    pub doc_lens: Vec<u32>,
}

impl Sequence {
    /// Number of places with a target.
    pub fn target_count(&self) -> u64 {
        self.targets.iter().filter(|&&target| target != IGNORE).count() as u64
    }

    /// Appends `doc.tokens[start..end]` as a document of its own.
    fn push(&mut self, doc: Document, start: usize, end: usize) {
        self.tokens.extend_from_slice(&doc.tokens[start..end]);
        let next = doc.labels.unwrap_or(doc.tokens);
        self.targets.extend_from_slice(&next[start + 1..end]);
        self.targets.push(IGNORE);
        self.doc_lens.push((end - start) as u32);
    }
}

/// A run of tokens of one document that stays together.
#[derive(Clone, Copy, Debug)]
struct Piece {
    doc: u32,
    len: u32,
    start: u64,
}

/// Makes the sequences of every epoch.
#[derive(Clone, Debug)]
pub struct Packer {
    docs: Arc<Documents>,
    options: PackOptions,
    pieces: Vec<Piece>,
    targets: u64,
}

impl Packer {
    /// Cuts the documents: texts longer than `seq_len` into consecutive pieces, so that every token comes once an
    /// epoch. A pre-tokenized line is never cut: one that is too long is an error naming it.
    ///
    /// # Errors
    /// Such a line; a length that is none; documents without any target.
    pub fn new(docs: Arc<Documents>, options: PackOptions) -> Result<Packer, Error> {
        let packer = Packer::cut(docs, options)?;
        match packer.targets {
            0 => Err(Packer::no_targets(packer.docs.len() as u64)),
            _ => Ok(packer),
        }
    }

    /// The same for documents that may be without targets, or none: a part of a data set.
    pub(crate) fn cut(docs: Arc<Documents>, options: PackOptions) -> Result<Packer, Error> {
        options.check()?;
        let PackOptions { seq_len, .. } = options;
        let (mut pieces, mut targets) = (Vec::new(), 0);
        for (i, doc) in docs.iter().enumerate() {
            let len = doc.tokens.len();
            if doc.labels.is_some() && len > seq_len {
                let problem = format!(
                    "this pre-tokenized line has {len} tokens, more than --seq-len {seq_len}; raise --seq-len or \
                     shorten the line (lines are not cut, since their labels belong together)"
                );
                return Err(Error::At { origin: docs.origin(doc), problem });
            }
            for start in (0..len).step_by(seq_len) {
                let end = (start + seq_len).min(len);
                pieces.push(Piece { doc: i as u32, len: (end - start) as u32, start: start as u64 });
                targets += doc.targets(start, end);
            }
        }
        Ok(Packer { docs, options, pieces, targets })
    }

    /// The error of so many documents in which there is nothing to learn.
    pub(crate) fn no_targets(documents: u64) -> Error {
        Error::Invalid(format!(
            "the data has no target to learn in {documents} documents: texts need two tokens, pre-tokenized lines a label \
             other than {IGNORE} after the first place"
        ))
    }

    /// The options.
    pub fn options(&self) -> &PackOptions {
        &self.options
    }

    /// The documents.
    pub fn documents(&self) -> &Arc<Documents> {
        &self.docs
    }

    /// Places with a target in an epoch.
    pub fn targets(&self) -> u64 {
        self.targets
    }

    /// Lays out an epoch, counted from 0: a function of documents, options and `epoch` alone.
    ///
    /// Shuffled, each piece goes into the open sequence that it fills best, the oldest of equals. In file order, a
    /// sequence is closed as soon as the next piece does not fit, so that the order of documents is kept.
    pub fn epoch(&self, epoch: u64) -> Epoch {
        let mut pieces = self.pieces.clone();
        if self.options.shuffle {
            Random::new(self.options.seed, epoch).shuffle(&mut pieces);
        }
        if let Some(pieces_at_a_time) = self.options.group_by_length {
            for group in pieces.chunks_mut(pieces_at_a_time.max(1)) {
                group.sort_by_key(|piece| std::cmp::Reverse(piece.len));
            }
        }
        // For each piece in this order, its sequence; then a stable grouping by sequence.
        let mut open: BTreeMap<u32, VecDeque<u32>> = BTreeMap::new();
        let (mut count, mut of_piece) = (0u32, Vec::with_capacity(pieces.len()));
        for piece in &pieces {
            let alone = match self.docs.get(piece.doc as usize).labels {
                Some(_) => !self.options.pack_lines,
                None => !self.options.pack_texts,
            };
            let fit = open.range_mut(piece.len..).next().filter(|_| !alone).map(|(&space, at)| (space, at.pop_front()));
            let (space, sequence) = match fit {
                Some((space, Some(sequence))) => {
                    if open.get(&space).is_some_and(VecDeque::is_empty) {
                        open.remove(&space);
                    }
                    (space, sequence)
                }
                _ => {
                    if !self.options.shuffle {
                        open.clear();
                    }
                    count += 1;
                    (self.options.seq_len as u32, count - 1)
                }
            };
            of_piece.push(sequence);
            if !alone && space > piece.len {
                open.entry(space - piece.len).or_default().push_back(sequence);
            }
        }
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_key(|&i| of_piece[i]);
        let mut first = vec![0usize; count as usize + 1];
        for &sequence in &of_piece {
            first[sequence as usize + 1] += 1;
        }
        for i in 0..count as usize {
            first[i + 1] += first[i];
        }
        let pieces = order.into_iter().map(|i| pieces[i]).collect();
        Epoch { docs: self.docs.clone(), pieces, first }
    }
}

/// The sequences of one epoch, built one at a time.
#[derive(Clone, Debug)]
pub struct Epoch {
    docs: Arc<Documents>,
    pieces: Vec<Piece>,
    /// First piece of each sequence, and the number of pieces at the end.
    first: Vec<usize>,
}

impl Epoch {
    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.first.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The documents.
    pub fn documents(&self) -> &Arc<Documents> {
        &self.docs
    }

    /// Builds the sequence at an index below [`Epoch::len`].
    pub fn sequence(&self, index: usize) -> Sequence {
        let mut sequence = Sequence::default();
        for piece in &self.pieces[self.first[index]..self.first[index + 1]] {
            let start = piece.start as usize;
            sequence.push(self.docs.get(piece.doc as usize), start, start + piece.len as usize);
        }
        sequence
    }

    /// What the sequence at an index is made of, in order: indices of documents and the places there.
    pub fn parts(&self, index: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let pieces = &self.pieces[self.first[index]..self.first[index + 1]];
        pieces.iter().map(|piece| (piece.doc as usize, piece.start as usize..piece.start as usize + piece.len as usize))
    }
}
