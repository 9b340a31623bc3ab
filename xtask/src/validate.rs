//! `cargo xtask validate`: the stages a change must pass, cheapest first; the first failure ends it and says what to do.

use crate::{cargo, kernels, tidy};
use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

struct Stage {
    name: &'static str,
    work: Work,
    remedy: &'static str,
}

enum Work {
    Tidy,
    Kernels,
    Cargo { arguments: &'static [&'static str], environment: &'static [(&'static str, &'static str)] },
}

const STAGES: &[Stage] = &[
    Stage {
        name: "fmt",
        work: Work::Cargo { arguments: &["fmt", "--all", "--check"], environment: &[] },
        remedy: "run `cargo fmt --all` (`rustup component add rustfmt` if there is no such command)",
    },
    Stage { name: "tidy", work: Work::Tidy, remedy: "each line above names a file and what it must become" },
    Stage {
        name: "clippy",
        work: Work::Cargo {
            arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            environment: &[],
        },
        remedy: "change what the warnings above name (`rustup component add clippy` if there is no such command)",
    },
    Stage {
        name: "doc",
        work: Work::Cargo {
            arguments: &["doc", "--workspace", "--no-deps"],
            environment: &[("RUSTDOCFLAGS", "-D warnings")],
        },
        remedy: "write the missing documentation or mend the links that the warnings above name",
    },
    Stage {
        name: "kernels",
        work: Work::Kernels,
        remedy: "on a machine that can have no CUDA compiler, `cargo xtask validate --no-kernels` leaves this stage out \
                 (CI does not); otherwise mend what the lines above name",
    },
    Stage {
        name: "test",
        work: Work::Cargo { arguments: &["test", "--workspace"], environment: &[] },
        remedy: "the failing test is named above; `cargo xtask test NAME` runs it alone",
    },
    // A feature that is off by default, since it doubles the build, but must not rot.
    Stage {
        name: "tables",
        work: Work::Cargo { arguments: &["test", "-p", "megatrain-data", "--features", "arrow"], environment: &[] },
        remedy: "the failing test is named above",
    },
];

/// Runs the stages; `--no-kernels` leaves that one out.
///
/// # Errors
/// The first stage that failed, with what to do.
pub fn run(root: &Path, args: Vec<OsString>) -> Result<(), String> {
    let no_kernels = match args.as_slice() {
        [] => false,
        [flag] if flag == "--no-kernels" => true,
        [other, ..] => return Err(format!("validate takes --no-kernels only, got `{}`", other.to_string_lossy())),
    };
    let start = Instant::now();
    let mut times = String::new();
    for Stage { name, work, remedy } in STAGES {
        if no_kernels && matches!(work, Work::Kernels) {
            println!("== {name}: left out");
            continue;
        }
        println!("== {name}");
        let began = Instant::now();
        let done = match work {
            Work::Tidy => tidy::run(root),
            Work::Kernels => kernels::compile(root).map(drop),
            Work::Cargo { arguments, environment } => status(root, arguments, environment),
        };
        let line = format!("{name:<8}{:>7.1} s\n", began.elapsed().as_secs_f64());
        print!("== {line}");
        times += &line;
        done.map_err(|e| format!("{name} failed: {e}\n{remedy}; then run `cargo xtask validate` again"))?;
    }
    let passed = if no_kernels { "every stage but kernels passed" } else { "every stage passed" };
    println!("\n{times}all     {:>7.1} s: {passed}", start.elapsed().as_secs_f64());
    Ok(())
}

fn status(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let (subcommand, rest) = arguments.split_first().ok_or("a stage without a command")?;
    let mut command = cargo::at(root, subcommand);
    let status = command.args(rest).envs(environment.iter().copied()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`cargo {}`: {status}", arguments.join(" "))),
        Err(error) => Err(format!("cannot start cargo: {error}")),
    }
}
