//! From text to token ids and back: what every tokenizer offers, and the two there are.

mod byte;
#[cfg(feature = "tokenizer")]
mod huggingface;
#[cfg(feature = "tokenizer")]
mod special;

pub use byte::ByteTokenizer;
#[cfg(feature = "tokenizer")]
pub use huggingface::Tokenizer;

use crate::error::Error;
use rayon::prelude::*;

/// A token and what it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The token's id.
    pub id: i32,
    /// Where its text begins, in bytes.
    pub start: usize,
    /// Where its text ends, in bytes. Tokens that share a character each have all of it.
    pub end: usize,
}

/// Turns text into token ids and back.
pub trait TextTokenizer: Send + Sync {
    /// Token ids of a text, with exactly one begin token in front where the model expects one, and no end token.
    fn encode(&self, text: &str) -> Result<Vec<i32>, Error>;

    /// The tokens of a text as it stands, in order: nothing is put in front, spelled special tokens are themselves.
    fn pieces(&self, text: &str) -> Result<Vec<Piece>, Error>;

    /// The token that [`TextTokenizer::encode`] puts in front of every text, if it does.
    fn begin_id(&self) -> Option<i32>;

    /// Ids and spellings of the tokens that a model gives a meaning of their own, such as the end of a text.
    fn special_tokens(&self) -> Vec<(i32, String)>;

    /// The text of token ids, special tokens left out. Bytes that are not UTF-8 become U+FFFD.
    fn decode(&self, ids: &[i32]) -> Result<String, Error>;

    /// One more than the largest id there is; a model's vocabulary may be larger, not smaller.
    fn vocab_size(&self) -> usize;

    /// The token that begins a text, where the model expects one.
    fn bos_id(&self) -> Option<i32>;

    /// The token that ends a text: what is appended to documents.
    fn eos_id(&self) -> Option<i32>;

    /// Every token that ends a generated answer; [`TextTokenizer::eos_id`] among them.
    fn stop_ids(&self) -> &[i32];

    /// [`TextTokenizer::encode`] on many texts in parallel, in order. The first failing text's error is returned.
    fn encode_batch(&self, texts: &[String]) -> Result<Vec<Vec<i32>>, Error> {
        let results: Vec<_> = texts.par_iter().map(|text| self.encode(text)).collect();
        results.into_iter().collect()
    }
}
