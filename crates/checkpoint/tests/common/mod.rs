//! Model directories made by hand, byte by byte, for the tests beside this folder.
#![allow(dead_code, reason = "each test file uses its part")]

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A tensor to be put in a file: name, dtype, shape, little-endian bytes.
pub struct Raw(pub &'static str, pub &'static str, pub Vec<u64>, pub Vec<u8>);

/// f32 values in the given dtype, rounded by the `half` crate.
pub fn raw(name: &'static str, dtype: &'static str, shape: &[u64], values: &[f32]) -> Raw {
    let bytes = values.iter().flat_map(|&value| match dtype {
        "F32" => value.to_le_bytes().to_vec(),
        "F16" => half::f16::from_f32(value).to_le_bytes().to_vec(),
        "BF16" => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        other => panic!("no values in {other}"),
    });
    Raw(name, dtype, shape.to_vec(), bytes.collect())
}

/// `n` distinct small values, exact in every dtype.
pub fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 97) as f32 * 0.25 - 8.0).collect()
}

/// A sound file of these tensors, header entries in the given order.
pub fn file(tensors: &[Raw]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt", "made_by": "a test"}));
    let mut data = Vec::new();
    for Raw(name, dtype, shape, bytes) in tensors {
        let end = data.len() + bytes.len();
        header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [data.len(), end]}));
        data.extend_from_slice(bytes);
    }
    framed(&Value::Object(header).to_string(), &data)
}

/// Length, header text as it is, data.
pub fn framed(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A directory with these files.
pub fn dir_of(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// An index that places each name in a file.
pub fn index(places: &[(&str, &str)]) -> Vec<u8> {
    let map: Map<String, Value> = places.iter().map(|&(name, file)| (name.to_owned(), Value::from(file))).collect();
    json!({"metadata": {"total_size": 1234}, "weight_map": map}).to_string().into_bytes()
}

/// An error's text with the directory taken out.
pub fn text(dir: &Path, error: impl ToString) -> String {
    error.to_string().replace(&format!("{}/", dir.display()), "").replace(&dir.display().to_string(), "DIR")
}
