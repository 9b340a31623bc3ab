//! Calls of cargo. The last call of a command replaces xtask, so that signals, exit code and terminal are the program's own.

use crate::{gpu, json};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn cargo(subcommand: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand);
    command
}

/// `cargo SUBCOMMAND`, run at the root of the repository, building into the same folder as from where xtask was called.
pub fn at(root: &Path, subcommand: &str) -> Command {
    let mut command = cargo(subcommand);
    if let (Some(target), Ok(here)) = (std::env::var_os("CARGO_TARGET_DIR"), std::env::current_dir()) {
        command.env("CARGO_TARGET_DIR", here.join(target));
    }
    command.current_dir(root);
    command
}

/// The folder that cargo builds into, wherever CARGO_TARGET_DIR or one of cargo's configuration files puts it.
///
/// # Errors
/// Cargo does not start, or says something else.
pub fn target_folder(root: &Path) -> Result<PathBuf, String> {
    let mut command = at(root, "metadata");
    let output = command.args(["--no-deps", "--format-version", "1"]).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cannot start cargo: {e}"))?;
    let folder = json::string(&String::from_utf8_lossy(&output.stdout), "target_directory");
    folder.map(PathBuf::from).ok_or_else(|| "`cargo metadata` does not say which folder it builds into".into())
}

/// Builds megatrain in release, with cargo's progress to be seen, and becomes `megatrain SUBCOMMAND ARGS`. Where there is
/// an NVIDIA driver, kernels and cuBLASLt are provided first, unless the arguments say that no GPU is wanted.
///
/// The working directory stays the caller's, since paths among the arguments count from there.
pub fn megatrain(root: &Path, subcommand: &str, args: Vec<OsString>) -> Result<(), String> {
    if subcommand != "data" && may_use_a_gpu(&args) {
        gpu::ensure(root);
    }
    let mut command = cargo("run");
    command.args(["--release", "--package", "megatrain-trainer", "--bin", "megatrain", "--manifest-path"]);
    command.arg(root.join("Cargo.toml")).arg("--").arg(subcommand).args(args);
    replace(&mut command)
}

/// False where the arguments ask for help or for the CPU.
fn may_use_a_gpu(args: &[OsString]) -> bool {
    let is = |arg: &OsString, text: &str| arg.as_os_str() == OsStr::new(text);
    let no_gpu = args.iter().any(|arg| is(arg, "--help") || is(arg, "-h") || is(arg, "--device=cpu"))
        || args.first().is_some_and(|arg| is(arg, "cpu"));
    !no_gpu && !args.windows(2).any(|pair| is(&pair[0], "--device") && is(&pair[1], "cpu"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_may_rule_a_gpu_out() {
        for (args, expected) in [
            ("", true),
            ("--steps 3 --device auto", true),
            ("--device cuda:1", true),
            ("--prompt cpu", true),
            ("--device cpu --steps 3", false),
            ("--device=cpu", false),
            ("cpu --threads 2", false),
            ("--help", false),
        ] {
            let words: Vec<OsString> = args.split_whitespace().map(Into::into).collect();
            assert_eq!(may_use_a_gpu(&words), expected, "{args}");
        }
    }

    #[test]
    fn the_target_folder_is_cargos_own() {
        // This test's program is in it, `debug/deps` or `TRIPLE/debug/deps` below.
        let folder = target_folder(&crate::root()).unwrap();
        assert!(std::env::current_exe().unwrap().starts_with(&folder), "{}", folder.display());
    }
}
