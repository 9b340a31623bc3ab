//! The `megatrain` binary.

use megatrain_trainer::cli;
use std::io::Write;

fn main() -> std::process::ExitCode {
    let command = cli::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match cli::run(command) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            // Stderr may be closed; the exit status says it too.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
