//! What the whole-run tests in `tests/` share: goldens, batches, and a training run that can be looked into.
//!
//! | file | gives |
//! |---|---|
//! | `batch` | documents and micro-batches made for a test |
//! | `compare` | distances, and bounds on them from counts of roundings |
//! | `fake` | a device with streams that is none |
//! | `golden` | the models and PyTorch results in `tests/golden` |
//! | `rig` | plan, memory, executor and optimizer of one model, step by step |
//! | `runs` | whole training runs with their metrics |
//! | `small` | models small enough to train in milliseconds |

pub mod batch;
pub mod compare;
pub mod fake;
pub mod golden;
pub mod rig;
pub mod runs;
pub mod small;
