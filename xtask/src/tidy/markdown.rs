//! Links of Markdown files: those into the repository must lead somewhere. Links to other sites are not followed.

use super::Problem;

/// Checks one file; `exists` tells whether a path from the root is a file or folder.
pub fn check(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Problem> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut problems = Vec::new();
    let mut fenced = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in targets(&without_code(line)) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let problem = match resolve(folder, target) {
                Some(found) if exists(&found) => continue,
                Some(found) => format!("links to `{found}`, which is not there"),
                None => format!("links to `{target}`, which is outside the repository"),
            };
            problems.push(Problem::new(path, i + 1, problem));
        }
    }
    problems
}

/// A line without its `code`.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// What the links of a line lead to: `[text](target)`.
fn targets(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).collect()
}

/// A relative target as a path from the root; `None` if it leaves the repository.
fn resolve(folder: &str, target: &str) -> Option<String> {
    if target.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn finds(text: &str, want: &[&str]) {
        let there = ["crates", "crates/ops", "crates/ops/README.md", "docs/a.md", ""];
        let found = check("crates/ops/README.md", text, |path| there.contains(&path));
        let found: Vec<&str> = found.iter().map(|p| p.text.split('`').nth(1).unwrap()).collect();
        assert_eq!(found, want, "{text}");
    }

    #[test]
    fn links_that_lead_somewhere() {
        finds(
            "[a](../../docs/a.md), [`b`](README.md#part), [c](#here), [d](..) [e](https://example.org/x) [f](../..)",
            &[],
        );
        finds("`[a](nowhere)`\n```text\n[a](nowhere)\n```\n[b](./README.md \"title\")", &[]);
    }

    #[test]
    fn links_that_do_not() {
        finds("[a](src/lib.rs)", &["crates/ops/src/lib.rs"]);
        finds("[a](README.md) and [b](../arena/README.md#x)", &["crates/arena/README.md"]);
        finds("[a](../../../x.md) [b](/docs/a.md)", &["../../../x.md", "/docs/a.md"]);
    }

    #[test]
    fn problems_name_the_line() {
        let found = check("docs/b.md", "one\n[a](c.md)\n", |_| false);
        assert_eq!(found[0].to_string(), "docs/b.md:2: links to `docs/c.md`, which is not there");
    }
}
