//! The files that the checks look at, read once. Folders that hold no sources of ours (build output, hidden ones) are left out.

use std::collections::BTreeMap;
use std::path::Path;

/// Folders at the root that hold sources and documents.
const FOLDERS: [&str; 5] = ["crates", "docs", "kernels", "tests", "xtask"];

/// Endings of the files whose text is checked.
const TEXTS: [&str; 8] = ["rs", "cu", "cuh", "md", "toml", "py", "sh", "yml"];

/// Texts by path from the root, with `/` between folders; other files are known by name only.
#[derive(Default)]
pub struct Files {
    texts: BTreeMap<String, Option<String>>,
}

impl Files {
    /// Paths and texts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// Files whose text is checked.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path)?.as_deref()
    }

    /// Whether this is a file, or a folder with a file in it.
    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty() || self.texts.contains_key(path) || self.below(path).next().is_some()
    }

    /// Paths of the files in this folder and those in it.
    pub fn below(&self, folder: &str) -> impl Iterator<Item = &str> {
        let prefix = format!("{folder}/");
        let start = prefix.clone();
        self.texts.range(start..).map(|(path, _)| path.as_str()).take_while(move |path| path.starts_with(&prefix))
    }

    /// Folders with a manifest, the root left out.
    pub fn packages(&self) -> Vec<&str> {
        self.texts.keys().filter_map(|path| path.strip_suffix("/Cargo.toml")).collect()
    }

    /// Files of these texts.
    #[cfg(test)]
    pub fn from_texts(texts: &[(&str, &str)]) -> Self {
        Files { texts: texts.iter().map(|(path, text)| (path.to_string(), Some(text.to_string()))).collect() }
    }
}

/// Reads the repository at `root`.
///
/// # Errors
/// The file or folder that cannot be read, or a text that is not UTF-8.
pub fn read(root: &Path) -> Result<Files, String> {
    let mut files = Files::default();
    read_folder(root, "", &mut files)?;
    Ok(files)
}

fn read_folder(folder: &Path, prefix: &str, files: &mut Files) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let (name, kind) = (entry.file_name(), entry.file_type().map_err(fail)?);
        let name = name.to_string_lossy();
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            let ours = if prefix.is_empty() { FOLDERS.contains(&&*name) } else { name != "target" };
            if ours && !name.starts_with('.') {
                read_folder(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if kind.is_file() {
            let checked = name.rsplit_once('.').is_some_and(|(_, ending)| TEXTS.contains(&ending));
            let text = match checked {
                true => Some(std::fs::read_to_string(entry.path()).map_err(|e| format!("{path}: {e}"))?),
                false => None,
            };
            files.texts.insert(path, text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_folders_and_text_files_are_read() {
        let root = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        for (path, text) in [
            ("README.md", "a"),
            ("crates/base/src/lib.rs", "b"),
            ("crates/base/target/x.rs", "c"),
            ("crates/base/golden.bin", "d"),
            ("target/x.rs", "e"),
            ("out/x.md", "f"),
            (".git/x.md", "g"),
        ] {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let files = read(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(files.iter().collect::<Vec<_>>(), [("README.md", "a"), ("crates/base/src/lib.rs", "b")]);
        assert!(files.exists("crates/base/golden.bin") && files.exists("crates/base/src/") && files.exists(""));
        assert!(!files.exists("crates/bas") && !files.exists("out/x.md"));
        assert!(read(&root).err().is_some_and(|e| e.contains("xtask-tree")));
    }
}
