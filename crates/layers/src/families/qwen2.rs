//! Qwen2 and Qwen2.5: biases on q, k and v.

use super::{describe_qwen_window, qwen_window, refuse_flag};
use crate::blocks::{Defaults, Family};
use crate::hf::Keys;
use crate::{ConfigError, DenseBlock, ModelConfig};
use serde_json::{Map, Value};

/// The family.
pub const FAMILY: Family = Family {
    model_type: "qwen2",
    architecture: "Qwen2ForCausalLM",
    activations: &["silu", "swish"],
    defaults: Defaults {
        hidden: 4096,
        intermediate: 22016,
        layers: 32,
        heads: 32,
        kv_heads: Some(32),
        head_dim: None,
        vocab: 151_936,
        max_positions: 32_768,
    },
    configure,
    describe,
    block: |config| Box::new(DenseBlock::new(config)),
};

fn configure(keys: &Keys, config: &mut ModelConfig) -> Result<(), ConfigError> {
    refuse_flag(keys, "mlp_bias", "this family has biases on q, k and v only")?;
    config.qkv_bias = true;
    config.sliding_window = qwen_window(keys, config.layers)?;
    Ok(())
}

fn describe(config: &ModelConfig, map: &mut Map<String, Value>) {
    describe_qwen_window(config.sliding_window, map);
}
