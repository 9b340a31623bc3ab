//! Checks of single texts: a purpose line, a bearable length, nothing left undone, no path of somebody's machine.

use super::Problem;

/// Longest source file, lines.
const MAX_LINES: usize = 700;

/// Macros that mark code as unfinished.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Folders at the root of a file system that no text of ours may name.
const MACHINE_FOLDERS: [&str; 8] = ["home", "root", "tmp", "work", "opt", "mnt", "Users", "scratch"];

/// Checks one file of the repository.
pub fn check(path: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let problem = |line, text: String| Problem::new(path, line, text);
    let rust = path.ends_with(".rs");
    let source = rust || path.ends_with(".cu") || path.ends_with(".cuh");
    if source {
        let mark = if rust { "//!" } else { "//" };
        let purpose = text.lines().next().and_then(|line| line.strip_prefix(mark));
        if purpose.is_none_or(|line| line.trim().is_empty()) {
            problems.push(problem(1, format!("starts without a `{mark}` line that says what the file is for")));
        }
        let lines = text.lines().count();
        if lines > MAX_LINES {
            problems.push(problem(0, format!("has {lines} lines; split it, at most {MAX_LINES} are allowed")));
        }
    }
    for (i, line) in text.lines().enumerate() {
        let unfinished = UNFINISHED.iter().find(|name| source && calls(line, name));
        if let Some(name) = unfinished {
            problems.push(problem(i + 1, format!("calls {name}!; finish it or take it out")));
        }
        if let Some(folder) = machine_path(line) {
            problems.push(problem(i + 1, format!("names /{folder}, a path of one machine; make it relative")));
        }
    }
    problems
}

/// Whether a line calls this macro.
fn calls(line: &str, name: &str) -> bool {
    line.match_indices(&format!("{name}!")).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// The folder of [`MACHINE_FOLDERS`] that an absolute path in this line begins with.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_FOLDERS.into_iter().find(|folder| {
        line.match_indices(&format!("/{folder}/")).any(|(at, _)| {
            // Inside a longer path (crates/tmp/x) it is not at the root.
            let before = line[..at].chars().next_back();
            before.is_none_or(|c| c.is_whitespace() || "\"'`(=:,[<".contains(c))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn finds(path: &str, text: &str, want: &str) {
        let found = texts(path, text);
        assert!(found.len() == 1 && found[0].contains(want), "{text:?}: {found:?}");
    }

    #[test]
    fn purpose_lines() {
        finds("a.rs", "use x;\n", "a.rs:1: starts without a `//!` line");
        finds("a.rs", "// note\n", "`//!`");
        finds("a.rs", "//!\n//! Late.\n", "`//!`");
        finds("a.rs", "", "`//!`");
        finds("a.cu", "#include <x>\n", "`//` line");
        assert!(texts("a.rs", "//! Does.\n").is_empty());
        assert!(texts("a.cu", "// Does.\n").is_empty());
        assert!(texts("a.md", "No purpose line needed.\n").is_empty());
    }

    #[test]
    fn long_files() {
        let lines = |n: usize| "//! Does.\n".repeat(n);
        assert!(texts("a.rs", &lines(MAX_LINES)).is_empty());
        finds("a.rs", &lines(MAX_LINES + 1), "a.rs: has 701 lines");
    }

    #[test]
    fn unfinished_code() {
        for name in UNFINISHED {
            finds("a.rs", &format!("//! Does.\nfn f() {{ {name}!() }}\n"), &format!("a.rs:2: calls {name}!"));
            assert!(texts("a.rs", &format!("//! Does.\nfn f() {{ my_{name}!() }}\n")).is_empty());
        }
        assert!(texts("a.md", &format!("write no {}!()", UNFINISHED[0])).is_empty());
    }

    #[test]
    fn paths_of_a_machine() {
        for folder in MACHINE_FOLDERS {
            for (before, after) in [("\"", "\""), ("`", "`"), (" ", ""), ("", ""), ("x=", "")] {
                finds("a.py", &format!("{before}/{folder}/x{after}"), &format!("names /{folder}"));
            }
            assert!(texts("a.py", &format!("crates/{folder}/x, {folder}/x, ../{folder}/x")).is_empty());
        }
    }
}
