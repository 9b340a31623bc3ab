//! `manifest.txt`: which binaries there are, for which GPUs, and from which sources they were compiled.
//!
//! Lines of words. `megatrain-kernels 1` comes first; `compiler` is followed by its version; `source NAME HASH` (16 hex
//! digits) and `binary SOURCE TARGET FILE` come once each. TARGET is `sm_80` or `sm_90a` (machine code) or `compute_80`
//! (PTX, which the driver compiles for the GPU it finds).

use crate::{SOURCES, source_hash};
use std::path::{Path, PathBuf};

const FILE: &str = "manifest.txt";
const FIRST_LINE: &str = "megatrain-kernels 1";

/// One compiled file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binary {
    /// The source, e.g. `add.cu`.
    pub source: String,
    /// `sm_80`, `sm_90a` or `compute_80`.
    pub target: String,
    /// Where it is.
    pub path: PathBuf,
}

/// A folder of compiled kernels that match this program's sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The folder.
    pub folder: PathBuf,
    /// The compiler's version.
    pub compiler: String,
    /// Every binary.
    pub binaries: Vec<Binary>,
}

/// Why there are no usable kernels.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// No folder has a manifest.
    #[error(
        "no compiled kernels were found (looked in {}); `cargo xtask kernels` compiles them, MEGATRAIN_KERNELS may name \
         their folder",
        list(.looked)
    )]
    Missing {
        /// The folders.
        looked: Vec<PathBuf>,
    },
    /// The manifest cannot be read.
    #[error("{}, line {line}: {why}; `cargo xtask kernels` writes it anew", path.display())]
    Malformed {
        /// The manifest.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// A binary was compiled from another source.
    #[error("the kernels in {} were compiled from another version of {source_name}; run `cargo xtask kernels`", folder.display())]
    Stale {
        /// The folder.
        folder: PathBuf,
        /// The source.
        source_name: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Where to look: in the folder that was named, or near the program.
fn folders(named: Option<&Path>, program: &Path) -> Vec<PathBuf> {
    match named {
        Some(folder) => vec![folder.to_owned()],
        None => program.ancestors().skip(1).take(4).map(|above| above.join("kernels")).collect(),
    }
}

impl Manifest {
    /// The kernels in `folder` if one is given; otherwise in the folder that the variable MEGATRAIN_KERNELS names; otherwise
    /// in a folder `kernels` beside the program or up to three levels above it, where a bundle has them and cargo's target
    /// folder, whatever its name.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn find(folder: Option<&Path>) -> Result<Manifest, ManifestError> {
        let variable = std::env::var_os("MEGATRAIN_KERNELS").filter(|value| !value.is_empty()).map(PathBuf::from);
        let program = std::env::current_exe().unwrap_or_default();
        Manifest::find_in(folders(folder.or(variable.as_deref()), &program))
    }

    fn find_in(looked: Vec<PathBuf>) -> Result<Manifest, ManifestError> {
        for folder in &looked {
            if let Ok(text) = std::fs::read_to_string(folder.join(FILE)) {
                return Manifest::parse(folder, &text);
            }
        }
        Err(ManifestError::Missing { looked })
    }

    /// # Errors
    /// [`ManifestError::Malformed`], [`ManifestError::Stale`].
    fn parse(folder: &Path, text: &str) -> Result<Manifest, ManifestError> {
        let malformed = |line: usize, why: &str| ManifestError::Malformed {
            path: folder.join(FILE),
            line: line + 1,
            why: why.into(),
        };
        let mut manifest = Manifest { folder: folder.to_owned(), compiler: String::new(), binaries: Vec::new() };
        let mut current = Vec::new();
        for (i, line) in text.lines().enumerate() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                _ if i == 0 && line == FIRST_LINE => {}
                _ if i == 0 => return Err(malformed(0, &format!("expected `{FIRST_LINE}`"))),
                ["compiler", ..] => manifest.compiler = line["compiler".len()..].trim().into(),
                ["source", name, hash] => {
                    let hash =
                        u64::from_str_radix(hash, 16).map_err(|_| malformed(i, "the hash is not hexadecimal"))?;
                    if source_hash(name) != Some(hash) {
                        return Err(ManifestError::Stale { folder: folder.to_owned(), source_name: name.into() });
                    }
                    current.push(name);
                }
                ["binary", source, target, file] => manifest.binaries.push(Binary {
                    source: source.into(),
                    target: target.into(),
                    path: folder.join(file),
                }),
                _ => return Err(malformed(i, "not a line of a manifest")),
            }
        }
        match SOURCES.iter().find(|(name, _)| !current.contains(name)) {
            Some((name, _)) => Err(ManifestError::Stale { folder: folder.to_owned(), source_name: (*name).into() }),
            None => Ok(manifest),
        }
    }

    /// The binary of `source` that a GPU of compute capability `major.minor` runs best: machine code for it, machine code
    /// for an earlier minor version, PTX. `None` if nothing fits.
    pub fn pick(&self, source: &str, capability: (u32, u32)) -> Option<&Binary> {
        let (major, minor) = capability;
        let rank = |target: &str| -> Option<u32> {
            let (kind, digits) = target.split_once('_')?;
            let exact = digits.ends_with('a');
            let number: u32 = digits.trim_end_matches('a').parse().ok()?;
            let built = (number / 10, number % 10);
            match kind {
                "sm" if built == capability => Some(100),
                "sm" if !exact && built.0 == major && built.1 <= minor => Some(50 + built.1),
                "compute" if !exact && built <= capability => Some(1 + built.0),
                _ => None,
            }
        };
        let fitting = self.binaries.iter().filter(|b| b.source == source);
        fitting.filter_map(|b| Some((rank(&b.target)?, b))).max_by_key(|(rank, _)| *rank).map(|(_, b)| b)
    }

    /// The targets that were compiled for, e.g. `["compute_80", "sm_80", "sm_90a"]`.
    pub fn targets(&self) -> Vec<&str> {
        let mut targets: Vec<&str> = self.binaries.iter().map(|b| b.target.as_str()).collect();
        targets.sort();
        targets.dedup();
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        let mut text = format!("{FIRST_LINE}\ncompiler nvcc 13.0.88\n");
        for (name, _) in SOURCES {
            text += &format!("source {name} {:016x}\n", source_hash(name).unwrap());
            for target in ["sm_80", "sm_90a", "compute_80"] {
                text += &format!("binary {name} {target} {name}.{target}\n");
            }
        }
        text
    }

    fn parse(text: &str) -> Result<Manifest, ManifestError> {
        Manifest::parse(Path::new("here"), text)
    }

    #[test]
    fn the_best_binary_for_each_gpu_is_picked() {
        let manifest = parse(&text()).unwrap();
        assert_eq!(manifest.compiler, "nvcc 13.0.88");
        let target = |capability| manifest.pick("add.cu", capability).map(|b| b.target.as_str());
        assert_eq!(target((9, 0)), Some("sm_90a"));
        assert_eq!(target((8, 0)), Some("sm_80"));
        assert_eq!(target((8, 9)), Some("sm_80"));
        assert_eq!(target((10, 0)), Some("compute_80"));
        assert_eq!(target((7, 5)), None);
        assert_eq!(manifest.pick("other.cu", (9, 0)), None);
        assert_eq!(manifest.targets(), ["compute_80", "sm_80", "sm_90a"]);
    }

    #[test]
    fn other_sources_and_broken_manifests_are_refused() {
        let hash = format!("{:016x}", source_hash("add.cu").unwrap());
        let error = parse(&text().replace(&hash, "0123456789abcdef")).unwrap_err().to_string();
        assert!(error.contains("add.cu") && error.contains("xtask kernels"), "{error}");
        let error = parse(&text().replace(&format!("source add.cu {hash}\n"), "")).unwrap_err().to_string();
        assert!(error.contains("another version of add.cu"), "{error}");
        let error = parse("something\n").unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
        let error = parse(&(text() + "nonsense\n")).unwrap_err().to_string();
        assert!(error.contains("not a line of a manifest"), "{error}");
    }

    #[test]
    fn kernels_are_found_beside_and_above_programs_that_cargo_or_a_bundle_placed() {
        let target = std::env::temp_dir().join(format!("megatrain-kernels-{}", std::process::id()));
        std::fs::create_dir_all(target.join("kernels")).unwrap();
        std::fs::write(target.join("kernels").join(FILE), text()).unwrap();
        let triple = "x86_64-unknown-linux-gnu/release/deps/conformance-0123";
        for program in ["megatrain", "release/megatrain", "debug/deps/conformance-0123", triple] {
            let manifest = Manifest::find_in(folders(None, &target.join(program))).unwrap();
            assert_eq!(manifest.folder, target.join("kernels"), "{program}");
        }
        let error = Manifest::find_in(folders(None, &target.join("a/b/c/d/program"))).unwrap_err().to_string();
        assert!(error.contains("a/kernels") && error.contains("MEGATRAIN_KERNELS"), "{error}");
        let named = Manifest::find_in(folders(Some(&target.join("kernels")), Path::new("/elsewhere/program"))).unwrap();
        assert_eq!(named.binaries.len(), 3 * SOURCES.len());
        std::fs::remove_dir_all(&target).unwrap();
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = Manifest::find(Some(Path::new("no/such/folder"))).unwrap_err().to_string();
        assert!(error.contains("no/such/folder") && error.contains("xtask kernels"), "{error}");
    }
}
