//! Which files the given paths mean, in which order, and of which kind their names say they are.

use crate::error::{self, Error};
use std::path::{Path, PathBuf};

/// What a file's name says about its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileKind {
    pub container: Container,
    pub packing: Packing,
}

/// How records lie in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Container {
    /// `.txt`: one document.
    Text,
    /// `.json`, `.jsonl`, `.ndjson`: an array of objects, or an object a line; the content says which.
    Json,
    /// `.parquet`: a table.
    Parquet,
    /// `.arrow`: a table, as a file or as a stream.
    Arrow,
}

/// Compression of a text file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packing {
    None,
    Gzip,
    Zstd,
}

/// Directories nested deeper than this are taken for a cycle of links.
const MAX_DEPTH: usize = 32;

/// The names of data files, for messages.
pub(super) const NAMES: &str = ".txt, .jsonl, .json (each also .gz or .zst), .parquet or .arrow";

/// Files beside data that describe it: LLaMA-Factory's registry and what Hugging Face saves with a data set.
const NOT_DATA: [&str; 4] = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];

/// The data files that a path means: itself, or in a directory, at any depth, every visible one of a known kind, by name. Those of
/// other kinds are appended to `passed_over`.
pub(super) fn find(path: &Path, passed_over: &mut Vec<PathBuf>) -> Result<Vec<(PathBuf, FileKind)>, Error> {
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => error::file(path, absent(path)),
        _ => error::io(path, "opening")(e),
    })?;
    if !meta.is_dir() {
        return Ok(vec![(path.to_owned(), kind(path).ok_or_else(|| unknown(path))?)]);
    }
    let mut found = Vec::new();
    walk(path, 0, &mut found, passed_over)?;
    if found.is_empty() {
        return Err(error::file(path, format!("the directory holds no data files ({NAMES})")));
    }
    Ok(found)
}

/// What to say of a path where nothing is. Two words with a slash between may be a name on the Hugging Face hub.
fn absent(path: &Path) -> String {
    let text = path.display().to_string();
    let hub = text.split_once('/').filter(|(owner, name)| {
        let word = |word: &str| !word.is_empty() && !word.starts_with('.') && !word.contains('/');
        word(owner) && word(name) && !Path::new(owner).exists() && kind(path).is_none()
    });
    match hub {
        None => "no such file or directory; check the path".to_owned(),
        Some((_, name)) => format!(
            "no such file or directory. A data set on the Hugging Face hub is downloaded first: `hf download {text} \
             --repo-type dataset --local-dir {name}`, then give {name}"
        ),
    }
}

fn walk(
    dir: &Path,
    depth: usize,
    found: &mut Vec<(PathBuf, FileKind)>,
    passed_over: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(error::file(dir, "directories are nested too deep; is there a link to a parent?"));
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(error::io(dir, "listing"))? {
        entries.push(entry.map_err(error::io(dir, "listing"))?.path());
    }
    entries.sort();
    for path in entries {
        let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { continue };
        if name.starts_with('.') || NOT_DATA.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            walk(&path, depth + 1, found, passed_over)?;
        } else if let Some(kind) = kind(&path) {
            found.push((path, kind));
        } else {
            passed_over.push(path);
        }
    }
    Ok(())
}

fn kind(path: &Path) -> Option<FileKind> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let (inner, packing) = match name.rsplit_once('.')? {
        (inner, "gz") => (inner, Packing::Gzip),
        (inner, "zst" | "zstd") => (inner, Packing::Zstd),
        _ => (name.as_str(), Packing::None),
    };
    let container = match inner.rsplit_once('.')?.1 {
        "txt" => Container::Text,
        "jsonl" | "json" | "ndjson" => Container::Json,
        "parquet" if packing == Packing::None => Container::Parquet,
        "arrow" if packing == Packing::None => Container::Arrow,
        _ => return None,
    };
    Some(FileKind { container, packing })
}

fn unknown(path: &Path) -> Error {
    let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let advice = match extension.as_str() {
        "gz" | "zst" | "xz" | "bz2" | "zip" | "tar" => "unpack it first",
        "csv" | "tsv" | "xls" | "xlsx" => "convert it to .jsonl, an object a line",
        _ => "rename or convert it",
    };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let read = match extension.as_str() {
        "csv" => format!("read_csv({name:?})"),
        "tsv" => format!("read_csv({name:?}, sep=\"\\t\")"),
        "xls" | "xlsx" => format!("read_excel({name:?})"),
        _ => return error::file(path, format!("data files are {NAMES}; {advice}")),
    };
    let python = format!("pandas.{read}.to_json(\"data.jsonl\", orient=\"records\", lines=True)");
    error::file(path, format!("data files are {NAMES}; {advice}, for example in Python: {python}"))
}
