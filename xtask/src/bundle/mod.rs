//! `cargo xtask bundle`: a folder that runs elsewhere without cargo: program, kernels, the tests that know a device.

use crate::{cargo, gpu, json, kernels};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Packages whose tests run on a GPU if there is one. Their programs must need no file but the goldens.
const TESTED: [&str; 2] = ["megatrain-cuda", "megatrain-tests"];
/// By this file a folder is known to be a bundle, which the next one may replace.
const SCRIPT: &str = "run.sh";
const TEXTS: [&str; 2] = [SCRIPT, "README.txt"];

/// The command; `args` may hold `--out DIR`, otherwise it is `bundle` where cargo builds, and `--with-cublas`, which puts
/// cuBLASLt into the bundle, for machines that have neither a CUDA toolkit nor PyTorch.
///
/// # Errors
/// What went wrong, for a person: something does not build, or the folder holds something else.
pub fn run(root: &Path, args: Vec<OsString>) -> Result<(), String> {
    let Options { out, with_cublas } = Options::parse(args)?;
    let target = cargo::target_folder(root)?;
    let out = out.unwrap_or_else(|| target.join("bundle"));
    refuse_other_folders(&out)?;
    let kernels = kernels::compile(root)?;
    let cublas = if with_cublas { gpu::cublas::install(&target)?.to_vec() } else { Vec::new() };
    let program = build(root, &["build", "--package", "megatrain-trainer", "--bin", "megatrain"])?;
    let packages = TESTED.iter().flat_map(|package| ["--package", package]);
    let tests = build(root, &["test", "--no-run", "--tests"].into_iter().chain(packages).collect::<Vec<_>>())?;

    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(|e| format!("cannot replace {}: {e}", out.display()))?;
    }
    for Built { executable, .. } in program {
        strip(&executable, &out.join("megatrain"))?;
    }
    for Built { executable, name } in tests {
        strip(&executable, &out.join("tests").join(name))?;
    }
    for file in kernels.files() {
        copy(&file, &out.join("kernels").join(file.file_name().unwrap_or_default()))?;
    }
    for file in cublas {
        copy(&file, &out.join("lib").join(file.file_name().unwrap_or_default()))?;
    }
    copy_folder(&root.join("tests/golden"), &out.join("golden"))?;
    for text in TEXTS {
        copy(&root.join("xtask/src/bundle").join(text), &out.join(text))?;
    }
    println!("{:.1} MB in {}", bytes_of(&out)? as f64 / 1e6, out.display());
    Ok(())
}

#[derive(Default, PartialEq, Debug)]
struct Options {
    out: Option<PathBuf>,
    with_cublas: bool,
}

impl Options {
    fn parse(args: Vec<OsString>) -> Result<Options, String> {
        let mut options = Options::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--out") => options.out = Some(args.next().ok_or("--out needs a folder")?.into()),
                Some("--with-cublas") => options.with_cublas = true,
                _ => return Err(format!("bundle takes --out DIR and --with-cublas, got `{}`", arg.to_string_lossy())),
            }
        }
        Ok(options)
    }
}

fn refuse_other_folders(out: &Path) -> Result<(), String> {
    let is_empty = || std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if !out.exists() || out.join(SCRIPT).is_file() && out.join("kernels").is_dir() || is_empty() {
        Ok(())
    } else {
        Err(format!("{} holds something else; name a folder that does not exist yet, with --out", out.display()))
    }
}

/// A program that cargo built.
#[derive(PartialEq, Debug)]
struct Built {
    executable: PathBuf,
    /// Package folder and target, e.g. `cuda-conformance`; `unit` for the tests inside a library.
    name: String,
}

