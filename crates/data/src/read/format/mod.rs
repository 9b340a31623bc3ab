//! Which form records have: named, mapped, or detected from the keys of the first; and each record in that form.

mod alpaca;
mod fields;
mod messages;
mod plain;
mod tools;
mod turns;

use crate::conversation::Sample;
use serde_json::{Map, Value};

/// The form of a file's records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Format {
    /// A text to learn as it stands.
    Text {
        /// The key of the text; `text`, if not mapped.
        column: String,
    },
    /// `input_ids` with optional `labels`, *unshifted*.
    Tokens,
    /// An instruction and its answer.
    Alpaca(AlpacaColumns),
    /// A list of messages: ShareGPT's or OpenAI's.
    Messages(MessageColumns),
    /// `prompt` and `completion`: two texts, or two lists of messages.
    PromptCompletion,
}

/// The keys of alpaca records. None: there is no such key, whatever the record holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlpacaColumns {
    /// The instruction: `instruction`.
    pub prompt: Option<String>,
    /// What it is about, appended to it after a line break: `input`.
    pub query: Option<String>,
    /// The answer: `output`.
    pub response: String,
    /// Earlier pairs of instruction and answer: `history`.
    pub history: Option<String>,
    /// The system message: `system`.
    pub system: Option<String>,
    /// Definitions of tools: `tools`.
    pub tools: Option<String>,
}

/// The keys of records that hold messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageColumns {
    /// The list: `conversations` or `messages`.
    pub messages: String,
    /// The system message, unless the first message is one: `system`.
    pub system: Option<String>,
    /// Definitions of tools: `tools`.
    pub tools: Option<String>,
    /// The keys and roles of each message.
    pub tags: Tags,
}

/// The keys of a message, and the roles that its role may name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tags {
    /// The key of the role: `from` or `role`.
    pub role: String,
    /// The key of the content: `value` or `content`.
    pub content: String,
    /// Roles that mean the person.
    pub user: Vec<String>,
    /// Roles that mean the model.
    pub assistant: Vec<String>,
    /// Roles that mean a tool's answer.
    pub observation: Vec<String>,
    /// Roles that mean the model calling tools, the content being the call as JSON.
    pub function: Vec<String>,
    /// Roles that mean the system message.
    pub system: Vec<String>,
}

impl Default for AlpacaColumns {
    fn default() -> Self {
        let key = |key: &str| Some(key.to_owned());
        AlpacaColumns {
            prompt: key("instruction"),
            query: key("input"),
            response: "output".to_owned(),
            history: key("history"),
            system: key("system"),
            tools: key("tools"),
        }
    }
}

impl MessageColumns {
    /// ShareGPT's: `conversations` of `from` and `value`.
    pub fn sharegpt() -> Self {
        MessageColumns::of("conversations", Tags::sharegpt())
    }

    /// OpenAI's: `messages` of `role` and `content`.
    pub fn openai() -> Self {
        MessageColumns::of("messages", Tags::openai())
    }

    fn of(messages: &str, tags: Tags) -> Self {
        let key = |key: &str| Some(key.to_owned());
        MessageColumns { messages: messages.to_owned(), system: key("system"), tools: key("tools"), tags }
    }
}

impl Tags {
    fn of(role: &str, content: &str, observation: &[&str], function: &[&str], system: &[&str]) -> Tags {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Tags {
            role: role.to_owned(),
            content: content.to_owned(),
            user: list(&["human", "user"]),
            assistant: list(&["gpt", "assistant", "chatgpt", "model"]),
            observation: list(observation),
            function: list(function),
            system: list(system),
        }
    }

    /// ShareGPT's, with the roles that its data sets use.
    pub fn sharegpt() -> Tags {
        Tags::of("from", "value", &["observation", "tool"], &["function_call"], &["system"])
    }

    /// OpenAI's; a `function` is there a tool that answers.
    pub fn openai() -> Tags {
        Tags::of("role", "content", &["tool", "function"], &[], &["system", "developer"])
    }
}

/// The names of formats, as options and messages give them.
const NAMES: &str = "alpaca, sharegpt, openai, prompt-completion, text or tokens";

/// What detection looks for, in words.
const KNOWN_KEYS: &str = "\"messages\", \"conversations\", \"instruction\" and \"output\", \"prompt\" and \
                          \"completion\", \"text\" or \"input_ids\"";

