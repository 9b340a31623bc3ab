//! Choices about data that a person makes by name, and what the data crate calls them.

use clap::ValueEnum;
use megatrain_data::chat::{self, TooLong};
use serde::{Deserialize, Serialize};

/// What of a conversation is learnt, where a message does not say so itself (`train`, `weight`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainOn {
    /// All that the assistant says (`assistant_only_loss` of TRL, the default of LLaMA-Factory and Axolotl).
    AllTurns,
    /// The assistant's last turn (`mask_history` of LLaMA-Factory).
    LastTurn,
    /// Every token (`train_on_prompt` of LLaMA-Factory, `train_on_inputs` of Axolotl).
    Everything,
}

impl From<TrainOn> for chat::TrainOn {
    fn from(choice: TrainOn) -> Self {
        match choice {
            TrainOn::AllTurns => chat::TrainOn::Assistant,
            TrainOn::LastTurn => chat::TrainOn::LastAssistant,
            TrainOn::Everything => chat::TrainOn::Everything,
        }
    }
}

/// What becomes of a conversation longer than a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Truncation {
    /// It is left out and counted.
    Drop,
    /// It loses its earliest turns; system messages stay.
    Left,
    /// It loses its last turns.
    Right,
}

impl From<Truncation> for TooLong {
    fn from(choice: Truncation) -> Self {
        match choice {
            Truncation::Drop => TooLong::Drop,
            Truncation::Left => TooLong::CutLeft,
            Truncation::Right => TooLong::CutRight,
        }
    }
}
