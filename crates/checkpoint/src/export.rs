//! Writes a model directory: same files, names, order, dtypes and metadata as its source, or a fresh layout.

use crate::check::{Alias, Expected, is_harmless_extra};
use crate::convert;
use crate::dir::{CONFIG, INDEX, ModelDir, SINGLE};
use crate::dtype::{FileDType, FloatDType};
use crate::error::{self, Error, TensorFault};
use crate::read;
use crate::replace::Staging;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Largest weight file of a fresh layout, in bytes; a single larger tensor gets a file of its own.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;

/// Elements asked for and written at a time: with its f32 values and bytes, 4 MiB of memory at most, whatever the tensor.
const CHUNK_ELEMS: usize = 1 << 19;

/// Files that belong to a model beside its weights and configuration; copied from the source where it has them.
const COMPANIONS: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// A tensor of a fresh layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportTensor {
    /// Its name in the file.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Element type in the file.
    pub dtype: FloatDType,
}

/// Produces values to be saved: `(name, first element, out)` fills `out` with the f32 masters of the tensor's elements
/// from `first` on. Called in file order, each tensor's chunks in ascending order.
pub type Produce<'a> = dyn FnMut(&str, u64, &mut [f32]) -> Result<(), String> + 'a;

/// Which tensor goes where in which file, decided before a byte is written.
#[derive(Debug)]
pub struct ExportPlan<'a> {
    source: Option<&'a ModelDir>,
    files: Vec<PlannedFile>,
    index: Option<Value>,
    extras: Vec<(String, Vec<u8>)>,
}

#[derive(Debug)]
struct PlannedFile {
    name: String,
    metadata: Map<String, Value>,
    tensors: Vec<Planned>,
}

#[derive(Debug)]
struct Planned {
    name: String,
    dtype: FileDType,
    shape: Vec<u64>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// Values of the tensor of this name, from the callback.
    Produced { of: String, dtype: FloatDType },
    /// Bytes of the source.
    Copied,
}

impl<'a> ExportPlan<'a> {
    /// The layout of `source`: its files, names, order, element types and metadata. Its tokenizer and other companion
    /// files will be copied, its harmless extra tensors too; an alias that it has is written again from its tensor.
    ///
    /// Fails like [`ModelDir::check`] where `expected` is not what the source has.
    pub fn like(source: &'a ModelDir, expected: &[Expected], aliases: &[Alias]) -> Result<Self, Error> {
        source.check(expected, aliases)?;
        let mut wanted: HashMap<&str, &str> = expected.iter().map(|e| (e.name.as_str(), e.name.as_str())).collect();
        wanted.extend(aliases.iter().map(|a| (a.name.as_str(), a.of.as_str())));
        let plan = |entry: &crate::header::Entry| {
            let content = match (wanted.get(entry.name.as_str()), entry.dtype.float()) {
                (Some(&of), Some(dtype)) => Content::Produced { of: of.to_owned(), dtype },
                _ => {
                    debug_assert!(is_harmless_extra(&entry.name), "check() refuses every other extra");
                    Content::Copied
                }
            };
            Planned { name: entry.name.clone(), dtype: entry.dtype, shape: entry.shape.clone(), content }
        };
        let files = source.shards.iter().map(|shard| PlannedFile {
            name: shard.file_name.clone(),
            metadata: shard.metadata.clone(),
            tensors: shard.entries.iter().map(plan).collect(),
        });
        Ok(ExportPlan { source: Some(source), files: files.collect(), index: source.index.clone(), extras: Vec::new() })
    }

    /// A layout for a model that comes from no directory: one file, or several of at most `max_shard_bytes` with an
    /// index, tensors in the given order.
    ///
    /// Wider element types come first within a file, which keeps every tensor aligned to its elements.
    pub fn fresh(tensors: &[ExportTensor], max_shard_bytes: u64) -> Result<Self, Error> {
        let mut seen = HashSet::new();
        let (mut shards, mut shard_bytes, mut total_bytes) = (vec![Vec::new()], 0u64, 0u64);
        for tensor in tensors {
            let dtype = FileDType::Float(tensor.dtype);
            let fail = |fault| Err(error::tensor(SINGLE, &tensor.name, fault));
            if !seen.insert(&tensor.name) {
                return fail(TensorFault::Entry("the name is given twice".to_owned()));
            }
            let Some(bytes) = dtype.tensor_bytes(&tensor.shape).filter(|&bytes| bytes > 0) else {
                return fail(TensorFault::Empty(tensor.shape.clone()));
            };
            if shard_bytes > 0 && shard_bytes.saturating_add(bytes) > max_shard_bytes {
                shards.push(Vec::new());
                shard_bytes = 0;
            }
            shard_bytes += bytes;
            total_bytes += bytes;
            shards.last_mut().expect("there is always one").push(Planned {
                name: tensor.name.clone(),
                dtype,
                shape: tensor.shape.clone(),
                content: Content::Produced { of: tensor.name.clone(), dtype: tensor.dtype },
            });
        }
        let count = shards.len();
        let files: Vec<_> = shards
            .into_iter()
            .enumerate()
            .map(|(i, mut tensors)| {
                tensors.sort_by_key(|t| std::cmp::Reverse(t.dtype.bits()));
                let name = match count {
                    1 => SINGLE.to_owned(),
                    _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
                };
                PlannedFile { name, metadata: Map::new(), tensors }
            })
            .collect();
        let index = (count > 1).then(|| {
            let map: Map<String, Value> = files
                .iter()
                .flat_map(|file| file.tensors.iter().map(|t| (t.name.clone(), Value::from(file.name.clone()))))
                .collect();
            json!({ "metadata": { "total_size": total_bytes }, "weight_map": map })
        });
        Ok(ExportPlan { source: None, files, index, extras: Vec::new() })
    }

