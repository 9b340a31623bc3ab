//! What a crate's folder must hold: a README everywhere, an example where people take the crate on its own.

use super::Problem;
use super::tree::Files;

/// Crates that people use without the rest; the trainer's example is the command itself.
const TAKEN_ALONE: [&str; 5] = ["crates/arena", "crates/scheduler", "crates/ops", "crates/layers", "crates/optim"];

/// Checks every package folder.
pub fn check(files: &Files) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in files.packages() {
        let readme = format!("{package}/README.md");
        // The repository's README speaks for xtask.
        let wanted = package != "xtask";
        if wanted && files.text(&readme).is_none_or(|text| text.trim().is_empty()) {
            problems.push(Problem::new(&readme, 0, "is missing or empty; say what the crate is for and how to use it"));
        }
        let examples = format!("{package}/examples");
        let example = files.below(&examples).any(|path| path.ends_with(".rs"));
        if TAKEN_ALONE.contains(&package) && !example {
            problems.push(Problem::new(&examples, 0, "has no example; this crate is used alone, so show how"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readmes_and_examples_are_asked_for() {
        let texts = [
            ("crates/arena/Cargo.toml", ""),
            ("crates/arena/README.md", "Memory."),
            ("crates/data/Cargo.toml", ""),
            ("crates/optim/Cargo.toml", ""),
            ("crates/optim/README.md", " \n"),
            ("crates/optim/examples/step.rs", "//! A step.\n"),
            ("xtask/Cargo.toml", ""),
        ];
        let found: Vec<String> = check(&Files::from_texts(&texts)).iter().map(ToString::to_string).collect();
        let files: Vec<&str> = found.iter().filter_map(|p| p.split(':').next()).collect();
        assert_eq!(files, ["crates/arena/examples", "crates/data/README.md", "crates/optim/README.md"], "{found:?}");
    }
}
