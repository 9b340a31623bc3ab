//! The `megatrain` binary.

use clap::Parser;

fn main() -> std::process::ExitCode {
    match megatrain_trainer::cli::run(megatrain_trainer::cli::Cli::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
