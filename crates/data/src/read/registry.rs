//! `dataset_info.json`: data sets by name, as LLaMA-Factory describes them.
//!
//! Only what fine-tuning on files can obey is read; a description that asks for more is refused, not half obeyed.

use super::format::{AlpacaColumns, Format, MessageColumns, Tags};
use super::json::{describe, reason};
use super::source::{DataSource, split_weight};
use crate::error::{self, Error};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The name of the file.
const FILE: &str = "dataset_info.json";

/// A directory's `dataset_info.json`.
#[derive(Clone, PartialEq, Debug)]
pub struct Registry {
    dir: PathBuf,
    path: PathBuf,
    entries: Map<String, Value>,
}

impl Registry {
    /// Reads `dataset_info.json` of a directory, in which `file_name`s are.
    ///
    /// # Errors
    /// It cannot be read or is no JSON object.
    pub fn open(dir: &Path) -> Result<Registry, Error> {
        let path = dir.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(error::io(&path, "reading"))?;
        let value = serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(&text))
            .map_err(|e| error::line(&path, e.line() as u64, format!("not valid JSON: {}", reason(&e))))?;
        match value {
            Value::Object(entries) => Ok(Registry { dir: dir.to_owned(), path, entries }),
            other => Err(error::file(path, format!("it must be an object of data sets, not {}", describe(&other)))),
        }
    }

    /// The names of its data sets, in the file's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The source that `NAME` or `NAME:WEIGHT` means.
    ///
    /// # Errors
    /// There is no such data set, or its description asks for what is not supported: a hub, a script, preferences,
    /// images, a column or key of unknown meaning.
    pub fn source(&self, text: &str) -> Result<DataSource, Error> {
        let (name, weight) = match self.entries.contains_key(text) {
            true => (text, None),
            false => split_weight(text)?,
        };
        let Some(entry) = self.entries.get(name) else {
            let known: Vec<&str> = self.names().take(20).collect();
            let problem = format!("there is no data set \"{name}\"; there are {}", known.join(", "));
            return Err(error::file(&self.path, problem));
        };
        let (file, format, num_samples) = self
            .read_entry(entry)
            .map_err(|problem| error::file(&self.path, format!("data set \"{name}\": {problem}")))?;
        let path = self.dir.join(&file);
        if !path.exists() {
            let problem = format!("data set \"{name}\": {file} is not in this file's folder; mend its \"file_name\"");
            return Err(error::file(&self.path, problem));
        }
        Ok(DataSource { path, format: Some(format), weight, num_samples })
    }

    fn read_entry(&self, entry: &Value) -> Result<(String, Format, Option<u64>), String> {
        let entry = entry.as_object().ok_or_else(|| format!("it must be an object, not {}", describe(entry)))?;
        for (key, value) in entry {
            check_key(key, value)?;
        }
        let file = text(entry, "file_name")?.ok_or("\"file_name\" is missing")?;
        let columns = entry.get("columns").map(|columns| names(columns, "columns", &COLUMNS)).transpose()?;
        let tags = entry.get("tags").map(|tags| names(tags, "tags", &TAGS)).transpose()?;
        let format = match text(entry, "formatting")?.as_deref().unwrap_or("alpaca") {
            "alpaca" => alpaca(columns)?,
            "sharegpt" => messages(MessageColumns::sharegpt(), columns, tags)?,
            "openai" => messages(MessageColumns::openai(), columns, tags)?,
            other => return Err(format!("formatting \"{other}\" is unknown; there are alpaca, sharegpt and openai")),
        };
        let num_samples = match entry.get("num_samples") {
            None | Some(Value::Null | Value::Bool(false)) => None,
            Some(number) => {
                let number = number.as_u64().filter(|&number| number > 0);
                Some(number.ok_or("\"num_samples\" must be a whole number above 0")?)
            }
        };
        Ok((file, format, num_samples))
    }
}

/// Refuses keys that mean something else than a file to fine-tune on.
fn check_key(key: &str, value: &Value) -> Result<(), String> {
    let on = !matches!(value, Value::Null | Value::Bool(false));
    match key {
        "file_name" | "formatting" | "columns" | "tags" | "file_sha1" | "num_samples" => Ok(()),
        _ if !on => Ok(()),
        "split" if value.as_str() == Some("train") => Ok(()),
        "hf_hub_url" | "ms_hub_url" | "om_hub_url" | "cloud_file_name" => {
            Err(format!("\"{key}\" names no local file; download the data and name it by \"file_name\" alone"))
        }
        "script_url" => {
            Err("\"script_url\" names a Python script; let it write .jsonl and name that by \"file_name\"".into())
        }
        "ranking" => Err("it is preference data (\"ranking\"), which is for DPO and reward models".into()),
        "subset" | "folder" | "revision" => Err(format!(
            "\"{key}\" is a choice on a hub, and this is a local file; leave it out, or name the file that is meant"
        )),
        "split" => Err("\"split\" is not supported; make a file of the records that are meant".to_owned()),
        _ => Err(format!("\"{key}\" is no known key; there are file_name, formatting, columns, tags and num_samples")),
    }
}

