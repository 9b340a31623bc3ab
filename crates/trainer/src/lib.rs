//! The trainer: configuration, host tasks, the training loop, metrics, export, and the `megatrain` command.
//!
//! It wires the other crates together and decides no order: what runs when is the planner's program.

#[macro_use]
pub mod say;

pub mod bench;
pub mod check;
pub mod cli;
pub mod data;
pub mod demo;
pub mod evaluate;
pub mod generate;
pub mod init;
pub mod interrupt;
pub mod metrics;
pub mod normal;
pub mod options;
pub mod progress;
pub mod report;
pub mod session;
pub mod setup;
pub mod simulation;
pub mod target;
pub mod tasks;
pub mod train;
pub mod usage;
mod values;
pub mod weights;
