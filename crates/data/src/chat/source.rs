//! Where templates come from: a model directory's own, in the files that may hold one, and the built-in ones by name.

use crate::error::{self, Error};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The templates that every model can be given, by name. Written from the formats' documentation; each file says which.
const BUILT_IN: [(&str, &str); 16] = [
    ("alpaca", include_str!("templates/alpaca.jinja")),
    ("chatml", include_str!("templates/chatml.jinja")),
    ("deepseek", include_str!("templates/deepseek.jinja")),
    ("deepseek-r1", include_str!("templates/deepseek-r1.jinja")),
    ("gemma", include_str!("templates/gemma.jinja")),
    ("llama2", include_str!("templates/llama2.jinja")),
    ("llama3", include_str!("templates/llama3.jinja")),
    ("llama3.1", include_str!("templates/llama3.1.jinja")),
    ("mistral", include_str!("templates/mistral.jinja")),
    ("phi3", include_str!("templates/phi3.jinja")),
    ("phi4", include_str!("templates/phi4.jinja")),
    ("qwen2.5", include_str!("templates/qwen2.5.jinja")),
    ("qwen3", include_str!("templates/qwen3.jinja")),
    ("smollm2", include_str!("templates/smollm2.jinja")),
    ("vicuna", include_str!("templates/vicuna.jinja")),
    ("zephyr", include_str!("templates/zephyr.jinja")),
];

/// Other names that people know some of them by.
const ALIASES: [(&str, &str); 6] = [
    ("phi", "phi3"),
    ("qwen", "qwen2.5"),
    ("llama31", "llama3.1"),
    ("deepseek3", "deepseek"),
    ("deepseekr1", "deepseek-r1"),
    ("gemma3", "gemma"),
];

/// The names of the built-in templates.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// The built-in template of a name.
pub fn built_in(name: &str) -> Option<&'static str> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A template and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedTemplate {
    /// Its name; a model's only one is called `default`.
    pub name: String,
    /// Its text.
    pub text: String,
    /// The file that holds it.
    pub path: PathBuf,
}

/// What a model directory says about chats. The default is what a directory says that holds no such file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChatFiles {
    /// The model's own templates.
    pub templates: Vec<NamedTemplate>,
    /// Spellings of special tokens by the names that templates use: `bos_token` and others.
    pub special_tokens: BTreeMap<String, String>,
}

/// The names under which special tokens are given to templates.
const SPECIAL: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ChatFiles {
    /// Reads what is there: templates from `chat_template.jinja` and `additional_chat_templates/*.jinja`, or else the
    /// `chat_template` of `tokenizer_config.json` (a text, or a list of named ones), or else `chat_template.json`;
    /// special tokens from `tokenizer_config.json`, those it lacks from `special_tokens_map.json`. No file is required.
    pub fn read(model_dir: impl AsRef<Path>) -> Result<ChatFiles, Error> {
        let dir = model_dir.as_ref();
        let mut files = ChatFiles::default();
        let config_path = dir.join("tokenizer_config.json");
        let config = read_json(&config_path)?;
        for (path, file) in [
            (&config_path, config.as_ref()),
            (&dir.join("special_tokens_map.json"), read_json(&dir.join("special_tokens_map.json"))?.as_ref()),
        ] {
            let Some(file) = file else { continue };
            if !file.is_object() {
                return Err(error::file(path, "not a JSON object"));
            }
            for name in SPECIAL.into_iter().filter(|name| file.get(*name).is_some()) {
                let spelling = file[name].as_str().or_else(|| file[name].get("content")?.as_str());
                if let (Some(spelling), false) = (spelling, files.special_tokens.contains_key(name)) {
                    files.special_tokens.insert(name.to_owned(), spelling.to_owned());
                }
            }
        }
        files.read_jinja(dir)?;
        if files.templates.is_empty()
            && let Some(template) = config.as_ref().and_then(|config| config.get("chat_template"))
        {
            files.add_json(&config_path, template)?;
        }
        let path = dir.join("chat_template.json");
        if files.templates.is_empty()
            && let Some(file) = read_json(&path)?
        {
            files.add_json(&path, file.get("chat_template").unwrap_or(&file))?;
        }
        Ok(files)
    }

    /// The model's own template of a name.
    pub fn template(&self, name: &str) -> Option<&NamedTemplate> {
        self.templates.iter().find(|template| template.name == name)
    }

    fn read_jinja(&mut self, dir: &Path) -> Result<(), Error> {
        let mut paths = vec![("default".to_owned(), dir.join("chat_template.jinja"))];
        let more = dir.join("additional_chat_templates");
        if more.is_dir() {
            let mut found = Vec::new();
            for entry in std::fs::read_dir(&more).map_err(error::io(&more, "listing"))? {
                let path = entry.map_err(error::io(&more, "listing"))?.path();
                if path.extension().is_some_and(|extension| extension == "jinja") {
                    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                    found.push((name, path));
                }
            }
            found.sort();
            paths.extend(found);
        }
        for (name, path) in paths {
            match std::fs::read_to_string(&path) {
                Ok(text) => self.templates.push(NamedTemplate { name, text, path }),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(error::io(&path, "reading")(e)),
            }
        }
        Ok(())
    }

    /// Adds a text, a list of `{"name", "template"}`, or an object from names to texts.
    fn add_json(&mut self, path: &Path, value: &Value) -> Result<(), Error> {
        let mut add = |name: &str, text: &Value| match text.as_str() {
            Some(text) => {
                let (name, text, path) = (name.to_owned(), text.to_owned(), path.to_owned());
                self.templates.push(NamedTemplate { name, text, path });
                Ok(())
            }
            None => Err(error::file(path, format!("the chat template \"{name}\" is not a text"))),
        };
        match value {
            Value::Null => Ok(()),
            Value::String(_) => add("default", value),
            Value::Object(map) => map.iter().try_for_each(|(name, text)| add(name, text)),
            Value::Array(list) => list.iter().try_for_each(|item| match item.get("name").and_then(Value::as_str) {
                Some(name) => add(name, item.get("template").unwrap_or(&Value::Null)),
                None => Err(error::file(path, "a chat template of a list has no \"name\"")),
            }),
            _ => Err(error::file(path, "\"chat_template\" is neither a text nor a list of named ones")),
        }
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
