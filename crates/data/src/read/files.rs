//! Which files the given paths mean, in which order and format.

use crate::error::{self, Error};
use std::path::{Path, PathBuf};

/// What a file's name says about its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// `.txt`: one document.
    Text,
    /// `.jsonl`: an object a line.
    Lines,
    /// `.json`: an array of objects.
    Array,
}

/// Directories nested deeper than this are taken for a cycle of links.
const MAX_DEPTH: usize = 32;

const FORMATS: &str = ".txt, .jsonl or .json";

/// All data files: those named, and in directories, at any depth, every visible file of a known format, by name.
pub(super) fn find(paths: &[PathBuf]) -> Result<Vec<(PathBuf, Format)>, Error> {
    let mut found: Vec<(PathBuf, Format)> = Vec::new();
    for path in paths {
        let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => error::file(path, "no such file or directory; check --data"),
            _ => error::io(path, "opening")(e),
        })?;
        if meta.is_dir() {
            let before = found.len();
            walk(path, 0, &mut found)?;
            if found.len() == before {
                return Err(error::file(path, format!("the directory holds no {FORMATS} file")));
            }
        } else {
            found.push((path.clone(), format(path).ok_or_else(|| unknown(path))?));
        }
    }
    for (i, (path, _)) in found.iter().enumerate() {
        if found[..i].iter().any(|(earlier, _)| earlier == path) {
            return Err(error::file(path, "given twice in --data; name it once"));
        }
    }
    Ok(found)
}

fn walk(dir: &Path, depth: usize, found: &mut Vec<(PathBuf, Format)>) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(error::file(dir, "directories are nested too deep; is there a link to a parent?"));
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(error::io(dir, "listing"))? {
        entries.push(entry.map_err(error::io(dir, "listing"))?.path());
    }
    entries.sort();
    for path in entries {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
            continue;
        }
        if path.is_dir() {
            walk(&path, depth + 1, found)?;
        } else if let Some(format) = format(&path) {
            found.push((path, format));
        }
    }
    Ok(())
}

fn format(path: &Path) -> Option<Format> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "txt" => Some(Format::Text),
        "jsonl" => Some(Format::Lines),
        "json" => Some(Format::Array),
        _ => None,
    }
}

fn unknown(path: &Path) -> Error {
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let advice = match extension.as_str() {
        "gz" | "zst" | "xz" | "bz2" | "zip" => "unpack it first",
        "parquet" | "arrow" | "csv" | "tsv" => "convert it to .jsonl with a \"text\" in each line",
        _ => "rename or convert it",
    };
    error::file(path, format!("data files are {FORMATS}; {advice}"))
}
