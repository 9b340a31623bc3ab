//! Qwen3 (dense): norms of each query and key head, a head size of its own, biases only on request.

use super::{describe_qwen_window, qwen_window, refuse_flag};
use crate::blocks::{Defaults, Family};
use crate::hf::Keys;
use crate::{ConfigError, DenseBlock, ModelConfig};
use serde_json::{Map, Value};

/// The family.
pub const FAMILY: Family = Family {
    model_type: "qwen3",
    architecture: "Qwen3ForCausalLM",
    activations: &["silu", "swish"],
    defaults: Defaults {
        hidden: 4096,
        intermediate: 22016,
        layers: 32,
        heads: 32,
        kv_heads: Some(32),
        head_dim: Some(128),
        vocab: 151_936,
        max_positions: 32_768,
    },
    configure,
    describe,
    block: |config| Box::new(DenseBlock::new(config)),
};

fn configure(keys: &Keys, config: &mut ModelConfig) -> Result<(), ConfigError> {
    refuse_flag(keys, "mlp_bias", "this family has biases in attention only")?;
    let bias = keys.flag("attention_bias")?;
    (config.qkv_bias, config.o_bias, config.qk_norm) = (bias, bias, true);
    config.sliding_window = qwen_window(keys, config.layers)?;
    Ok(())
}

fn describe(config: &ModelConfig, map: &mut Map<String, Value>) {
    map.insert("attention_bias".into(), config.qkv_bias.into());
    describe_qwen_window(config.sliding_window, map);
}
