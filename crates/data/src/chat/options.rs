//! Settings of chat encoding.

use serde_json::{Map, Value};

/// How conversations become tokens and targets.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ChatOptions {
    /// Which template.
    pub template: TemplateChoice,
    /// Which messages are learnt, where a message does not say so itself.
    pub train_on: TrainOn,
    /// The longest sample, in tokens. None: any length.
    pub max_tokens: Option<usize>,
    /// What becomes of longer ones.
    pub too_long: TooLong,
    /// More variables for the template (`chat_template_kwargs` elsewhere), for example `{"enable_thinking": false}`.
    pub variables: Map<String, Value>,
    /// What templates that print a date print, in seconds since 1970, UTC. None: the beginning of today.
    pub now: Option<i64>,
}

/// Which template renders conversations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TemplateChoice {
    /// The model's own: `default`; for conversations with tools `tool_use`, where there is one of that name.
    #[default]
    Model,
    /// By name: one of the model's own, else a built-in one ([`built_in_names`](super::built_in_names)).
    Named(String),
    /// This text, from where `origin` says (for messages).
    Text {
        /// Where the text stands: a file, or a setting.
        origin: String,
        /// The template.
        text: String,
    },
}

/// Which messages are learnt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TrainOn {
    /// All that the assistant says.
    #[default]
    Assistant,
    /// The assistant's last message only.
    LastAssistant,
    /// Every token.
    Everything,
}

/// What becomes of a sample that is longer than allowed. Nothing is ever added to make a cut sample look whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TooLong {
    /// It is left out and counted.
    #[default]
    Drop,
    /// The earliest turns are left out, up to a user's message; system messages at the beginning stay. Left out and
    /// counted if the last exchange alone is too long.
    CutLeft,
    /// It ends with the last of the assistant's turns that fits. If none does, within the first, without its end.
    CutRight,
}