const COLUMNS: [&str; 13] = [
    "prompt", "query", "response", "history", "messages", "system", "tools", "images", "videos", "audios", "chosen",
    "rejected", "kto_tag",
];

const TAGS: [&str; 7] =
    ["role_tag", "content_tag", "user_tag", "assistant_tag", "observation_tag", "function_tag", "system_tag"];

/// An object of strings with known keys; null is as absent.
fn names(value: &Value, what: &str, known: &[&str]) -> Result<Map<String, Value>, String> {
    let object = value.as_object().ok_or_else(|| format!("\"{what}\" must be an object, not {}", describe(value)))?;
    for key in object.keys() {
        if !known.contains(&key.as_str()) {
            return Err(format!("\"{what}\" has the unknown key \"{key}\"; known are {}", known.join(", ")));
        }
        text(object, key)?;
    }
    for key in ["images", "videos", "audios", "chosen", "rejected", "kto_tag"] {
        if text(object, key)?.is_some() {
            return Err(format!("\"{what}\" has \"{key}\", but only texts with one answer are trained"));
        }
    }
    Ok(object.clone())
}

fn text(object: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("\"{key}\" must be a string, not {}", describe(other))),
    }
}

/// Given `columns`, those it leaves out do not exist; without, the usual ones without history, system and tools do.
fn alpaca(columns: Option<Map<String, Value>>) -> Result<Format, String> {
    let Some(columns) = columns else {
        let usual = AlpacaColumns { history: None, system: None, tools: None, ..AlpacaColumns::default() };
        return Ok(Format::Alpaca(usual));
    };
    let column = |key: &str| text(&columns, key);
    if column("messages")?.is_some() {
        return Err("\"columns\" has \"messages\", which alpaca records lack; add \"formatting\": \"sharegpt\"".into());
    }
    let (prompt, query) = (column("prompt")?, column("query")?);
    let (history, system, tools) = (column("history")?, column("system")?, column("tools")?);
    match (column("response")?, prompt) {
        (Some(_), None) if query.is_none() => Err("\"columns\" has neither \"prompt\" nor \"query\"".into()),
        (Some(response), prompt) => {
            Ok(Format::Alpaca(AlpacaColumns { prompt, query, response, history, system, tools }))
        }
        (None, Some(column)) if [query, history, system, tools].iter().all(Option::is_none) => {
            Ok(Format::Text { column })
        }
        _ => Err("\"columns\" has no \"response\"; a text to learn as it stands has \"prompt\" alone".into()),
    }
}

/// Given `columns` or `tags`, what they leave out does not exist, except for tags without which no message can be read.
fn messages(
    usual: MessageColumns,
    columns: Option<Map<String, Value>>,
    tags: Option<Map<String, Value>>,
) -> Result<Format, String> {
    let mut result = MessageColumns { system: None, tools: None, ..usual };
    if let Some(columns) = columns {
        for key in ["prompt", "query", "response", "history"] {
            if text(&columns, key)?.is_some() {
                return Err(format!("\"columns\" has \"{key}\", which only alpaca records have"));
            }
        }
        result.messages = text(&columns, "messages")?.ok_or("\"columns\" has no \"messages\"")?;
        result.system = text(&columns, "system")?;
        result.tools = text(&columns, "tools")?;
    }
    if let Some(tags) = tags {
        let tag = |key: &str| text(&tags, key);
        let roles = |key: &str| tag(key).map(|role| role.into_iter().collect::<Vec<_>>());
        let or = |roles: Vec<String>, usual: Vec<String>| if roles.is_empty() { usual } else { roles };
        let usual = result.tags;
        result.tags = Tags {
            role: tag("role_tag")?.unwrap_or(usual.role),
            content: tag("content_tag")?.unwrap_or(usual.content),
            user: or(roles("user_tag")?, usual.user),
            assistant: or(roles("assistant_tag")?, usual.assistant),
            observation: roles("observation_tag")?,
            function: roles("function_tag")?,
            system: roles("system_tag")?,
        };
    }
    Ok(Format::Messages(result))
}
