//! The `megatrain` binary.

use clap::Parser;
use std::io::Write;

fn main() -> std::process::ExitCode {
    match megatrain_trainer::cli::run(megatrain_trainer::cli::Cli::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            // Stderr may be closed; the exit status says it too.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
