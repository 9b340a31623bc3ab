//! Ctrl-C and SIGTERM (how batch systems end a job): the first asks the run to end after the step and save; the second ends the process at once.

use anyhow::{Context, Result};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Installs the handler, once a process.
///
/// # Errors
/// If the system refuses it.
pub fn install() -> Result<()> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| {
        result = ctrlc::set_handler(|| {
            if REQUESTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            say!("\nending after this step and saving the model; press Ctrl-C again to end at once without saving");
        });
    });
    result.context("installing the Ctrl-C handler")
}

/// Whether the run was asked to end.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
