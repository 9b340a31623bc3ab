//! Reads of a `Cargo.toml` what the checks need: package name, dependencies, whether the workspace's lints are on.
//!
//! It reads the TOML that manifests are written in, line by line, and refuses what it does not know rather than pass over it.

/// What a dependency is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The library and what it builds with.
    Normal,
    /// Tests, examples, benchmarks.
    Dev,
}

/// One dependency.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dependency {
    /// Package name, also where it is renamed.
    pub name: String,
    /// Line, counted from 1.
    pub line: usize,
    /// What for.
    pub kind: Kind,
}

/// The part of a manifest that is checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// `package.name`.
    pub name: String,
    /// Of every section, target-specific ones included.
    pub dependencies: Vec<Dependency>,
    /// `lints.workspace = true`.
    pub workspace_lints: bool,
}

/// Where a line stands.
enum Section {
    Package,
    Lints,
    Dependencies(Kind),
    /// `[dependencies.NAME]`: the last dependency's own table.
    Dependency,
    Other,
}

/// Parses a manifest.
///
/// # Errors
/// The line, counted from 1, and why it cannot be read.
pub fn parse(text: &str) -> Result<Manifest, (usize, String)> {
    let mut manifest = Manifest::default();
    let mut section = Section::Other;
    let mut depth = 0;
    for (i, line) in text.lines().enumerate() {
        let line_number = i + 1;
        let unreadable = || (line_number, format!("cannot read `{}`; write it as other manifests do", line.trim()));
        let line = without_comment(line);
        let continued = depth > 0;
        let header = !continued && line.starts_with('[');
        depth += nesting(line);
        if continued || line.is_empty() {
            continue;
        }
        if header {
            if depth != 0 {
                return Err(unreadable());
            }
            section = enter(line.trim_matches(['[', ']']), line_number, &mut manifest);
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(unreadable)?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() || value.is_empty() || value.starts_with("\"\"\"") {
            return Err(unreadable());
        }
        match &section {
            Section::Package if key == "name" => manifest.name = unquoted(value).into(),
            Section::Lints if key == "workspace" => manifest.workspace_lints = value == "true",
            Section::Dependencies(kind) => {
                let name = renamed(value).unwrap_or(key.split('.').next().unwrap_or(key));
                let dependency = Dependency { name: unquoted(name).into(), line: line_number, kind: *kind };
                manifest.dependencies.push(dependency);
            }
            Section::Dependency if key == "package" => {
                if let Some(last) = manifest.dependencies.last_mut() {
                    last.name = unquoted(value).into();
                }
            }
            _ => {}
        }
    }
    match depth {
        0 => Ok(manifest),
        _ => Err((text.lines().count(), "ends inside a list or table".into())),
    }
}

/// The section a header opens; `[dependencies.NAME]` is a dependency by itself.
fn enter(header: &str, line: usize, manifest: &mut Manifest) -> Section {
    match header {
        "package" => return Section::Package,
        "lints" => return Section::Lints,
        _ => {}
    }
    for (word, kind) in
        [("dev-dependencies", Kind::Dev), ("build-dependencies", Kind::Normal), ("dependencies", Kind::Normal)]
    {
        // `[target.'cfg(unix)'.dependencies]` ends with the word; `[dependencies.NAME]` has it before the name.
        if header == word || header.ends_with(&format!(".{word}")) {
            return Section::Dependencies(kind);
        }
        if let Some(at) = header.find(&format!("{word}.")).filter(|&at| at == 0 || header[..at].ends_with('.')) {
            let name = unquoted(&header[at + word.len() + 1..]).into();
            manifest.dependencies.push(Dependency { name, line, kind });
            return Section::Dependency;
        }
    }
    Section::Other
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

/// The package of `{ package = "NAME", ... }`.
fn renamed(value: &str) -> Option<&str> {
    let inside = value.strip_prefix('{')?;
    inside.split([',', '}']).find_map(|entry| {
        let (key, value) = entry.split_once('=')?;
        (key.trim() == "package").then(|| value.trim())
    })
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (i, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') => return line[..i].trim(),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    line.trim()
}

/// Brackets and braces that a line opens, less those it closes.
fn nesting(line: &str) -> i32 {
    let (mut depth, mut quote) = (0, None);
    for c in line.chars() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_dependency() {
        let text = r#"
            [package] # the package
            name = "megatrain-x"
            keywords = [
                "a = b", # inside a list
            ]

            [dependencies]
            one.workspace = true
            two = "1"
            three = { version = "1", features = ["a", "b"] } # comment = "x"
            four = { package = "real-four", version = "1" }
            five = { version = "1", features = [
                "c",
            ] }

            [dependencies.six]
            version = "1"

            [target.'cfg(unix)'.dependencies]
            seven = "1"

            [build-dependencies]
            eight = "1"

            [dev-dependencies]
            nine = "1"

            [dev-dependencies.ten]
            package = "real-ten"
            version = "1"

            [features]
            default = ["eleven"]

            [lints]
            workspace = true
        "#;
        let manifest = parse(text).unwrap();
        assert_eq!((manifest.name.as_str(), manifest.workspace_lints), ("megatrain-x", true));
        let names = |kind: Kind| -> Vec<&str> {
            manifest.dependencies.iter().filter(|d| d.kind == kind).map(|d| d.name.as_str()).collect()
        };
        assert_eq!(names(Kind::Normal), ["one", "two", "three", "real-four", "five", "six", "seven", "eight"]);
        assert_eq!(names(Kind::Dev), ["nine", "real-ten"]);
        assert_eq!(manifest.dependencies[0].line, 9);
    }

    #[test]
    fn what_it_cannot_read_is_an_error_with_its_line() {
        for (text, line) in [
            ("[dependencies\n", 1),
            ("[dependencies]\nserde\n", 2),
            ("[dependencies]\n= 1\n", 2),
            ("[package]\nkeywords = [\n\"a\",\n", 3),
            ("[package]\ndescription = \"\"\"\n", 2),
        ] {
            assert_eq!(parse(text).map_err(|e| e.0), Err(line), "{text:?}");
        }
    }
}
