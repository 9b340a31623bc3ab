//! Named sizes, for models with random weights. One line each.

use crate::ModelConfig;
use megatrain_ops::{RopeParams, RopeScaling};

/// `[hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_positions]`
type Sizes = [usize; 8];

struct Preset {
    name: &'static str,
    model_type: &'static str,
    sizes: Sizes,
    eps: f32,
    theta: f64,
    /// Llama 3's `factor`, if it scales its frequencies.
    llama3_factor: Option<f64>,
    tied: bool,
    init_std: f32,
}

const fn preset(
    name: &'static str,
    model_type: &'static str,
    sizes: Sizes,
    eps: f32,
    theta: f64,
    tied: bool,
) -> Preset {
    Preset { name, model_type, sizes, eps, theta, llama3_factor: None, tied, init_std: 0.02 }
}

impl Preset {
    const fn llama3(self, factor: f64) -> Self {
        Preset { llama3_factor: Some(factor), ..self }
    }
    const fn init_std(self, init_std: f32) -> Self {
        Preset { init_std, ..self }
    }
}

/// The sizes are those of the published `config.json` files; `demo` is ours: 1.6 million parameters over bytes and a few
/// special tokens.
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    preset("demo", "llama", [192, 512, 4, 6, 2, 32, 264, 1024], 1e-5, 1e4, true).init_std(0.05),
    preset("smollm2-135m", "llama", [576, 1536, 30, 9, 3, 64, 49152, 8192], 1e-5, 1e5, true).init_std(1.0 / 24.0),
    preset("smollm2-360m", "llama", [960, 2560, 32, 15, 5, 64, 49152, 8192], 1e-5, 1e5, true),
    preset("smollm2-1.7b", "llama", [2048, 8192, 24, 32, 32, 64, 49152, 8192], 1e-5, 1.3e5, true),
    preset("llama-2-7b", "llama", [4096, 11008, 32, 32, 32, 128, 32000, 4096], 1e-5, 1e4, false),
    preset("llama-2-13b", "llama", [5120, 13824, 40, 40, 40, 128, 32000, 4096], 1e-5, 1e4, false),
    preset("llama-3.1-8b", "llama", [4096, 14336, 32, 32, 8, 128, 128256, 131072], 1e-5, 5e5, false).llama3(8.0),
    preset("llama-3.1-70b", "llama", [8192, 28672, 80, 64, 8, 128, 128256, 131072], 1e-5, 5e5, false).llama3(8.0),
    preset("llama-3.2-1b", "llama", [2048, 8192, 16, 32, 8, 64, 128256, 131072], 1e-5, 5e5, true).llama3(32.0),
    preset("llama-3.2-3b", "llama", [3072, 8192, 28, 24, 8, 128, 128256, 131072], 1e-5, 5e5, true).llama3(32.0),
    preset("mistral-7b", "mistral", [4096, 14336, 32, 32, 8, 128, 32768, 32768], 1e-5, 1e6, false),
    preset("qwen2.5-0.5b", "qwen2", [896, 4864, 24, 14, 2, 64, 151936, 32768], 1e-6, 1e6, true),
    preset("qwen2.5-1.5b", "qwen2", [1536, 8960, 28, 12, 2, 128, 151936, 131072], 1e-6, 1e6, true),
    preset("qwen2.5-3b", "qwen2", [2048, 11008, 36, 16, 2, 128, 151936, 32768], 1e-6, 1e6, true),
    preset("qwen2.5-7b", "qwen2", [3584, 18944, 28, 28, 4, 128, 152064, 131072], 1e-6, 1e6, false),
    preset("qwen2.5-14b", "qwen2", [5120, 13824, 48, 40, 8, 128, 152064, 131072], 1e-5, 1e6, false),
    preset("qwen2.5-32b", "qwen2", [5120, 27648, 64, 40, 8, 128, 152064, 131072], 1e-5, 1e6, false),
    preset("qwen2.5-72b", "qwen2", [8192, 29568, 80, 64, 8, 128, 152064, 131072], 1e-5, 1e6, false),
    preset("qwen3-0.6b", "qwen3", [1024, 3072, 28, 16, 8, 128, 151936, 40960], 1e-6, 1e6, true),
    preset("qwen3-1.7b", "qwen3", [2048, 6144, 28, 16, 8, 128, 151936, 40960], 1e-6, 1e6, true),
    preset("qwen3-4b", "qwen3", [2560, 9728, 36, 32, 8, 128, 151936, 40960], 1e-6, 1e6, true),
    preset("qwen3-8b", "qwen3", [4096, 12288, 36, 32, 8, 128, 151936, 40960], 1e-6, 1e6, false),
    preset("qwen3-14b", "qwen3", [5120, 17408, 40, 40, 8, 128, 151936, 40960], 1e-6, 1e6, false),
];

/// The names that [`ModelConfig::preset`] knows, small models of a family first.
pub fn preset_names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|preset| preset.name)
}

impl ModelConfig {
    /// The configuration of this name; see [`preset_names`].
    pub fn preset(name: &str) -> Option<Self> {
        let p = PRESETS.iter().find(|preset| preset.name == name)?;
        let [hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_positions] = p.sizes;
        let scaling = p.llama3_factor.map_or(RopeScaling::Default, |factor| RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        });
        Some(ModelConfig {
            model_type: p.model_type.into(),
            hidden,
            intermediate,
            layers,
            heads,
            kv_heads,
            head_dim,
            vocab,
            rms_eps: p.eps,
            rope: RopeParams { theta: p.theta, scaling },
            qkv_bias: p.model_type == "qwen2",
            o_bias: false,
            mlp_bias: false,
            qk_norm: p.model_type == "qwen3",
            tied: p.tied,
            max_positions,
            init_std: p.init_std,
            sliding_window: None,
        })
    }
}
