//! What a record says before it is tokens: a text, ids, a conversation, or a prompt with its completion.
//!
//! Readers produce these from every file format; chat templates turn them into token ids. Nothing here knows either.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// One record of a data file.
#[derive(Clone, PartialEq, Debug)]
pub enum Sample {
    /// A text to learn as it stands.
    Text {
        /// The text, never empty.
        text: String,
        /// Index into the reader's files.
        file: u32,
        /// Line of that file, counted from 1; 0 where the sample is the whole file.
        line: u64,
    },
    /// A pre-tokenized sequence.
    Tokens {
        /// Token ids, at least one.
        tokens: Vec<i32>,
        /// Beside each token itself, *unshifted*, the id to learn there or [`IGNORE`](crate::IGNORE).
        labels: Vec<i32>,
        /// Index into the reader's files.
        file: u32,
        /// Line of that file, counted from 1.
        line: u64,
    },
    /// Messages by roles, for a chat template.
    Conversation(Conversation),
    /// Two texts, joined as they stand; the completion is learnt.
    PromptCompletion {
        /// What is given.
        prompt: String,
        /// What is learnt, never empty.
        completion: String,
        /// Index into the reader's files.
        file: u32,
        /// Line of that file, counted from 1.
        line: u64,
    },
}

impl Sample {
    /// Where the sample comes from: the index of its file, and its line.
    pub fn place(&self) -> (u32, u64) {
        match self {
            Sample::Text { file, line, .. }
            | Sample::Tokens { file, line, .. }
            | Sample::PromptCompletion { file, line, .. } => (*file, *line),
            Sample::Conversation(conversation) => (conversation.file, conversation.line),
        }
    }

    /// About how many bytes it takes in memory, for who keeps many of them.
    pub fn size_bytes(&self) -> usize {
        match self {
            Sample::Text { text, .. } => text.len(),
            Sample::Tokens { tokens, labels, .. } => 4 * (tokens.len() + labels.len()),
            Sample::PromptCompletion { prompt, completion, .. } => prompt.len() + completion.len(),
            Sample::Conversation(Conversation { messages, .. }) => {
                let said =
                    |message: &Message| message.content.len() + message.reasoning.as_ref().map_or(0, String::len);
                messages.iter().map(said).sum()
            }
        }
    }
}

/// Messages in order, and the tools that they may call.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Conversation {
    /// The messages, at least one of them an assistant's.
    pub messages: Vec<Message>,
    /// Array of tool definitions as chat templates take them.
    pub tools: Option<Value>,
    /// Index into the reader's files.
    pub file: u32,
    /// Line of that file, counted from 1.
    pub line: u64,
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; empty where an assistant only calls tools.
    pub content: String,
    /// Calls of tools, as OpenAI lists them: `[{"type": "function", "function": {"name", "arguments"}}]`, `arguments`
    /// being an object (not a string that holds one), since templates print it.
    pub tool_calls: Option<Value>,
    /// For a tool's answer, the `id` of the call that it answers, where the record says so.
    pub tool_call_id: Option<String>,
    /// The speaker's name, or for a tool's answer the tool's.
    pub name: Option<String>,
    /// What the assistant thought before `content` (`reasoning_content`).
    pub reasoning: Option<String>,
    /// Whether this message is learnt, where the record says so (`train`, `weight`). None: by policy.
    pub train: Option<bool>,
}

impl Message {
    /// A message with nothing but a role and a content.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message {
            role,
            content: content.into(),
            tool_calls: None,
            tool_call_id: None,
            name: None,
            reasoning: None,
            train: None,
        }
    }
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The answer of a tool.
    Tool,
}

impl Role {
    /// The name that chat templates know.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
