//! Mistral: no biases; every layer may have the same attention window.

use super::{refuse_flag, windowed_layers};
use crate::blocks::{Defaults, Family};
use crate::hf::Keys;
use crate::{ConfigError, DenseBlock, ModelConfig};
use serde_json::{Map, Value};

/// The family.
pub const FAMILY: Family = Family {
    model_type: "mistral",
    architecture: "MistralForCausalLM",
    activations: &["silu", "swish"],
    defaults: Defaults {
        hidden: 4096,
        intermediate: 14336,
        layers: 32,
        heads: 32,
        kv_heads: Some(8),
        head_dim: None,
        vocab: 32000,
        max_positions: 131_072,
    },
    configure,
    describe,
    block: |config| Box::new(DenseBlock::new(config)),
};

fn configure(keys: &Keys, config: &mut ModelConfig) -> Result<(), ConfigError> {
    refuse_flag(keys, "attention_bias", "this family has no biases")?;
    refuse_flag(keys, "mlp_bias", "this family has no biases")?;
    if windowed_layers(keys)?.is_some() {
        return Err(keys.unsupported("layer_types", "in this family all layers share sliding_window"));
    }
    if !keys.is_null("sliding_window") {
        config.sliding_window = Some(keys.count("sliding_window")?.unwrap_or(4096));
    }
    Ok(())
}

fn describe(config: &ModelConfig, map: &mut Map<String, Value>) {
    map.insert("sliding_window".into(), config.sliding_window.into());
}
