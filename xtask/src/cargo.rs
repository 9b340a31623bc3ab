//! Calls of cargo. The last call of a command replaces xtask, so that signals, exit code and terminal are the program's own.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// `cargo SUBCOMMAND`, run at the root of the repository.
pub fn at(root: &Path, subcommand: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand).current_dir(root);
    command
}

/// Builds megatrain in release, with cargo's progress to be seen, and becomes `megatrain SUBCOMMAND ARGS`.
///
/// The working directory stays the caller's, since paths among the arguments count from there.
pub fn megatrain(root: &Path, subcommand: &str, args: Vec<OsString>) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["run", "--release", "--package", "megatrain-trainer", "--bin", "megatrain", "--manifest-path"]);
    command.arg(root.join("Cargo.toml")).arg("--").arg(subcommand).args(args);
    replace(&mut command)
}

/// Becomes this command. Returns only if it cannot be started.
#[cfg(unix)]
pub fn replace(command: &mut Command) -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    Err(format!("cannot start {}: {error}", command.get_program().to_string_lossy()))
}

/// Runs this command and ends with its exit code. Returns only if it cannot be started.
#[cfg(not(unix))]
pub fn replace(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => Err(format!("cannot start {}: {error}", command.get_program().to_string_lossy())),
    }
}
