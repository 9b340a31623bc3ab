//! Hugging Face model directories in and out: `config.json` beside one or several `.safetensors` files.
//!
//! [`ModelDir::open`] reads headers only and proves them sound, [`ModelDir::check`] compares them with what a model
//! expects, [`ModelDir::read_f32`] and [`ModelDir::read_split`] stream one tensor to its final place, and
//! [`ExportPlan`] writes a directory that replaces the old one whole or not at all.
//!
//! This crate knows files, names, shapes and bytes. It does not know architectures: `config.json` is handed out as
//! JSON and understood elsewhere. It never holds a whole file, nor a whole tensor.

mod check;
mod convert;
mod dir;
mod dtype;
mod error;
mod export;
mod header;
mod read;
mod replace;

pub use check::{Alias, Expected, is_harmless_extra};
pub use dir::{ModelDir, TensorInfo, read_json};
pub use dtype::{FileDType, FloatDType};
pub use error::{Error, TensorFault};
pub use export::{ExportPlan, ExportTensor, MAX_SHARD_BYTES, Produce};
pub use replace::check_target;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
