//! Layer templates of dense decoder-only language models: what a block computes, forward and backward, as a list of ops.
//!
//! A template is stateless. It knows its dimensions, names its weights as the checkpoint does, and pushes ops
//! ([`megatrain_ops::Op`]) on *symbolic* buffers into an [`Emitter`]. It never holds a pointer, a lane, a weight or an
//! activation: whoever plans the run decides where buffers lie, when they are copied and on what the ops run.
//! Backward passes are derived by hand and say which activations they need ([`Activations`]).
//!
//! Shape letters in this crate: T tokens (all documents of a micro-batch, packed), D hidden size, I intermediate size,
//! H query heads, K key/value heads, A elements a head, V vocabulary.
//!
//! To add a model family: one file (see [`families::llama`] for the smallest) and one line in [`blocks`].

pub mod attention;
pub mod block;
pub mod blocks;
pub mod config;
pub mod dense;
pub mod emit;
pub mod error;
pub mod families;
pub mod head;
pub mod hf;
pub mod linear;
pub mod mlp;
pub mod model;
pub mod presets;

pub use attention::SelfAttention;
pub use block::{Activations, Block, Init, SavedSpec, TokenCtx};
pub use blocks::{FAMILIES, Family, block_for};
pub use config::ModelConfig;
pub use dense::DenseBlock;
pub use emit::{Emitter, fuse};
pub use error::ConfigError;
pub use head::Head;
pub use mlp::GatedMlp;
pub use model::{UnitKind, UnitSpec, units};
pub use presets::preset_names;

// The types that this crate's signatures are made of.
pub use megatrain_base::{DType, RegionId, Shape, SlabLayout, Tensor};
pub use megatrain_ops::{Op, RopeParams, RopeScaling};

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