    /// With all weights in one element type, whatever the source has. Its config.json is the caller's.
    pub fn with_dtype(mut self, dtype: FloatDType) -> Self {
        for tensor in self.files.iter_mut().flat_map(|file| &mut file.tensors) {
            if let Content::Produced { dtype: produced, .. } = &mut tensor.content {
                *produced = dtype;
                tensor.dtype = FileDType::Float(dtype);
            }
        }
        let total_bytes = self.weight_bytes();
        if let Some(total) = self.index.as_mut().and_then(|index| index.pointer_mut("/metadata/total_size")) {
            *total = total_bytes.into();
        }
        self
    }

    /// Adds a file, such as a tokenizer for a model that comes from no directory. Wins over the source's.
    pub fn with_file(mut self, name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        self.extras.push((name.into(), bytes.into()));
        self
    }

    /// Bytes of all weights to be written.
    pub fn weight_bytes(&self) -> u64 {
        let tensors = self.files.iter().flat_map(|file| &file.tensors);
        tensors.map(|t| t.dtype.tensor_bytes(&t.shape).expect("planned tensors have sizes")).sum()
    }

    /// Writes the directory `out` and replaces what was there.
    ///
    /// All files are written and synced in a hidden directory beside `out`, which then takes its name; at any failure,
    /// a full disk or a kill included, the previous `out` stays as it was. The source may be `out` itself. `config` is
    /// written with its keys in order. Values are rounded to nearest even; one that the element type cannot hold
    /// finitely fails the export, naming it. Takes 5 MiB of memory beside the longest header.
    pub fn write(&self, out: &Path, config: &Value, produce: &mut Produce) -> Result<(), Error> {
        let staging = Staging::new(out)?;
        let dir = staging.path();
        write_json(&dir.join(CONFIG), config)?;
        for file in &self.files {
            self.write_weights(&dir.join(&file.name), out, file, produce)?;
        }
        if let Some(index) = &self.index {
            write_json(&dir.join(INDEX), index)?;
        }
        for name in COMPANIONS {
            let Some(from) = self.source.map(|source| source.path().join(name)).filter(|from| from.is_file()) else {
                continue;
            };
            fs::copy(&from, dir.join(name)).map_err(error::io(&from, "copying"))?;
            let copy = dir.join(name);
            File::open(&copy).and_then(|f| f.sync_all()).map_err(error::io(&copy, "syncing"))?;
        }
        for (name, bytes) in &self.extras {
            write_file(&dir.join(name), bytes)?;
        }
        staging.publish()
    }

    /// Writes one weight file; `out` is the final directory, for messages.
    fn write_weights(&self, path: &Path, out: &Path, file: &PlannedFile, produce: &mut Produce) -> Result<(), Error> {
        let failed = || error::io(path, "writing");
        let mut sink = BufWriter::with_capacity(1 << 16, File::create(path).map_err(failed())?);
        let header = header(file);
        sink.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed())?;
        sink.write_all(&header).map_err(failed())?;
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        for tensor in &file.tensors {
            let len_bytes = tensor.dtype.tensor_bytes(&tensor.shape).expect("planned tensors have sizes");
            let fail = |fault| error::tensor(out.join(&file.name), &tensor.name, fault);
            match &tensor.content {
                Content::Produced { of, dtype } => {
                    let elems = len_bytes / dtype.size_bytes();
                    for first in (0..elems).step_by(CHUNK_ELEMS) {
                        values.resize((elems - first).min(CHUNK_ELEMS as u64) as usize, 0.0);
                        produce(of, first, &mut values).map_err(|why| fail(TensorFault::Produce(why)))?;
                        convert::encode(*dtype, &values, &mut bytes).map_err(|(i, why)| {
                            fail(TensorFault::Unsavable { index: first + i as u64, value: values[i], why })
                        })?;
                        sink.write_all(&bytes).map_err(failed())?;
                    }
                }
                Content::Copied => {
                    let source = self.source.expect("only a source has tensors to copy");
                    let place = source.locate(&tensor.name).expect("planned from the source's own entries");
                    for first in (0..len_bytes).step_by(CHUNK_ELEMS) {
                        bytes.resize((len_bytes - first).min(CHUNK_ELEMS as u64) as usize, 0);
                        read::read_bytes(place, first, &mut bytes)?;
                        sink.write_all(&bytes).map_err(failed())?;
                    }
                }
            }
        }
        let file = sink.into_inner().map_err(|e| failed()(e.into_error()))?;
        file.sync_all().map_err(error::io(path, "syncing"))
    }
}

/// The header's JSON, padded with spaces so that the data begins at a multiple of 8 bytes.
fn header(file: &PlannedFile) -> Vec<u8> {
    let mut metadata = file.metadata.clone();
    // Loaders refuse files that do not say which framework's layout they have.
    metadata.entry("format").or_insert_with(|| Value::from("pt"));
    let mut map = Map::new();
    map.insert("__metadata__".to_owned(), Value::Object(metadata));
    let mut begin = 0;
    for tensor in &file.tensors {
        let end = begin + tensor.dtype.tensor_bytes(&tensor.shape).expect("planned tensors have sizes");
        let entry = json!({
            "dtype": tensor.dtype.header_name(), "shape": tensor.shape, "data_offsets": [begin, end]
        });
        map.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut bytes = Value::Object(map).to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    bytes
}

fn write_json(path: &Path, value: &Value) -> Result<(), Error> {
    write_file(path, format!("{value:#}\n").as_bytes())
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = File::create(path).map_err(error::io(path, "creating"))?;
    file.write_all(bytes).map_err(error::io(path, "writing"))?;
    file.sync_all().map_err(error::io(path, "syncing"))
}
