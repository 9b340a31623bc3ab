//! Which crate may depend on which.
//!
//! The code map names, for each crate, the crates of this repository that it may use. Its tests and examples may also use
//! any crate of an earlier row: rows are in order, so no cycle can come of it. Some external crates are for one crate only.

use super::Problem;
use super::manifest::{Kind, Manifest};
use super::map::{FILE, Map, Uses};

/// External crates that only some of ours may depend on, tests included.
const EXCLUSIVE: [(&str, &[&str]); 6] = [
    ("cudarc", &["crates/cuda"]),
    ("gemm-common", &["crates/cpu"]),
    ("gemm-f32", &["crates/cpu"]),
    ("memmap2", &["crates/arena", "crates/data"]),
    ("tokenizers", &["crates/data"]),
    ("clap", &["crates/trainer"]),
];

/// Checks the manifest at `path`, `FOLDER/Cargo.toml`.
pub fn check(map: &Map, path: &str, manifest: &Manifest) -> Vec<Problem> {
    let mut problems = Vec::new();
    let folder = path.strip_suffix("/Cargo.toml").unwrap_or(path);
    let Some(place) = map.place(folder) else { return problems };
    let row = &map.0[place];
    let package = if folder == "xtask" { "xtask".into() } else { format!("megatrain-{}", row.name()) };
    if manifest.name != package {
        problems.push(Problem::new(path, 0, format!("names the package `{}`; it must be `{package}`", manifest.name)));
    }
    if !manifest.workspace_lints {
        problems.push(Problem::new(
            path,
            0,
            "does not take the workspace's lints; add `workspace = true` under `[lints]`",
        ));
    }
    for dependency in &manifest.dependencies {
        let problem = |text: String| Problem::new(path, dependency.line, text);
        let name = dependency.name.as_str();
        if folder == "xtask" {
            problems.push(problem(format!("xtask uses `{name}`; it has no dependencies, to be built in seconds")));
        }
        let exclusive = EXCLUSIVE.iter().find(|(external, owners)| *external == name && !owners.contains(&folder));
        if let Some((_, owners)) = exclusive {
            problems.push(problem(format!("uses `{name}`, which only {} may", owners.join(" and "))));
        }
        let Some(used) = name.strip_prefix("megatrain-") else { continue };
        let above = map.place_of(used).is_some_and(|p| p < place);
        let allowed = match (&row.uses, dependency.kind) {
            (Uses::AllAbove, _) | (_, Kind::Dev) => above,
            (Uses::Only(names), Kind::Normal) => names.iter().any(|n| n == used),
        };
        if !allowed {
            let may = match (&row.uses, dependency.kind) {
                (_, Kind::Dev) => "its tests may use only crates of earlier rows".into(),
                (Uses::AllAbove, _) => "it may use only crates of earlier rows".into(),
                (Uses::Only(names), _) if names.is_empty() => "it may use none of ours".into(),
                (Uses::Only(names), _) => format!("it may use {}", names.join(", ")),
            };
            problems.push(problem(format!(
                "uses {used}; by the code map of {FILE} {may}. If the edge is right, argue for it in docs/decisions.md and \
                 add it to the map"
            )));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::super::{manifest, map};
    use super::*;

    fn found(folder: &str, dependencies: &str) -> Vec<String> {
        let map = map::parse(map::tests::TEXT).unwrap();
        let name = folder.rsplit('/').next().unwrap();
        let text = format!("[package]\nname = \"megatrain-{name}\"\n[lints]\nworkspace = true\n{dependencies}");
        let path = format!("{folder}/Cargo.toml");
        check(&map, &path, &manifest::parse(&text).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn edges_of_the_map_are_allowed() {
        for (folder, dependencies) in [
            ("crates/base", "[dependencies]\nhalf = \"2\"\n"),
            ("crates/cpu", "[dependencies]\nmegatrain-ops.workspace = true\nmegatrain-base.workspace = true\n"),
            ("crates/ops", "[dev-dependencies]\nmegatrain-base.workspace = true\n"),
            ("tests", "[dependencies]\nmegatrain-cpu.workspace = true\n"),
            ("crates/cpu", "[dependencies]\ngemm-f32 = \"1\"\n"),
        ] {
            assert_eq!(found(folder, dependencies), [""; 0], "{folder}");
        }
    }

    #[test]
    fn other_edges_are_not() {
        for (folder, dependencies, want) in [
            ("crates/base", "[dependencies]\nmegatrain-ops.workspace = true\n", "it may use none of ours"),
            ("crates/ops", "[dependencies]\nmegatrain-cpu.workspace = true\n", "it may use base"),
            ("crates/ops", "[dev-dependencies]\nmegatrain-cpu.workspace = true\n", "only crates of earlier rows"),
            ("crates/ops", "[build-dependencies]\nmegatrain-cpu.workspace = true\n", "it may use base"),
            ("crates/ops", "[dependencies]\nx = { package = \"megatrain-cpu\" }\n", "uses cpu"),
            ("tests", "[dependencies]\nmegatrain-tests.workspace = true\n", "only crates of earlier rows"),
            ("crates/ops", "[dependencies]\nmegatrain-unknown.workspace = true\n", "uses unknown"),
            ("crates/ops", "[target.'cfg(unix)'.dependencies]\ncudarc = \"1\"\n", "only crates/cuda may"),
            ("tests", "[dev-dependencies]\ngemm-f32 = \"1\"\n", "only crates/cpu may"),
            ("crates/ops", "[dependencies]\nmemmap2 = \"1\"\n", "only crates/arena and crates/data may"),
        ] {
            let found = found(folder, dependencies);
            assert!(found.len() == 1 && found[0].contains(want), "{folder}: {found:?}");
            assert!(found[0].contains("Cargo.toml:6: "), "{found:?}");
        }
    }

    #[test]
    fn packages_are_named_after_folders_and_take_the_lints() {
        let map = map::parse(map::tests::TEXT).unwrap();
        let manifest = manifest::parse("[package]\nname = \"odd\"\n").unwrap();
        let found: Vec<String> =
            check(&map, "crates/ops/Cargo.toml", &manifest).iter().map(ToString::to_string).collect();
        assert!(found[0].contains("it must be `megatrain-ops`") && found[1].contains("lints"), "{found:?}");
    }

    #[test]
    fn xtask_has_no_dependencies() {
        let map = map::parse(&map::tests::TEXT.replace("`tests`", "`xtask`")).unwrap();
        let text = "[package]\nname = \"xtask\"\n[lints]\nworkspace = true\n[dependencies]\nserde = \"1\"\n";
        let found = check(&map, "xtask/Cargo.toml", &manifest::parse(text).unwrap());
        assert!(found.len() == 1 && found[0].text.contains("xtask uses `serde`"), "{found:?}");
    }
}
