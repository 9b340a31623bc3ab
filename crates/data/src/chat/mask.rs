//! From bytes of text to tokens: which are learnt; and special tokens that a text spells.

use crate::tokenizer::Piece;
use std::ops::Range;

/// Which tokens are learnt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mask {
    /// One for each token.
    pub learn: Vec<bool>,
    /// Learnt tokens that also hold text from outside.
    pub straddling: u64,
}

impl Mask {
    /// Every token that has text in one of the spans, as transformers decides it: one that straddles a border is learnt,
    /// for else the first or last letters of an answer would be lost. Spans are in order.
    pub fn new(pieces: &[Piece], spans: &[Range<usize>]) -> Mask {
        let mut mask = Mask { learn: Vec::with_capacity(pieces.len()), straddling: 0 };
        let mut spans = spans.iter().peekable();
        for piece in pieces {
            while spans.next_if(|span| span.end <= piece.start).is_some() {}
            let span = spans.peek().filter(|span| piece.end > span.start);
            mask.learn.push(span.is_some());
            mask.straddling += u64::from(span.is_some_and(|s| piece.start < s.start || piece.end > s.end));
        }
        mask
    }
}

/// Finds special tokens that a text spells.
#[derive(Clone, Debug, Default)]
pub(super) struct SpecialSpellings {
    /// By first byte, so that most places of a text cost one look-up.
    by_first: Vec<Vec<String>>,
}

impl SpecialSpellings {
    pub fn new(tokens: impl IntoIterator<Item = (i32, String)>) -> SpecialSpellings {
        let mut by_first = vec![Vec::new(); 256];
        for (_, spelling) in tokens {
            if let Some(&first) = spelling.as_bytes().first() {
                by_first[first as usize].push(spelling);
            }
        }
        // The longest first: it is the one that a tokenizer takes.
        by_first.iter_mut().for_each(|list| list.sort_by_key(|spelling| std::cmp::Reverse(spelling.len())));
        SpecialSpellings { by_first }
    }

    /// How many there are in a text.
    pub fn count(&self, text: &str) -> u64 {
        let (bytes, mut at, mut count) = (text.as_bytes(), 0, 0);
        while at < bytes.len() {
            let candidates = self.by_first.get(bytes[at] as usize).map_or(&[][..], Vec::as_slice);
            match candidates.iter().find(|spelling| bytes[at..].starts_with(spelling.as_bytes())) {
                Some(spelling) => {
                    count += 1;
                    at += spelling.len();
                }
                None => at += 1,
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_learnt_by_overlap() {
        let pieces: Vec<Piece> = [(0, 2), (2, 5), (5, 5), (5, 6), (6, 9), (9, 10)]
            .into_iter()
            .map(|(start, end)| Piece { id: 0, start, end })
            .collect();
        let check = |spans: &[Range<usize>], learn: [u8; 6], straddling| {
            let mask = Mask::new(&pieces, spans);
            assert_eq!(mask.learn, learn.map(|bit| bit == 1), "{spans:?}");
            assert_eq!(mask.straddling, straddling, "{spans:?}");
        };
        check(&[], [0; 6], 0);
        check(&[0..10], [1; 6], 0);
        check(&[2..5], [0, 1, 0, 0, 0, 0], 0);
        check(&[3..7], [0, 1, 1, 1, 1, 0], 2);
        check(&[0..1, 6..6, 9..10], [1, 0, 0, 0, 0, 1], 1);
        check(&[0..2, 6..9], [1, 0, 0, 0, 1, 0], 0);
    }

    #[test]
    fn special_tokens_are_counted_once_each() {
        let special = SpecialSpellings::new([(0, "<a>".to_owned()), (1, "<a><b>".to_owned()), (2, "é".to_owned())]);
        assert_eq!(special.count("x<a><b><a>é<a"), 3);
        assert_eq!(SpecialSpellings::default().count("<a>"), 0);
    }
}
