//! Llama 2, 3, 3.1, 3.2 and what shares their form (SmolLM2, TinyLlama, ...).

use super::windowed_layers;
use crate::blocks::{Defaults, Family};
use crate::hf::Keys;
use crate::{ConfigError, DenseBlock, ModelConfig};
use serde_json::{Map, Value};

/// The family.
pub const FAMILY: Family = Family {
    model_type: "llama",
    architecture: "LlamaForCausalLM",
    activations: &["silu", "swish"],
    defaults: Defaults {
        hidden: 4096,
        intermediate: 11008,
        layers: 32,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        vocab: 32000,
        max_positions: 2048,
    },
    configure,
    describe,
    block: |config| Box::new(DenseBlock::new(config)),
};

fn configure(keys: &Keys, config: &mut ModelConfig) -> Result<(), ConfigError> {
    let bias = keys.flag("attention_bias")?;
    (config.qkv_bias, config.o_bias, config.mlp_bias) = (bias, bias, keys.flag("mlp_bias")?);
    if windowed_layers(keys)?.is_some_and(|windowed| windowed.contains(&true)) {
        return Err(keys.unsupported("layer_types", "this family has full attention only"));
    }
    Ok(())
}

fn describe(config: &ModelConfig, map: &mut Map<String, Value>) {
    map.insert("attention_bias".into(), config.qkv_bias.into());
    map.insert("mlp_bias".into(), config.mlp_bias.into());
}