impl Format {
    /// The form of that name, with its usual keys.
    ///
    /// # Errors
    /// A sentence that lists the names.
    pub fn named(name: &str) -> Result<Format, String> {
        Ok(match name {
            "alpaca" => Format::Alpaca(AlpacaColumns::default()),
            "sharegpt" => Format::Messages(MessageColumns::sharegpt()),
            "openai" | "messages" => Format::Messages(MessageColumns::openai()),
            "prompt-completion" | "prompt_completion" => Format::PromptCompletion,
            "text" => Format::Text { column: "text".to_owned() },
            "tokens" | "input_ids" => Format::Tokens,
            _ => return Err(format!("\"{name}\" is no data format; formats are {NAMES}")),
        })
    }

    /// What it is, in a word, for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Format::Text { .. } => "text",
            Format::Tokens => "tokens",
            Format::Alpaca(_) => "alpaca",
            Format::Messages(columns) if columns.tags.role == "from" => "sharegpt",
            Format::Messages(_) => "openai",
            Format::PromptCompletion => "prompt-completion",
        }
    }

    /// The form that a record's keys show. The most telling key decides: a record with `instruction` and a rendered
    /// `text` beside it is an alpaca record.
    pub(super) fn detect(object: &Map<String, Value>) -> Result<Format, String> {
        let has = |key: &str| object.contains_key(key);
        if has("chosen") && has("rejected") {
            return Err("this is preference data (\"chosen\", \"rejected\"), which is for DPO and reward models; \
                        fine-tuning needs one answer, in \"output\" or a last message"
                .to_owned());
        }
        if has("text") && has("input_ids") {
            return Err("the record has both \"text\" and \"input_ids\"; keep one".to_owned());
        }
        let list = ["messages", "conversations", "conversation"].into_iter().find(|key| has(key));
        if has("input_ids") {
            Ok(Format::Tokens)
        } else if let Some(key) = list {
            let first = object[key].as_array().and_then(|messages| messages.first());
            let shows = |keys: [&str; 2]| first.is_some_and(|first| keys.iter().any(|key| first.get(key).is_some()));
            let openai = shows(["role", "content"]) || (key == "messages" && !shows(["from", "value"]));
            let tags = if openai { Tags::openai() } else { Tags::sharegpt() };
            Ok(Format::Messages(MessageColumns::of(key, tags)))
        } else if has("instruction") {
            Ok(Format::Alpaca(AlpacaColumns::default()))
        } else if has("prompt") && has("completion") {
            Ok(Format::PromptCompletion)
        } else if has("text") {
            Ok(Format::Text { column: "text".to_owned() })
        } else {
            let keys: Vec<_> = object.keys().take(6).map(|key| format!("\"{key}\"")).collect();
            let keys = if keys.is_empty() { "is empty".to_owned() } else { format!("has only {}", keys.join(", ")) };
            // An object around the whole list, or messages under a name of their own.
            let list =
                object.iter().find(|(_, value)| value.as_array().is_some_and(|list| list.iter().any(Value::is_object)));
            let hint = list.map_or(String::new(), |(key, _)| {
                format!("; if the list in \"{key}\" holds the records, give a file of that list alone")
            });
            Err(format!(
                "the record {keys}; needed are {KNOWN_KEYS}; other keys can be mapped in a dataset_info.json{hint}"
            ))
        }
    }

    /// Whether a record of this form has at least the key that would have shown it.
    pub(super) fn fits(&self, object: &Map<String, Value>) -> bool {
        match self {
            Format::Text { column } => object.contains_key(column),
            Format::Tokens => object.contains_key("input_ids"),
            Format::Messages(columns) => object.contains_key(&columns.messages),
            Format::PromptCompletion => object.contains_key("prompt") || object.contains_key("completion"),
            Format::Alpaca(columns) => {
                let prompt = columns.prompt.as_ref().or(columns.query.as_ref());
                object.contains_key(&columns.response) || prompt.is_some_and(|key| object.contains_key(key))
            }
        }
    }

    /// The record as a sample.
    pub(super) fn sample(&self, record: Map<String, Value>, file: u32, line: u64) -> Result<Sample, Fault> {
        match self {
            Format::Text { column } => plain::text(record, column, file, line),
            Format::Tokens => plain::tokens(record, file, line),
            Format::Alpaca(columns) => alpaca::sample(record, columns, file, line),
            Format::Messages(columns) => messages::sample(record, columns, file, line),
            Format::PromptCompletion => plain::prompt_completion(record, file, line),
        }
    }
}

/// Why a record is no good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub kind: &'static str,
    pub reason: String,
}

/// Shorthand for a fault.
fn fault<T>(kind: &'static str, reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { kind, reason: reason.into() })
}
