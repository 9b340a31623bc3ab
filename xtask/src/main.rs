//! The repository's own commands; `cargo xtask help` lists them.
//!
//! Standard library only, so that the first command a person types is compiled in seconds.

mod bundle;
mod cargo;
mod gpu;
mod json;
mod kernels;
mod lock;
mod pip;
mod tidy;
mod validate;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One command. Adding one is adding a line to [`COMMANDS`].
struct Command {
    name: &'static str,
    arguments: &'static str,
    help: &'static str,
    /// Takes the repository's root and what follows the name. An error is a sentence for a person.
    run: fn(&Path, Vec<OsString>) -> Result<(), String>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "train",
        arguments: "[OPTIONS]",
        help: "train a model; without options, a demonstration of about two minutes",
        run: |root, args| cargo::megatrain(root, "train", args),
    },
    Command {
        name: "generate",
        arguments: "--model DIR --prompt TEXT",
        help: "continue a text with a model",
        run: |root, args| cargo::megatrain(root, "generate", args),
    },
    Command {
        name: "plan",
        arguments: "[OPTIONS]",
        help: "show what a training run would allocate, and how long a step would take",
        run: |root, args| cargo::megatrain(root, "plan", args),
    },
    Command {
        name: "watch",
        arguments: "[OUT] [--port N]",
        help: "show a run in a browser on this machine while it trains",
        run: |root, args| cargo::megatrain(root, "watch", args),
    },
    Command {
        name: "data",
        arguments: "preview [OPTIONS]",
        help: "show what a training run would learn: tokens, masks, packing, statistics",
        run: |root, args| cargo::megatrain(root, "data", args),
    },
    Command {
        name: "bench",
        arguments: "cpu|step|... [OPTIONS]",
        help: "measure this machine: `bench --help` lists the benchmarks",
        run: |root, args| cargo::megatrain(root, "bench", args),
    },
    Command {
        name: "kernels",
        arguments: "[--force]",
        help: "compile the CUDA kernels; needs no GPU",
        run: kernels::run,
    },
    Command {
        name: "bundle",
        arguments: "[--out DIR] [--with-cublas]",
        help: "a folder with program, kernels and GPU tests, to run where there is no cargo",
        run: bundle::run,
    },
    Command {
        name: "test",
        arguments: "[ARGS OF cargo test]",
        help: "run every test of the workspace",
        run: |root, args| {
            gpu::ensure(root);
            cargo::replace(cargo::at(root, "test").arg("--workspace").args(args))
        },
    },
    Command {
        name: "validate",
        arguments: "[--no-kernels]",
        help: "everything a change must pass: fmt, tidy, clippy, doc, kernels, test",
        run: validate::run,
    },
    Command {
        name: "tidy",
        arguments: "",
        help: "check crate edges, the code map, purpose lines, READMEs and links",
        run: |root, args| refuse_arguments("tidy", &args).and_then(|()| tidy::run(root)),
    },
];

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(name) = args.next() else {
        print!("{}", help());
        return ExitCode::SUCCESS;
    };
    if ["help", "-h", "--help"].iter().any(|h| name == *h) {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let Some(command) = COMMANDS.iter().find(|c| name == c.name) else {
        eprint!("error: `{}` is no command of this repository\n\n{}", name.to_string_lossy(), help());
        return ExitCode::from(2);
    };
    match (command.run)(&root(), args.collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> String {
    let mut text = String::from("cargo xtask COMMAND\n\n");
    for Command { name, arguments, help, .. } in COMMANDS {
        let usage = format!("{name} {arguments}");
        text += &format!("  {:<36}{help}\n", usage.trim_end());
    }
    text + "  help                                this list\n"
}

/// The repository: the folder above this crate.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let here = PathBuf::from(here);
    here.parent().map_or(here.clone(), Path::to_path_buf)
}

fn refuse_arguments(command: &str, args: &[OsString]) -> Result<(), String> {
    match args.first() {
        None => Ok(()),
        Some(first) => Err(format!("{command} takes no arguments, got `{}`", first.to_string_lossy())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_command_once() {
        let help = help();
        for command in COMMANDS {
            let lines = help.lines().filter(|l| l.split_whitespace().next() == Some(command.name)).count();
            assert_eq!(lines, 1, "{}", command.name);
        }
    }

    #[test]
    fn commands_without_arguments_refuse_them() {
        assert!(refuse_arguments("tidy", &[]).is_ok());
        let error = refuse_arguments("tidy", &["--fix".into()]).unwrap_err();
        assert!(error.contains("`--fix`"), "{error}");
    }
}
