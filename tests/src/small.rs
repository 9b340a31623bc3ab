//! Models small enough to train in milliseconds: the golden families' shapes with more blocks, random weights.

use crate::golden::Golden;
use megatrain_layers::ModelConfig;
use megatrain_planner::Model;
use megatrain_trainer::setup::Source;
use std::sync::Arc;

/// A golden family's model with `layers` blocks and weights that are large enough for every gradient to matter.
pub fn family(name: &str, layers: usize) -> Source {
    from_config(ModelConfig { layers, init_std: 0.2, ..Golden::open(name).config().clone() })
}

/// Random weights in a model of this configuration.
pub fn from_config(config: ModelConfig) -> Source {
    Source { model: Arc::new(Model::new(&config)), dir: None, config: config.to_hf(), tokenizer: None }
}
