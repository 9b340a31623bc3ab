//! What a model directory says about begin and end tokens, gathered from the three files that may say it.

use crate::error::{self, Error};
use serde_json::Value;
use std::path::Path;

/// The settings found, unresolved: names need the vocabulary.
#[derive(Debug, Default)]
pub(super) struct Special {
    /// Spelling of the begin token in `tokenizer_config.json`.
    pub bos_token: Option<String>,
    /// Spelling of the end token in `tokenizer_config.json`.
    pub eos_token: Option<String>,
    /// Whether `tokenizer_config.json` asks for a begin token, where it says so.
    pub add_bos: Option<bool>,
    /// The begin token's id in `config.json` or `generation_config.json`.
    pub bos_id: Option<i32>,
    /// End token ids of `generation_config.json` and `config.json`, which may each be one or several.
    pub eos_ids: Vec<i32>,
}

impl Special {
    /// Reads the files that are there; none is required.
    pub fn read(dir: &Path) -> Result<Special, Error> {
        let mut special = Special::default();
        if let Some(config) = read_json(&dir.join("tokenizer_config.json"))? {
            special.bos_token = spelling(&config, "bos_token");
            special.eos_token = spelling(&config, "eos_token");
            special.add_bos = config.get("add_bos_token").and_then(Value::as_bool);
        }
        for name in ["generation_config.json", "config.json"] {
            let path = dir.join(name);
            let Some(config) = read_json(&path)? else { continue };
            for id in ids(&path, &config, "eos_token_id")? {
                if !special.eos_ids.contains(&id) {
                    special.eos_ids.push(id);
                }
            }
            special.bos_id = special.bos_id.or(ids(&path, &config, "bos_token_id")?.first().copied());
        }
        Ok(special)
    }
}

/// Parses a JSON file; none where there is no such file.
fn read_json(path: &Path) -> Result<Option<Value>, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(error::io(path, "reading")(e)),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| error::file(path, format!("not valid JSON: {e}")))
}

/// A token is spelled as a string, or as an object with its `content`.
fn spelling(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

/// An id, a list of ids, null or nothing.
fn ids(path: &Path, config: &Value, key: &str) -> Result<Vec<i32>, Error> {
    let id = |value: &Value| {
        let id = value.as_i64().and_then(|id| i32::try_from(id).ok()).filter(|&id| id >= 0);
        id.ok_or_else(|| error::file(path, format!("\"{key}\" is {value}, not a token id")))
    };
    match config.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}
