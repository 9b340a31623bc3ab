//! From files of text or token ids to the token arrays of one micro-batch.
//!
//! [`read()`] turns paths into [`Documents`], [`Packer`] cuts, shuffles and packs those into [`Sequence`]s of a length,
//! [`Batches`] hands them out step by step and can be resumed, [`MicroBatch`] lays some of them into arrays of a fixed
//! size. [`StreamBatches`] does all of it with data that is read meanwhile. Everything is a function of the files, the options
//! and the seed: never of time or the number of threads.
//!
//! This crate knows nothing of models, memory plans or devices.

mod batches;
mod cache;
pub mod chat;
mod conversation;
mod document;
mod error;
mod micro;
mod pack;
mod random;
mod read;
mod skip;
mod stream;
pub mod tokenizer;
mod words;

pub use batches::{Batches, Position, StepBatch};
pub use cache::{CacheKey, KeyBuilder, TokenCache, TokenWriter};
pub use chat::{ChatEncoder, ChatFiles, ChatOptions, ChatReport, Encoded, SkipReason};
pub use conversation::{Conversation, Message, Role, Sample};
pub use document::{Document, Documents, DocumentsBuilder, IGNORE};
pub use error::{Error, Origin};
pub use micro::MicroBatch;
pub use pack::{Epoch, PackOptions, Packer, Sequence};
pub use random::Random;
pub use read::{
    AlpacaColumns, DataSource, Format, MessageColumns, Mix, ReadOptions, ReadReport, Registry, SampleOptions, Samples,
    SourceReport, Tags, read,
};
pub use skip::{MAX_LISTED_SKIPS, Skip, Skips};
pub use stream::{DocumentSource, Room, StreamBatches, StreamOptions};
#[cfg(feature = "tokenizer")]
pub use tokenizer::Tokenizer;
pub use tokenizer::{ByteTokenizer, Piece, TextTokenizer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
