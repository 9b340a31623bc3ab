//! Ctrl-C and SIGTERM (how batch systems end a job): the first asks the run to end after the step and save; the next
//! ends the process at once.

use anyhow::{Context, Result};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// When the run was first asked to end.
static REQUESTED: OnceLock<Instant> = OnceLock::new();

/// A signal so soon after the first is the same request: `timeout` and others send it to the process and to its group.
const SAME_REQUEST: Duration = Duration::from_millis(200);

/// Installs the handler, once a process.
///
/// # Errors
/// If the system refuses it.
pub fn install() -> Result<()> {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| {
        result = ctrlc::set_handler(|| {
            if let Some(first) = REQUESTED.get() {
                if first.elapsed() >= SAME_REQUEST {
                    std::process::exit(130);
                }
                return;
            }
            let _ = REQUESTED.set(Instant::now());
            say!("\nending after this step and saving the model; press Ctrl-C again to end at once without saving");
        });
    });
    result.context("installing the Ctrl-C handler")
}

/// Whether the run was asked to end.
pub fn requested() -> bool {
    REQUESTED.get().is_some()
}