/// Builds in release, so that one set of dependencies serves program and tests.
fn build(root: &Path, arguments: &[&str]) -> Result<Vec<Built>, String> {
    let (subcommand, rest) = arguments.split_first().ok_or("a build without a command")?;
    let mut command = cargo::at(root, subcommand);
    command.args(rest).args(["--release", "--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("`cargo {}`: {}", arguments.join(" "), output.status));
    }
    let built: Vec<Built> = String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect();
    if built.is_empty() { Err(format!("`cargo {}` built no program", arguments.join(" "))) } else { Ok(built) }
}

/// Reads a line of cargo's messages; `None` if it is not about a program.
fn parse(message: &str) -> Option<Built> {
    let executable = PathBuf::from(json::string(message, "executable")?);
    let manifest = PathBuf::from(json::string(message, "manifest_path")?);
    let package = manifest.parent()?.file_name()?.to_str()?.to_owned();
    let target = json::string(message.split_once("\"target\":")?.1, "name")?;
    let inside = target.starts_with("megatrain");
    Some(Built { executable, name: format!("{package}-{}", if inside { "unit" } else { &target }) })
}

/// Copies a program without its symbols, or with them where there is no `strip`.
fn strip(from: &Path, to: &Path) -> Result<(), String> {
    copy(from, to)?;
    match Command::new("strip").arg(to).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`strip {}`: {status}", to.display())),
        Err(_) => Ok(()),
    }
}

/// Copies a file and its permissions into a folder that need not exist.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = to.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::copy(from, to));
    copied.map(drop).map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))
}

/// Files and folders directly below.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let paths = std::fs::read_dir(folder).and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect());
    paths.map_err(|e| format!("cannot read {}: {e}", folder.display()))
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    for path in entries(from)? {
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() { copy_folder(&path, &to)? } else { copy(&path, &to)? }
    }
    Ok(())
}

fn bytes_of(path: &Path) -> Result<u64, String> {
    if path.is_dir() {
        entries(path)?.iter().map(|path| bytes_of(path)).sum()
    } else {
        path.metadata().map(|m| m.len()).map_err(|e| format!("cannot read {}: {e}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_messages_name_the_programs() {
        let message = |kind: &str, name: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///r/crates/cuda#megatrain-cuda@0.1.0","manifest_path":"/r/crates/cuda/Cargo.toml","target":{{"kind":["{kind}"],"crate_types":["bin"],"name":"{name}","test":true}},"executable":{executable},"fresh":true}}"#
            )
        };
        let built = parse(&message("test", "attention", r#""/t/release/deps/attention-1""#)).unwrap();
        assert_eq!(built, Built { executable: "/t/release/deps/attention-1".into(), name: "cuda-attention".into() });
        assert_eq!(parse(&message("lib", "megatrain_cuda", r#""/t/m-1""#)).unwrap().name, "cuda-unit");
        assert_eq!(parse(&message("lib", "megatrain_cuda", "null")), None);
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn options_come_in_any_order_and_others_are_refused() {
        let parse = |text: &str| Options::parse(text.split_whitespace().map(Into::into).collect());
        assert_eq!(parse(""), Ok(Options::default()));
        let both = Options { out: Some("x".into()), with_cublas: true };
        assert_eq!(parse("--out x --with-cublas").unwrap(), both);
        assert_eq!(parse("--with-cublas --out x").unwrap(), both);
        assert!(parse("--out").unwrap_err().contains("needs a folder"));
        assert!(parse("--cublas").unwrap_err().contains("`--cublas`"));
    }

    #[test]
    fn only_a_bundle_is_replaced() {
        let folder = std::env::temp_dir().join(format!("xtask-bundle-{}", std::process::id()));
        assert!(refuse_other_folders(&folder).is_ok());
        std::fs::create_dir_all(&folder).unwrap();
        assert!(refuse_other_folders(&folder).is_ok());
        std::fs::write(folder.join("thesis.tex"), "").unwrap();
        assert!(refuse_other_folders(&folder).unwrap_err().contains("something else"));
        std::fs::write(folder.join(SCRIPT), "").unwrap();
        std::fs::create_dir_all(folder.join("kernels")).unwrap();
        assert!(refuse_other_folders(&folder).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
