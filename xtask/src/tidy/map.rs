//! The code map of ARCHITECTURE.md: which folders there are, in order, and which crates each may use. The checks of edges
//! take their rules from it, so that the page a newcomer reads is the one that is enforced.

use super::Problem;

/// The file with the map.
pub const FILE: &str = "ARCHITECTURE.md";

const HEADING: &str = "## Code map";

/// What a crate may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Uses {
    /// These crates, by the last part of their folder.
    Only(Vec<String>),
    /// Every crate of an earlier row.
    AllAbove,
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Folder from the root.
    pub folder: String,
    /// What it may use.
    pub uses: Uses,
    /// Line, counted from 1.
    pub line: usize,
}

impl Row {
    /// The crate's short name: the last part of its folder.
    pub fn name(&self) -> &str {
        self.folder.rsplit('/').next().unwrap_or(&self.folder)
    }
}

/// The rows, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map(pub Vec<Row>);

impl Map {
    /// The place of a folder's row.
    pub fn place(&self, folder: &str) -> Option<usize> {
        self.0.iter().position(|row| row.folder == folder)
    }

    /// The place of a crate's row by its short name.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|row| row.name() == name)
    }
}

/// Reads the table under the heading `## Code map`: folder in backticks, what it may use, anything.
///
/// # Errors
/// No such table, or a row that cannot be read or names a crate that no earlier row has.
pub fn parse(text: &str) -> Result<Map, Problem> {
    let mut map = Map(Vec::new());
    let lines = text.lines().enumerate().skip_while(|(_, line)| line.trim() != HEADING).skip(1);
    for (i, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
        let line_number = i + 1;
        let problem = |text: String| Problem::new(FILE, line_number, text);
        let Some(cells) = line.strip_prefix('|') else { continue };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        // The header and the line below it name no folder.
        let Some(folder) = cells[0].split('`').nth(1) else { continue };
        let uses = match cells.get(1) {
            Some(&"all above") => Uses::AllAbove,
            Some(&"nothing") => Uses::Only(Vec::new()),
            Some(names) if !names.is_empty() => Uses::Only(names.split(',').map(|n| n.trim().to_string()).collect()),
            _ => {
                return Err(problem(format!(
                    "says not what `{folder}` may use; name crates, `nothing` or `all above`"
                )));
            }
        };
        if let Uses::Only(names) = &uses
            && let Some(name) = names.iter().find(|name| map.place_of(name).is_none())
        {
            return Err(problem(format!(
                "lets `{folder}` use `{name}`, which no row above is; move the row or mend it"
            )));
        }
        if map.place(folder).is_some() {
            return Err(problem(format!("has a second row for `{folder}`; remove one")));
        }
        map.0.push(Row { folder: folder.into(), uses, line: line_number });
    }
    match map.0.is_empty() {
        true => Err(Problem::new(FILE, 0, format!("has no table of crates under `{HEADING}`"))),
        false => Ok(map),
    }
}

/// Compares the map with the folders that hold a package.
pub fn check(map: &Map, packages: &[&str]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for row in map.0.iter().filter(|row| !packages.contains(&row.folder.as_str())) {
        problems.push(Problem::new(
            FILE,
            row.line,
            format!("the code map lists `{}`, which is no package", row.folder),
        ));
    }
    for package in packages.iter().filter(|package| map.place(package).is_none()) {
        problems.push(Problem::new(FILE, 0, format!("the code map has no row for `{package}`; add it")));
    }
    problems
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A map of four crates.
    pub const TEXT: &str = "# A\n\n## Code map\n\nWords.\n\n| Folder | May use | Purpose |\n|---|---|---|\n\
        | [`crates/base`](crates/base) | nothing | x |\n| `crates/ops` | base | x |\n| `crates/cpu` | base, ops | x |\n\
        | `tests` | all above | x |\n\n## Next\n\n| `crates/other` | base | not of the map |\n";

    #[test]
    fn reads_the_table_of_its_section_only() {
        let map = parse(TEXT).unwrap();
        let folders: Vec<&str> = map.0.iter().map(|row| row.folder.as_str()).collect();
        assert_eq!(folders, ["crates/base", "crates/ops", "crates/cpu", "tests"]);
        assert_eq!(map.0[2].uses, Uses::Only(vec!["base".into(), "ops".into()]));
        assert_eq!((map.0[3].uses.clone(), map.0[3].line), (Uses::AllAbove, 12));
    }

    #[test]
    fn refuses_maps_it_cannot_hold_to() {
        for (row, want) in [
            ("| `crates/x` | ops, later | x |", "`later`, which no row above is"),
            ("| `crates/x` | x |", "`x`, which no row above is"),
            ("| `crates/x` |", "says not what `crates/x` may use"),
            ("| `crates/ops` | base | x |", "a second row"),
        ] {
            let text = TEXT.replace("| `tests` | all above | x |", row);
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(want) && error.starts_with("ARCHITECTURE.md:12"), "{row}: {error}");
        }
        for text in ["", "## Code map\n\nNo table.\n", "## Other\n| `a` | nothing | x |\n"] {
            assert!(parse(text).unwrap_err().text.contains("no table"), "{text:?}");
        }
    }

    #[test]
    fn compares_with_the_folders() {
        let map = parse(TEXT).unwrap();
        assert!(check(&map, &["crates/base", "crates/ops", "crates/cpu", "tests"]).is_empty());
        let found: Vec<String> = check(&map, &["crates/base", "crates/new", "crates/cpu", "tests"])
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("ARCHITECTURE.md:10: the code map lists `crates/ops`"), "{found:?}");
        assert!(found[1].contains("no row for `crates/new`"), "{found:?}");
    }
}
