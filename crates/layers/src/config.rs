//! [`ModelConfig`]: the numbers that describe a model.

use crate::ConfigError;
use megatrain_ops::RopeParams;

/// The numbers that describe a dense decoder-only model. Read from a Hugging Face `config.json` with
/// [`ModelConfig::from_hf`] or taken from [`ModelConfig::preset`].
#[derive(Clone, PartialEq, Debug)]
pub struct ModelConfig {
    /// Family, as Hugging Face names it: a `model_type` of [`crate::FAMILIES`].
    pub model_type: String,
    /// D: width of the residual stream.
    pub hidden: usize,
    /// I: width of the feed-forward layer.
    pub intermediate: usize,
    /// Number of blocks.
    pub layers: usize,
    /// H: query heads.
    pub heads: usize,
    /// K: key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// A: elements a head; a multiple of 8. `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// V: rows of the embedding table.
    pub vocab: usize,
    /// Added to the mean square in every norm.
    pub rms_eps: f32,
    /// Rotary positions.
    pub rope: RopeParams,
    /// Biases on the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias on attention's output projection.
    pub o_bias: bool,
    /// Biases on gate, up and down projections.
    pub mlp_bias: bool,
    /// RMS norms of each query and key head.
    pub qk_norm: bool,
    /// The vocabulary projection is the embedding table.
    pub tied: bool,
    /// Longest document the model was made for; nothing here enforces it.
    pub max_positions: usize,
    /// Standard deviation of new weights.
    pub init_std: f32,
    /// Tokens that a token may look back on, itself included. The templates compute full attention, which is the same for
    /// documents up to this length: see [`ModelConfig::check_context`].
    pub sliding_window: Option<usize>,
}

impl ModelConfig {
    /// Parameters, a tied matrix counted once.
    pub fn params(&self) -> u64 {
        crate::units(self).iter().map(|unit| unit.layout.params()).sum()
    }

    /// Floating-point operations to train on one token of documents of `seq_len` tokens: forward and backward, without
    /// recomputation; matrix products and attention only, as is usual for model FLOP/s.
    ///
    /// Each weight of a matrix product costs 2 forward and 4 backward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1);
    /// the embedding lookup costs nothing, the vocabulary projection counts even if tied. A causal token sees
    /// `(seq_len + 1) / 2` keys on average, each costing `4 H A` forward and twice that backward.
    pub fn flops_per_token(&self, seq_len: usize) -> f64 {
        let (d, i, a) = (self.hidden as f64, self.intermediate as f64, self.head_dim as f64);
        let (h, k) = (self.heads as f64, self.kv_heads as f64);
        let block = d * a * (2.0 * h + 2.0 * k) + 3.0 * d * i;
        let attention = 4.0 * h * a * (seq_len as f64 + 1.0) / 2.0;
        6.0 * (self.layers as f64 * block + d * self.vocab as f64) + 3.0 * self.layers as f64 * attention
    }

    /// Whether documents of `longest` tokens are computed as the model defines them.
    ///
    /// # Errors
    /// If the model's attention window is shorter.
    pub fn check_context(&self, longest: usize) -> Result<(), ConfigError> {
        match self.sliding_window {
            Some(window) if window < longest => Err(ConfigError::Unsupported {
                key: "sliding_window".into(),
                given: window.to_string(),
                why: format!(
                    "sequences of {longest} tokens would need windowed attention; use at most {window} tokens"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Whether the numbers fit together.
    ///
    /// # Errors
    /// Names the first key that does not fit, as `config.json` calls it.
    pub fn check(&self) -> Result<(), ConfigError> {
        let limit = 1 << 20;
        let sizes = [
            ("hidden_size", self.hidden, limit),
            ("intermediate_size", self.intermediate, limit),
            ("num_hidden_layers", self.layers, 1 << 16),
            ("num_attention_heads", self.heads, limit),
            ("num_key_value_heads", self.kv_heads, limit),
            ("head_dim", self.head_dim, limit),
            ("vocab_size", self.vocab, i32::MAX as usize),
            ("max_position_embeddings", self.max_positions, i32::MAX as usize),
        ];
        for (key, size, limit) in sizes {
            require((1..=limit).contains(&size), key, size, format!("a whole number from 1 to {limit}"))?;
        }
        require(
            self.heads.is_multiple_of(self.kv_heads),
            "num_key_value_heads",
            self.kv_heads,
            format!("a divisor of num_attention_heads = {}", self.heads),
        )?;
        require(self.head_dim.is_multiple_of(8), "head_dim", self.head_dim, "a multiple of 8".into())?;
        require(
            self.heads * self.head_dim <= limit,
            "num_attention_heads",
            self.heads,
            format!("at most {limit} elements in all heads"),
        )?;
        require(
            self.rms_eps > 0.0 && self.rms_eps < 1.0,
            "rms_norm_eps",
            self.rms_eps,
            "a number between 0 and 1, e.g. 1e-5".into(),
        )?;
        require(
            self.init_std >= 0.0 && self.init_std.is_finite(),
            "initializer_range",
            self.init_std,
            "a number that is not negative".into(),
        )?;
        require(self.sliding_window != Some(0), "sliding_window", 0, "null or a whole number of at least 1".into())
    }
}

fn require(ok: bool, key: &str, given: impl ToString, expected: String) -> Result<(), ConfigError> {
    if ok { Ok(()) } else { Err(ConfigError::Invalid { key: key.into(), given: given.to_string(), expected }) }
}
