//! The header of one `.safetensors` file, read and proved sound without touching the data.
//!
//! Format: 8 bytes little-endian header length `n`, `n` bytes of JSON that map each name to its dtype, shape and
//! `[begin, end)` in the data that follows, and the data. Tensors must fill the data without gaps or overlaps.
//! Source: <https://huggingface.co/docs/safetensors/index#format>.

use crate::dtype::FileDType;
use crate::error::{self, Error, TensorFault};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The longest header accepted, in bytes: the limit that the format's other readers keep.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One tensor of a file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub name: String,
    pub dtype: FileDType,
    pub shape: Vec<u64>,
    /// First byte, counted from the beginning of the file.
    pub offset: u64,
    pub len_bytes: u64,
}

/// All tensors of a file, in the order of their bytes.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: Map<String, Value>,
    pub entries: Vec<Entry>,
}

impl Header {
    /// Reads and checks the header of an open file; `path` is for messages.
    pub fn read(path: &Path, file: &mut File) -> Result<Header, Error> {
        let file_bytes = file.metadata().map_err(error::io(path, "reading its length"))?.len();
        if file_bytes == 0 {
            return Err(error::file(path, "the file is empty: copy or download it again"));
        }
        if file_bytes < 8 {
            let problem = format!("the file has only {file_bytes} bytes, too few for a .safetensors file: {AGAIN}");
            return Err(error::file(path, problem));
        }
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(error::io(path, "reading"))?;
        if let Some(what) = foreign(&length) {
            let problem = format!("this is {what}, not a .safetensors file: {AGAIN}");
            return Err(error::file(path, problem));
        }
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES {
            let problem = format!(
                "the header claims {header_bytes} bytes, more than the {MAX_HEADER_BYTES} allowed: \
                 this is not a .safetensors file, or it is damaged; {AGAIN}"
            );
            return Err(error::file(path, problem));
        }
        if header_bytes > file_bytes - 8 {
            let problem = format!(
                "the file is truncated inside its header: {header_bytes} header bytes announced, {} present; {AGAIN}",
                file_bytes - 8
            );
            return Err(error::file(path, problem));
        }
        let mut json = vec![0; header_bytes as usize];
        file.read_exact(&mut json).map_err(error::io(path, "reading"))?;
        Self::parse(path, &json, file_bytes)
    }

    fn parse(path: &Path, json: &[u8], file_bytes: u64) -> Result<Header, Error> {
        let damaged = |why: &dyn fmt::Display| error::file(path, format!("the header is not valid ({why}); {AGAIN}"));
        let text = std::str::from_utf8(json).map_err(|e| damaged(&e))?;
        let UniqueMap(raw) = serde_json::from_str(text).map_err(|e| damaged(&e))?;
        let data_start = 8 + json.len() as u64;

        let mut metadata = Map::new();
        let mut entries = Vec::with_capacity(raw.len());
        for (name, value) in raw {
            if name == "__metadata__" {
                match value {
                    Value::Object(map) if map.values().all(Value::is_string) => metadata = map,
                    _ => return Err(damaged(&"__metadata__ must map strings to strings")),
                }
            } else {
                entries.push(entry(path, name, &value, data_start)?);
            }
        }
        entries.sort_by_key(|e| (e.offset, e.len_bytes));
        tile(path, &entries, data_start, file_bytes)?;
        Ok(Header { metadata, entries })
    }
}

const AGAIN: &str = "copy or download it again";

/// Recognises files that people mistake for `.safetensors` by their first bytes.
fn foreign(first: &[u8; 8]) -> Option<&'static str> {
    match first {
        b"version " => Some("a Git LFS pointer (run `git lfs pull` in the directory it came from)"),
        [b'P', b'K', 3, 4, ..] => Some("a zip archive (a PyTorch .bin file?)"),
        [b'G', b'G', b'U', b'F', ..] => Some("a GGUF file"),
        [b'<', b'!', ..] | [b'<', b'h', ..] => Some("a web page (a failed download?)"),
        _ => None,
    }
}

/// Reads one header entry and checks shape, type and offsets against each other.
fn entry(path: &Path, name: String, value: &Value, data_start: u64) -> Result<Entry, Error> {
    let malformed = |why: &str| error::tensor(path, &name, TensorFault::Entry(why.to_owned()));
    let object = value.as_object().ok_or_else(|| malformed("not an object"))?;
    let dtype = object.get("dtype").and_then(Value::as_str).ok_or_else(|| malformed("no \"dtype\""))?;
    let numbers = |key: &str| -> Option<Vec<u64>> { object.get(key)?.as_array()?.iter().map(Value::as_u64).collect() };
    let shape = numbers("shape").ok_or_else(|| malformed("\"shape\" is not a list of sizes"))?;
    let offsets = numbers("data_offsets").ok_or_else(|| malformed("\"data_offsets\" is not a list of two offsets"))?;
    let &[begin, end] = offsets.as_slice() else {
        return Err(malformed("\"data_offsets\" is not a list of two offsets"));
    };
    let fail = |fault| Err(error::tensor(path, &name, fault));
    let Some(dtype) = FileDType::from_header_name(dtype) else {
        return fail(TensorFault::UnknownDType(dtype.to_owned()));
    };
    if shape.contains(&0) {
        return fail(TensorFault::Empty(shape));
    }
    let Some(span_bytes) = end.checked_sub(begin) else {
        return fail(TensorFault::Backwards(begin, end));
    };
    if dtype.tensor_bytes(&shape) != Some(span_bytes) {
        return fail(TensorFault::Size { shape, dtype, span_bytes });
    }
    let Some(offset) = begin.checked_add(data_start).filter(|offset| offset.checked_add(span_bytes).is_some()) else {
        return fail(TensorFault::Entry("offsets beyond any file".to_owned()));
    };
    Ok(Entry { name, dtype, shape, offset, len_bytes: span_bytes })
}

/// Checks that sorted entries fill the data exactly.
fn tile(path: &Path, entries: &[Entry], data_start: u64, file_bytes: u64) -> Result<(), Error> {
    let mut end = data_start;
    for (i, e) in entries.iter().enumerate() {
        if e.offset < end {
            let fault = TensorFault::Overlap {
                other: entries[i - 1].name.clone(),
                begin: e.offset - data_start,
                other_end: end - data_start,
            };
            return Err(error::tensor(path, &e.name, fault));
        }
        if e.offset > end {
            let fault = TensorFault::Gap(end - data_start, e.offset - data_start);
            return Err(error::tensor(path, &e.name, fault));
        }
        end = e.offset + e.len_bytes;
        if end > file_bytes {
            let fault = TensorFault::Truncated { needed: end, actual: file_bytes };
            return Err(error::tensor(path, &e.name, fault));
        }
    }
    if end < file_bytes {
        let problem = format!("{} bytes at the end belong to no tensor; {AGAIN}", file_bytes - end);
        return Err(error::file(path, problem));
    }
    Ok(())
}

/// A JSON object that may not name a key twice: a second entry of the same name would silently win otherwise.
struct UniqueMap(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for UniqueMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = UniqueMap;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object that maps tensor names to their places")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<UniqueMap, A::Error> {
                let (mut entries, mut seen) = (Vec::new(), HashSet::new());
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if !seen.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format_args!("tensor \"{name}\" appears twice")));
                    }
                    entries.push((name, value));
                }
                Ok(UniqueMap(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
