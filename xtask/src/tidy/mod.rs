//! `cargo xtask tidy`: what the compiler cannot see. Each check is a function from texts to problems; only [`tree`] reads
//! the disk, and nothing is written.

mod edges;
mod folders;
mod manifest;
mod map;
mod markdown;
mod sources;
mod tree;

use std::fmt;
use std::path::Path;

/// Something to mend, and how.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    /// Path from the root of the repository.
    file: String,
    /// Counted from 1; 0 for the file as a whole.
    line: usize,
    text: String,
}

impl Problem {
    fn new(file: &str, line: usize, text: impl Into<String>) -> Self {
        Problem { file: file.into(), line, text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}: {}", self.file, self.text),
        }
    }
}

/// Checks the repository at `root` and prints what is wrong.
///
/// # Errors
/// The number of problems, or a file that cannot be read.
pub fn run(root: &Path) -> Result<(), String> {
    let files = tree::read(root)?;
    let problems = check(&files);
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => {
            println!("tidy: {} files", files.len());
            Ok(())
        }
        n => Err(format!("{n} problem(s)")),
    }
}

/// Every problem of these files.
fn check(files: &tree::Files) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in files.iter() {
        problems.extend(sources::check(path, text));
        if path.ends_with(".md") {
            problems.extend(markdown::check(path, text, |target| files.exists(target)));
        }
    }
    problems.extend(folders::check(files));
    match files.text(map::FILE).map(map::parse) {
        None => problems.push(Problem::new(map::FILE, 0, "is missing; it holds the code map")),
        Some(Err(problem)) => problems.push(problem),
        Some(Ok(map)) => {
            problems.extend(map::check(&map, &files.packages()));
            for (path, text) in files.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
                match manifest::parse(text) {
                    Ok(manifest) => problems.extend(edges::check(&map, path, &manifest)),
                    Err((line, text)) => problems.push(Problem::new(path, line, text)),
                }
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small repository without problems.
    fn sound() -> Vec<(&'static str, &'static str)> {
        vec![
            ("Cargo.toml", "[workspace]\n"),
            (
                "ARCHITECTURE.md",
                "## Code map\n| Folder | May use | Purpose |\n|-|-|-|\n| [`crates/base`](crates/base) | nothing | types |\n\
                 | `xtask` | nothing | commands |\n## Else\n",
            ),
            ("crates/base/Cargo.toml", "[package]\nname = \"megatrain-base\"\n[lints]\nworkspace = true\n"),
            ("crates/base/README.md", "Types.\n"),
            ("crates/base/src/lib.rs", "//! Types.\n"),
            ("xtask/Cargo.toml", "[package]\nname = \"xtask\"\n[lints]\nworkspace = true\n"),
        ]
    }

    fn problems(files: Vec<(&str, &str)>) -> String {
        let files = tree::Files::from_texts(&files);
        check(&files).iter().map(|p| format!("{p}\n")).collect()
    }

    #[test]
    fn a_sound_repository_has_no_problems() {
        assert_eq!(problems(sound()), "");
    }

    #[test]
    fn every_check_is_wired_in() {
        for (path, text, want) in [
            ("crates/base/src/new.rs", "fn f() {}\n", "new.rs:1: starts without"),
            ("docs/a.md", "[b](b.md)", "docs/a.md:1: links to `docs/b.md`"),
            (
                "crates/odd/Cargo.toml",
                "[package]\nname = \"megatrain-odd\"\n",
                "the code map has no row for `crates/odd`",
            ),
            ("crates/arena/Cargo.toml", "", "crates/arena/README.md: is missing"),
            ("tests/Cargo.toml", "[dependencies\n", "tests/Cargo.toml:1: "),
        ] {
            let mut files = sound();
            files.push((path, text));
            let found = problems(files);
            assert!(found.contains(want), "{path}: {found}");
        }
        let without_map = sound().into_iter().filter(|(path, _)| *path != map::FILE).collect();
        assert!(problems(without_map).contains("ARCHITECTURE.md: is missing"));
    }
}
