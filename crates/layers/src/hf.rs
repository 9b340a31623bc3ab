//! Hugging Face's `config.json`, read into a [`ModelConfig`] and written from one.
//!
//! Absent keys mean what transformers' configuration classes say (version 5.24; each family states its own). What the
//! templates cannot compute is refused by the key's name, never ignored. Keys that do not change the computation
//! (token ids, cache flags, dtype, ...) are not looked at. Both spellings are read: `rope_theta` with `rope_scaling`
//! (up to version 4) and `rope_parameters` (from 5 on). The older one is written: both versions read it.

use crate::{ConfigError, FAMILIES, Family, ModelConfig};
use megatrain_ops::{RopeParams, RopeScaling};
use serde_json::{Map, Value, json};

/// The keys of a JSON object, read with errors that name the key. `null` counts as absent.
#[derive(Clone, Debug)]
pub struct Keys<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Keys<'a> {
    /// The value of a key; none if absent or `null`.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is there and `null`.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// A key's value as `read` understands it.
    ///
    /// # Errors
    /// If `read` does not understand it.
    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.invalid(key, expected))
    }

    /// A whole number.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn count(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a whole number", |v| v.as_u64().and_then(|n| n.try_into().ok()))
    }

    /// A number.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// `true` or `false`; `false` if absent.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// A string.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An object, as keys of its own.
    ///
    /// # Errors
    /// If the value is something else.
    pub fn object(&self, key: &str) -> Result<Option<Keys<'a>>, ConfigError> {
        let path = format!("{}{key}.", self.path);
        Ok(self.typed(key, "an object", Value::as_object)?.map(|map| Keys { map, path }))
    }

    /// An error about a key's type or range.
    pub fn invalid(&self, key: &str, expected: &str) -> ConfigError {
        let given = self.map.get(key).map_or("missing".into(), Value::to_string);
        ConfigError::Invalid { key: format!("{}{key}", self.path), given, expected: expected.into() }
    }

    /// An error about a setting that the templates do not compute.
    pub fn unsupported(&self, key: &str, why: impl Into<String>) -> ConfigError {
        let given = self.map.get(key).map_or("missing".into(), Value::to_string);
        ConfigError::Unsupported { key: format!("{}{key}", self.path), given, why: why.into() }
    }
}

impl ModelConfig {
    /// Reads the contents of a `config.json`.
    ///
    /// # Errors
    /// If the family is unknown, a value is malformed, sizes do not fit together, or a setting asks for something that the
    /// templates do not compute.
    pub fn from_hf(json: &Value) -> Result<Self, ConfigError> {
        let keys = Keys { map: json.as_object().ok_or(ConfigError::NotAnObject)?, path: String::new() };
        let family = family_of(&keys)?;
        refuse_unsupported(&keys, family)?;

        let defaults = &family.defaults;
        let count = |key: &str, default: usize| Ok::<_, ConfigError>(keys.count(key)?.unwrap_or(default));
        let hidden = count("hidden_size", defaults.hidden)?;
        let heads = count("num_attention_heads", defaults.heads)?;
        let kv_default = if keys.is_null("num_key_value_heads") { None } else { defaults.kv_heads };
        let head_dim = match (keys.count("head_dim")?, defaults.head_dim) {
            (Some(given), _) | (None, Some(given)) => given,
            (None, None) if heads > 0 && hidden % heads == 0 => hidden / heads,
            (None, None) => {
                let expected = format!("a divisor of hidden_size = {hidden}, or head_dim to be given");
                return Err(keys.invalid("num_attention_heads", &expected));
            }
        };
        let max_positions = count("max_position_embeddings", defaults.max_positions)?;
        let mut config = ModelConfig {
            model_type: family.model_type.into(),
            hidden,
            intermediate: count("intermediate_size", defaults.intermediate)?,
            layers: count("num_hidden_layers", defaults.layers)?,
            heads,
            kv_heads: count("num_key_value_heads", kv_default.unwrap_or(heads))?,
            head_dim,
            vocab: count("vocab_size", defaults.vocab)?,
            rms_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            rope: read_rope(&keys, max_positions)?,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            tied: keys.flag("tie_word_embeddings")?,
            max_positions,
            init_std: keys.number("initializer_range")?.unwrap_or(0.02) as f32,
            sliding_window: None,
        };
        (family.configure)(&keys, &mut config)?;
        config.check()?;
        Ok(config)
    }

    /// The contents of a `config.json` that describes this model to transformers. The dtype is the exporter's to add.
    pub fn to_hf(&self) -> Value {
        let mut out = json!({
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "rms_norm_eps": shortest(self.rms_eps),
            "initializer_range": shortest(self.init_std),
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope.theta,
            "rope_scaling": write_scaling(&self.rope.scaling),
            "tie_word_embeddings": self.tied,
        });
        if let (Some(family), Value::Object(map)) = (Family::find(&self.model_type), &mut out) {
            map.insert("architectures".into(), json!([family.architecture]));
            map.insert("hidden_act".into(), json!(family.activations[0]));
            (family.describe)(self, map);
        }
        out
    }
}

