//! A model directory opened for reading: every header parsed, no tensor read.

use crate::dtype::{FileDType, FloatDType};
use crate::error::{self, Error, TensorFault};
use crate::header::{Entry, Header};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A Hugging Face model directory whose headers have been read and found sound.
///
/// The weight files stay open, so what was checked is what is read, even if the directory is replaced meanwhile.
#[derive(Debug)]
pub struct ModelDir {
    path: PathBuf,
    config: Value,
    pub(crate) shards: Vec<Shard>,
    pub(crate) index: Option<Value>,
    places: HashMap<String, (usize, usize)>,
}

/// One weight file.
#[derive(Debug)]
pub(crate) struct Shard {
    pub file_name: String,
    pub path: PathBuf,
    pub file: File,
    pub metadata: Map<String, Value>,
    pub entries: Vec<Entry>,
}

/// What a header says about one tensor.
#[derive(Clone, Copy, Debug)]
pub struct TensorInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// Element type in the file.
    pub dtype: FileDType,
    /// Dimensions, slowest first.
    pub shape: &'a [u64],
    /// Size in the file.
    pub len_bytes: u64,
    /// The file that holds it.
    pub file: &'a Path,
}

impl ModelDir {
    /// Opens a directory: reads `config.json`, the index where there is one, and the header of every weight file.
    ///
    /// Weights are `model.safetensors`, or the files that `model.safetensors.index.json` names. Nothing of the size
    /// of a tensor is allocated. Every error names the file, and the tensor where there is one, and says what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelDir, Error> {
        let path = path.as_ref();
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(error::file(path, a_file(path))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(error::file(path, absent(path)));
            }
            Err(e) => return Err(error::io(path, "opening")(e)),
        }
        let names = list(path)?;
        if names.is_empty() {
            return Err(error::file(path, "the directory is empty; it needs config.json and .safetensors files"));
        }
        if !names.iter().any(|name| name == CONFIG) {
            return Err(error::file(path, no_config(path, &names)));
        }
        let config = read_json(&path.join(CONFIG))?;
        if !config.is_object() {
            return Err(error::file(path.join(CONFIG), "this is not a JSON object, so not a model's configuration"));
        }
        let (shards, index) = open_weights(path, &names)?;
        let mut places: HashMap<String, (usize, usize)> = HashMap::new();
        for (s, shard) in shards.iter().enumerate() {
            for (t, entry) in shard.entries.iter().enumerate() {
                if let Some((first, _)) = places.insert(entry.name.clone(), (s, t)) {
                    let fault = TensorFault::Duplicate { other: shards[first].path.clone() };
                    return Err(error::tensor(&shard.path, &entry.name, fault));
                }
            }
        }
        if places.is_empty() {
            return Err(error::file(&shards[0].path, "the file holds no tensors; copy or download it again"));
        }
        if let Some(index) = &index {
            agree(&path.join(INDEX), index, &shards, &places)?;
        }
        Ok(ModelDir { path: path.to_owned(), config, shards, index, places })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`, keys in the file's order. Always an object.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Where `config.json` lies, for messages about it.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// All tensors, file by file, in the order of their bytes.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.shards.iter().flat_map(|shard| shard.entries.iter().map(|entry| info(shard, entry)))
    }

    /// One tensor's header entry, if a file has it.
    pub fn get(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.locate(name).map(|(shard, entry)| info(shard, entry))
    }

    /// The float type that most weight bytes have: what a new file of this model should be written as.
    pub fn main_dtype(&self) -> Option<FloatDType> {
        let mut bytes = [(FloatDType::F32, 0), (FloatDType::F16, 0), (FloatDType::Bf16, 0)];
        for tensor in self.tensors() {
            if let Some(slot) = bytes.iter_mut().find(|(dtype, _)| tensor.dtype.float() == Some(*dtype)) {
                slot.1 += tensor.len_bytes;
            }
        }
        bytes.into_iter().filter(|&(_, bytes)| bytes > 0).max_by_key(|&(_, bytes)| bytes).map(|(dtype, _)| dtype)
    }

    pub(crate) fn locate(&self, name: &str) -> Option<(&Shard, &Entry)> {
        self.places.get(name).map(|&(s, t)| (&self.shards[s], &self.shards[s].entries[t]))
    }
}

fn info<'a>(shard: &'a Shard, entry: &'a Entry) -> TensorInfo<'a> {
    TensorInfo {
        name: &entry.name,
        dtype: entry.dtype,
        shape: &entry.shape,
        len_bytes: entry.len_bytes,
        file: &shard.path,
    }
}

/// Reads a JSON file; the error names the file, the line and the column.
pub fn read_json(path: &Path) -> Result<Value, Error> {
    let bytes = fs::read(path).map_err(error::io(path, "reading"))?;
    // Some editors put a byte order mark before the text.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    serde_json::from_slice(bytes).map_err(|e| error::file(path, format!("not valid JSON: {e}")))
}

/// File names in a directory, sorted; hidden ones left out.
fn list(path: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(error::io(path, "listing"))? {
        let name = entry.map_err(error::io(path, "listing"))?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Finds and opens the weight files: the single one, or those the index names.
fn open_weights(path: &Path, names: &[String]) -> Result<(Vec<Shard>, Option<Value>), Error> {
    let has = |name: &str| names.iter().any(|n| n == name);
    match (has(SINGLE), has(INDEX)) {
        (true, true) => {
            let problem = format!("both {SINGLE} and {INDEX} are here, two models in one place; remove the stale one");
            Err(error::file(path, problem))
        }
        (true, false) => Ok((vec![open_shard(path, SINGLE)?], None)),
        (false, true) => {
            let index_path = path.join(INDEX);
            let index = read_json(&index_path)?;
            let files = indexed_files(&index_path, &index)?;
            let missing: Vec<_> = files.iter().filter(|name| !has(name)).map(String::as_str).collect();
            if !missing.is_empty() {
                let problem = format!(
                    "{} of {} weight files that the index names are missing: {}; copy or download them again",
                    missing.len(),
                    files.len(),
                    missing.join(", ")
                );
                return Err(error::file(index_path, problem));
            }
            let shards = files.iter().map(|name| open_shard(path, name)).collect::<Result<_, _>>()?;
            Ok((shards, Some(index)))
        }
        (false, false) => Err(error::file(path, no_weights(names))),
    }
}

/// What to say where no directory is. Two words with a slash between may be a name on the Hugging Face hub.
fn absent(path: &Path) -> String {
    let text = path.display().to_string();
    let word = |word: &str| !word.is_empty() && !word.starts_with('.') && !word.contains('/');
    match text.split_once('/').filter(|(owner, name)| word(owner) && word(name) && !Path::new(owner).exists()) {
        None => "no such directory; give a local directory with config.json and .safetensors files (models are not \
                 downloaded)"
            .to_owned(),
        Some((_, name)) => format!(
            "no such directory, and models are not downloaded. If this is a name on the Hugging Face hub: `hf download \
             {text} --local-dir {name}`, then give {name}"
        ),
    }
}

/// Says what to do with a file that was given for a directory.
fn a_file(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gguf") => {
            "this is a GGUF file, made for inference and not read here; give the directory of the model that it was made \
             from, with config.json and .safetensors files"
        }
        Some("safetensors") => "this is a file; give the model's directory, in which config.json lies beside it",
        _ => "this is a file; give the model's directory",
    }
}

/// Says what to do with a directory without a configuration.
fn no_config(path: &Path, names: &[String]) -> String {
    if names.iter().any(|name| name == "adapter_config.json") {
        return "this is an adapter (adapter_config.json), not a model; merge it into its base model first, with \
                merge_and_unload() of PEFT"
            .to_owned();
    }
    let inner = names.iter().find(|name| path.join(name).join(CONFIG).exists());
    let inner = inner.map(|name| format!(", perhaps {}", path.join(name).display())).unwrap_or_default();
    format!("there is no config.json; give the directory that holds the model itself{inner}")
}

/// Says what to do with a directory whose weights are not where they should be.
fn no_weights(names: &[String]) -> String {
    let with = |suffix: &str| names.iter().find(|name| name.ends_with(suffix));
    if let Some(name) = with(".safetensors") {
        return format!(
            "{name} is here, but neither {SINGLE} nor {INDEX}; rename a single file, or copy the index too"
        );
    }
    for (suffix, what) in [
        (".bin", "PyTorch pickles"),
        (".pth", "PyTorch pickles"),
        (".pt", "PyTorch pickles"),
        (".gguf", "GGUF files"),
        (".h5", "TensorFlow files"),
        (".msgpack", "Flax files"),
    ] {
        if let Some(name) = with(suffix) {
            return format!(
                "{name} is here, but {what} are not read; save the model as .safetensors, for example in Python: \
                 AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW, safe_serialization=True)"
            );
        }
    }
    format!("there are no weights; it needs {SINGLE}, or {INDEX} and the files that names")
}

/// The files an index names, in the order of their names.
fn indexed_files(path: &Path, index: &Value) -> Result<Vec<String>, Error> {
    let mut files = Vec::new();
    for (name, file) in weight_map(path, index)? {
        let Some(file) = file.as_str() else {
            let problem = "the index does not give a file name for it; copy or download the index again";
            return Err(error::tensor(path, name, TensorFault::Index(problem.to_owned())));
        };
        if file.is_empty() || file.starts_with('.') || file.contains(['/', '\\']) {
            let problem =
                format!("the index places it in \"{file}\", which is not the name of a file beside the index");
            return Err(error::tensor(path, name, TensorFault::Index(problem)));
        }
        files.push(file.to_owned());
    }
    files.sort();
    files.dedup();
    Ok(files)
}

fn weight_map<'a>(path: &Path, index: &'a Value) -> Result<&'a Map<String, Value>, Error> {
    let map = index.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty());
    map.ok_or_else(|| error::file(path, "the index has no \"weight_map\"; copy or download it again"))
}

/// Checks that the index names exactly the tensors of the files, each in its file.
fn agree(path: &Path, index: &Value, shards: &[Shard], places: &HashMap<String, (usize, usize)>) -> Result<(), Error> {
    let map = weight_map(path, index)?;
    for (name, file) in map {
        let file = file.as_str().unwrap_or_default();
        let fault = match places.get(name) {
            Some(&(s, _)) if shards[s].file_name == file => continue,
            Some(&(s, _)) => format!(
                "the index places it in {file}, but it is in {}; index and files must come from the same model",
                shards[s].file_name
            ),
            None => format!("the index places it in {file}, which has no such tensor; {SAME_MODEL}"),
        };
        return Err(error::tensor(path, name, TensorFault::Index(fault)));
    }
    for shard in shards {
        if let Some(entry) = shard.entries.iter().find(|entry| !map.contains_key(&entry.name)) {
            let fault = format!("{INDEX} does not name it; {SAME_MODEL}");
            return Err(error::tensor(&shard.path, &entry.name, TensorFault::Index(fault)));
        }
    }
    Ok(())
}

const SAME_MODEL: &str = "index and files must come from the same model";

fn open_shard(dir: &Path, file_name: &str) -> Result<Shard, Error> {
    let path = dir.join(file_name);
    let mut file = File::open(&path).map_err(error::io(&path, "opening"))?;
    let Header { metadata, entries } = Header::read(&path, &mut file)?;
    Ok(Shard { file_name: file_name.to_owned(), path, file, metadata, entries })
}
