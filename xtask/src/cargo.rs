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
/// an NVIDIA driver, kernels and cuBLASLt are provided first, unless the arguments say that no GPU is wanted. `--features
/// NAME` among the arguments is cargo's; readers of tables are built in where the arguments name a table.
///
/// The working directory stays the caller's, since paths among the arguments count from there.
pub fn megatrain(root: &Path, subcommand: &str, args: Vec<OsString>) -> Result<(), String> {
    if subcommand != "data" && may_use_a_gpu(&args) {
        gpu::ensure(root);
    }
    let (mut features, args) = split_features(args)?;
    if features.is_empty() && names_a_table(&args) {
        eprintln!("Parquet or Arrow among the data: their readers are built in, which takes minutes the first time");
        features.push("arrow".into());
    }
    let mut command = cargo("run");
    command.args(["--release", "--package", "megatrain-trainer", "--bin", "megatrain", "--manifest-path"]);
    command.arg(root.join("Cargo.toml"));
    for feature in &features {
        command.arg("--features").arg(feature);
    }
    command.arg("--").arg(subcommand).args(args);
    replace(&mut command)
}

/// Takes `--features NAME` and `--features=NAME` out: features, other arguments.
fn split_features(args: Vec<OsString>) -> Result<(Vec<OsString>, Vec<OsString>), String> {
    let (mut features, mut others) = (Vec::new(), Vec::new());
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.to_str().and_then(|text| text.strip_prefix("--features")) {
            Some("") => features.push(args.next().ok_or("--features needs a name, such as `--features arrow`")?),
            Some(name) if name.starts_with('=') => features.push(name[1..].into()),
            _ => others.push(arg),
        }
    }
    Ok((features, others))
}

/// Whether a table is among the data: named, in a folder, or named in a TOML file of options.
fn names_a_table(args: &[OsString]) -> bool {
    let (mut flag, mut found) = ("", false);
    for arg in args.iter().filter_map(|arg| arg.to_str()) {
        let value = match arg.split_once('=') {
            Some((name, value)) if name.starts_with("--") => value,
            _ => arg,
        };
        if arg.starts_with("--") {
            flag = arg.split_once('=').map_or(arg, |(name, _)| name);
        }
        // PATH or PATH:WEIGHT.
        let paths = [value, value.rsplit_once(':').map_or(value, |(path, _)| path)].map(Path::new);
        found |= match flag {
            "--data" | "--eval-data" | "--dataset-dir" => {
                paths.iter().any(|path| is_table(path) || holds_a_table(path, 4))
            }
            "--dataset" | "--eval-dataset" => {
                !args.iter().any(|arg| arg.to_string_lossy().starts_with("--dataset-dir"))
                    && holds_a_table(Path::new("data"), 4)
            }
            "--config" => std::fs::read_to_string(value).is_ok_and(|t| t.contains(".parquet") || t.contains(".arrow")),
            _ => false,
        };
    }
    found
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|x| ["parquet", "arrow"].iter().any(|table| x.eq_ignore_ascii_case(table)))
}

/// Looks so many folders deep, the folder itself included.
fn holds_a_table(folder: &Path, depth: usize) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| match entry.path() {
        path if is_table(&path) => true,
        path => depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) && holds_a_table(&path, depth - 1),
    })
}

/// False where the arguments ask for help, for the CPU, or for a benchmark that has no use for a GPU.
fn may_use_a_gpu(args: &[OsString]) -> bool {
    let is = |arg: &OsString, text: &str| arg.as_os_str() == OsStr::new(text);
    let no_gpu = args.iter().any(|arg| is(arg, "--help") || is(arg, "-h") || is(arg, "--device=cpu"))
        || args.first().is_some_and(|arg| is(arg, "cpu") || is(arg, "data"));
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
            ("data --model m", false),
            ("--help", false),
        ] {
            let words: Vec<OsString> = args.split_whitespace().map(Into::into).collect();
            assert_eq!(may_use_a_gpu(&words), expected, "{args}");
        }
    }

    #[test]
    fn features_are_cargos() {
        let split = |args: &str| split_features(args.split_whitespace().map(Into::into).collect());
        let words = |args: &str| args.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(split("--steps 3 --features arrow --lr 1"), Ok((words("arrow"), words("--steps 3 --lr 1"))));
        assert_eq!(split("--features=arrow x"), Ok((words("arrow"), words("x"))));
        assert!(split("--steps 3 --features").is_err());
    }

    #[test]
    fn tables_among_the_data_are_seen() {
        let dir = std::env::temp_dir().join(format!("xtask-tables-{}", std::process::id()));
        let folder = dir.join("data/train");
        std::fs::create_dir_all(&folder).unwrap();
        let named = |args: &str| {
            let args = args.replace('@', dir.to_str().unwrap());
            names_a_table(&args.split_whitespace().map(OsString::from).collect::<Vec<_>>())
        };
        std::fs::write(dir.join("with.toml"), "data = [\"a.parquet\"]").unwrap();
        std::fs::write(dir.join("without.toml"), "data = [\"a.json\"]").unwrap();
        std::fs::create_dir_all(dir.join("json")).unwrap();
        std::fs::write(folder.join("0000.parquet"), "").unwrap();
        for (args, expected) in [
            ("--data a.json x.parquet --steps 3", true),
            ("--eval-data=x.arrow", true),
            ("--data x.parquet:0.3 y.json:0.7", true),
            ("--data X.PARQUET", true),
            ("--data @/data", true),
            ("--data @/data:2 @/json:1", true),
            ("--dataset a --dataset-dir @/data", true),
            ("--config @/with.toml", true),
            ("--config @/without.toml", false),
            ("--data x.jsonl @/json @/none", false),
            ("--out @/data --trace x.arrow --data", false),
        ] {
            assert_eq!(named(args), expected, "{args}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_target_folder_is_cargos_own() {
        // This test's program is in it, `debug/deps` or `TRIPLE/debug/deps` below.
        let folder = target_folder(&crate::root()).unwrap();
        assert!(std::env::current_exe().unwrap().starts_with(&folder), "{}", folder.display());
    }
}