/// The f64 with the fewest digits that is this f32: 1e-5 stays 1e-5.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// The family that `model_type` and `architectures` name.
fn family_of(keys: &Keys) -> Result<&'static Family, ConfigError> {
    let known = |name: fn(&Family) -> &'static str| FAMILIES.iter().map(name).collect::<Vec<_>>().join(", ");
    let architectures = match keys.get("architectures") {
        None => Vec::new(),
        Some(value) => value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>())
            .ok_or_else(|| keys.invalid("architectures", "a list of strings"))?,
    };
    let unknown_architecture = || ConfigError::Unknown {
        key: "architectures",
        given: architectures.join(", "),
        known: known(|f| f.architecture),
    };
    let family = match keys.text("model_type")? {
        Some(given) => Family::find(given).ok_or_else(|| ConfigError::Unknown {
            key: "model_type",
            given: given.into(),
            known: known(|f| f.model_type),
        })?,
        None if architectures.is_empty() => {
            return Err(ConfigError::NoModelType { known: known(|f| f.model_type) });
        }
        None => FAMILIES.iter().find(|f| architectures.contains(&f.architecture)).ok_or_else(unknown_architecture)?,
    };
    if architectures.is_empty() || architectures.contains(&family.architecture) {
        Ok(family)
    } else {
        Err(unknown_architecture())
    }
}

/// Settings that no family here computes.
fn refuse_unsupported(keys: &Keys, family: &Family) -> Result<(), ConfigError> {
    if keys.get("quantization_config").is_some() {
        let why = "training needs unquantized weights (f32, bf16 or f16)";
        return Err(keys.unsupported("quantization_config", why));
    }
    if keys.count("pretraining_tp")?.is_some_and(|n| n != 1) {
        return Err(keys.unsupported("pretraining_tp", "only 1 is"));
    }
    if keys.number("attention_dropout")?.is_some_and(|p| p != 0.0) {
        return Err(keys.unsupported("attention_dropout", "attention has no dropout; set it to 0.0"));
    }
    if keys.number("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(keys.unsupported("partial_rotary_factor", "rotary positions cover the whole head (1.0)"));
    }
    for key in ["hidden_act", "hidden_activation"] {
        if keys.text(key)?.is_some_and(|act| !family.activations.contains(&act)) {
            return Err(keys.unsupported(key, format!("only {} is", family.activations.join(" or "))));
        }
    }
    Ok(())
}

/// Frequencies from `rope_scaling` or `rope_parameters`, and `rope_theta` inside or beside them.
fn read_rope(keys: &Keys, max_positions: usize) -> Result<RopeParams, ConfigError> {
    let inner = match keys.object("rope_scaling")?.filter(|k| !k.map.is_empty()) {
        Some(inner) => Some(inner),
        None => keys.object("rope_parameters")?,
    };
    let outer_theta = keys.number("rope_theta")?;
    let positive = |keys: &Keys, key: &str, value: Option<f64>| match value {
        Some(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err(keys.invalid(key, "a number above 0")),
    };
    let Some(inner) = inner else {
        let theta = outer_theta.unwrap_or(10_000.0);
        return Ok(RopeParams { theta: positive(keys, "rope_theta", Some(theta))?, scaling: RopeScaling::Default });
    };
    let theta = match inner.number("rope_theta")? {
        Some(theta) => positive(&inner, "rope_theta", Some(theta))?,
        None => positive(keys, "rope_theta", Some(outer_theta.unwrap_or(10_000.0)))?,
    };
    if let Some((key, _)) = inner.map.iter().find(|(_, v)| v.is_object()) {
        return Err(inner.unsupported(key, "all layers share one set of rotary frequencies"));
    }
    if inner.number("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(inner.unsupported("partial_rotary_factor", "rotary positions cover the whole head (1.0)"));
    }
    let kind_key = if inner.get("rope_type").is_some() { "rope_type" } else { "type" };
    let scaling = match inner.text(kind_key)?.unwrap_or("default") {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: positive(&inner, "factor", inner.number("factor")?)? },
        "llama3" => {
            let original = inner.number("original_max_position_embeddings")?.unwrap_or(max_positions as f64);
            let scaling = RopeScaling::Llama3 {
                factor: positive(&inner, "factor", inner.number("factor")?)?,
                low_freq_factor: positive(&inner, "low_freq_factor", inner.number("low_freq_factor")?)?,
                high_freq_factor: positive(&inner, "high_freq_factor", inner.number("high_freq_factor")?)?,
                original_context: positive(&inner, "original_max_position_embeddings", Some(original))?,
            };
            if matches!(scaling, RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. } if high_freq_factor <= low_freq_factor)
            {
                return Err(inner.invalid("high_freq_factor", "a number above low_freq_factor"));
            }
            scaling
        }
        _ => return Err(inner.unsupported(kind_key, "known: default, linear, llama3")),
    };
    Ok(RopeParams { theta, scaling })
}

fn write_scaling(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::Default => Value::Null,
        RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": *original_context as u64,
        }),
    }
}
