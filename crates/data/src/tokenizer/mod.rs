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

/// Turns text into token ids and back.
pub trait TextTokenizer: Send + Sync {
    /// Token ids of a text, with exactly one begin token in front where the model expects one, and no end token.
    fn encode(&self, text: &str) -> Result<Vec<i32>, Error>;

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
