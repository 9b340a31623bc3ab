//! What a run shows of itself, beside its log: `metrics.jsonl`, TensorBoard's event files and `report.html`; and the
//! server behind `megatrain watch`, which shows that page while it grows.
//!
//! [`Recorder`] is the only part that the training loop knows. A view that cannot be written is said once and left out:
//! no run ends because nobody can watch it. `metrics.jsonl` is different: a run whose figures cannot be kept stops.

pub mod data;
pub mod facts;
mod history;
mod limit;
pub mod memory;
mod page;
mod recorder;
mod tfevents;
mod timeline;
pub mod watch;

pub use data::DataFacts;
pub use facts::Facts;
pub use history::smoothed;
pub use limit::Limit;
pub use recorder::{Outcome, Recorder, Views};

/// The page's name in the output folder.
pub const PAGE: &str = "report.html";
