//! The model families, one file each: what their `config.json` may say and which block they use.

pub mod llama;
pub mod mistral;
pub mod qwen2;
pub mod qwen3;

use crate::ConfigError;
use crate::hf::Keys;

/// Refuses a switch that this family's block has not got.
fn refuse_flag(keys: &Keys, key: &str, why: &str) -> Result<(), ConfigError> {
    if keys.flag(key)? { Err(keys.unsupported(key, why)) } else { Ok(()) }
}

/// The kinds of `layer_types`, if given: whether each layer's attention is windowed.
fn windowed_layers(keys: &Keys) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some(value) = keys.get("layer_types") else { return Ok(None) };
    let kinds = value.as_array().ok_or_else(|| keys.invalid("layer_types", "a list of strings"))?;
    let windowed = kinds.iter().map(|kind| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(keys.unsupported("layer_types", "known: full_attention, sliding_attention")),
    });
    windowed.collect::<Result<_, _>>().map(Some)
}

/// The window of the Qwen families: `sliding_window` holds where `use_sliding_window` is set, for the layers that
/// `layer_types` names, or else for those from `max_window_layers` on.
fn qwen_window(keys: &Keys, layers: usize) -> Result<Option<usize>, ConfigError> {
    let from_layer = keys.count("max_window_layers")?.unwrap_or(28);
    let any = windowed_layers(keys)?.map_or(from_layer < layers, |windowed| windowed.contains(&true));
    let window =
        if keys.is_null("sliding_window") { None } else { Some(keys.count("sliding_window")?.unwrap_or(4096)) };
    Ok(if keys.flag("use_sliding_window")? && any { window } else { None })
}

/// The keys that [`qwen_window`] reads.
fn describe_qwen_window(window: Option<usize>, map: &mut serde_json::Map<String, serde_json::Value>) {
    map.insert("use_sliding_window".into(), window.is_some().into());
    map.insert("sliding_window".into(), window.into());
    if window.is_some() {
        map.insert("max_window_layers".into(), 0.into());
    }
}
