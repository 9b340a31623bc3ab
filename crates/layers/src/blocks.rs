//! The list of model families: one line each.

use crate::hf::Keys;
use crate::{Block, ConfigError, ModelConfig, families};
use serde_json::{Map, Value};

/// Every family there is a template for.
pub static FAMILIES: &[Family] =
    &[families::llama::FAMILY, families::mistral::FAMILY, families::qwen2::FAMILY, families::qwen3::FAMILY];

/// A model family: how its configuration is read and what its block is.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// The entry of `architectures` in `config.json`.
    pub architecture: &'static str,
    /// The values of `hidden_act` that name the block's activation function; the first is written.
    pub activations: &'static [&'static str],
    /// What absent keys mean.
    pub defaults: Defaults,
    /// Reads the keys of its own into the configuration, and refuses those that its block does not compute.
    pub configure: fn(&Keys, &mut ModelConfig) -> Result<(), ConfigError>,
    /// Writes the keys of its own.
    pub describe: fn(&ModelConfig, &mut Map<String, Value>),
    /// Its block.
    pub block: fn(&ModelConfig) -> Box<dyn Block>,
}

/// What absent keys of `config.json` mean, where families differ.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Defaults {
    /// `hidden_size`
    pub hidden: usize,
    /// `intermediate_size`
    pub intermediate: usize,
    /// `num_hidden_layers`
    pub layers: usize,
    /// `num_attention_heads`
    pub heads: usize,
    /// `num_key_value_heads`; as many as query heads if none.
    pub kv_heads: Option<usize>,
    /// `head_dim`; `hidden_size / num_attention_heads` if none.
    pub head_dim: Option<usize>,
    /// `vocab_size`
    pub vocab: usize,
    /// `max_position_embeddings`
    pub max_positions: usize,
}

impl Family {
    /// The family of this `model_type`.
    pub fn find(model_type: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.model_type == model_type)
    }
}

/// The block of a model.
///
/// # Panics
/// If `model_type` is none of [`FAMILIES`]. [`ModelConfig::from_hf`] and [`ModelConfig::preset`] make no such thing.
pub fn block_for(config: &ModelConfig) -> Box<dyn Block> {
    let family = Family::find(&config.model_type);
    let family = family.unwrap_or_else(|| panic!("no family `{}`; from_hf lists the known ones", config.model_type));
    (family.block)(config)
}
