//! What can be wrong with a model directory, said for the person who has to repair it.

use crate::dtype::FileDType;
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// Why a model directory could not be opened, read or written.
#[derive(Debug, Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {action} failed: {reason}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The system's reason; part of the message, so not the error's source too.
        reason: std::io::Error,
    },
    /// A file or directory is not what it should be.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// One tensor of a file is wrong.
    #[error("{}: tensor \"{tensor}\": {fault}", path.display())]
    Tensor {
        /// The file that holds (or claims to hold) the tensor.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong.
        fault: TensorFault,
    },
    /// The files are sound, but hold another model than the one expected.
    #[error("{}", Mismatch { path, missing, unused, wrong })]
    Mismatch {
        /// The model directory.
        path: PathBuf,
        /// Names the model needs and no file has.
        missing: Vec<String>,
        /// Names in the files that the model has no use for, each with its file.
        unused: Vec<String>,
        /// Tensors of the wrong shape or type, a sentence each.
        wrong: Vec<String>,
    },
}

/// What is wrong with one tensor.
#[derive(Debug, Error)]
pub enum TensorFault {
    /// The header's entry has not the form the format demands.
    #[error("its header entry is malformed ({0}); {DAMAGED}")]
    Entry(String),
    /// The header names an element type that the format does not have.
    #[error("unknown element type \"{0}\"; the file was made by a newer tool: save it again as F32, F16 or BF16")]
    UnknownDType(String),
    /// No elements.
    #[error("shape {0:?} has no elements; save the model again without this tensor")]
    Empty(Vec<u64>),
    /// Shape and element type do not give the bytes that the offsets span.
    #[error("shape {shape:?} of {dtype} does not take the {span_bytes} bytes between its offsets; {DAMAGED}")]
    Size {
        /// Dimensions in the header.
        shape: Vec<u64>,
        /// Element type in the header.
        dtype: FileDType,
        /// End offset less begin offset.
        span_bytes: u64,
    },
    /// Offsets that run backwards.
    #[error("its offsets [{0}, {1}] run backwards; {DAMAGED}")]
    Backwards(u64, u64),
    /// Two tensors share bytes.
    #[error(
        "it overlaps tensor \"{other}\": it begins at byte {begin}, before that one ends at byte {other_end}; {DAMAGED}"
    )]
    Overlap {
        /// The tensor before it.
        other: String,
        /// First byte, counted from the end of the header.
        begin: u64,
        /// Where the other ends.
        other_end: u64,
    },
    /// Bytes that belong to no tensor lie before this one.
    #[error("bytes {0} to {1} before it belong to no tensor; {DAMAGED}")]
    Gap(u64, u64),
    /// The file ends before the tensor does.
    #[error("it needs bytes up to {needed}, but the file ends at {actual}: the file is truncated; {DAMAGED}")]
    Truncated {
        /// File length that the tensor needs.
        needed: u64,
        /// File length.
        actual: u64,
    },
    /// Two files hold a tensor of this name.
    #[error("{} holds a tensor of the same name; remove the file that does not belong to this model", other.display())]
    Duplicate {
        /// The other file.
        other: PathBuf,
    },
    /// The index and the file disagree.
    #[error("{0}")]
    Index(String),
    /// No file has it.
    #[error("no such tensor")]
    Absent,
    /// The element type is none that weights are read from.
    #[error(
        "element type {0} is not one that weights are read from; convert the model to F32, F16 or BF16 (quantized models must be dequantized first)"
    )]
    NotFloat(FileDType),
    /// The destination has another length.
    #[error("it has {elems} elements, the destination {given}")]
    Destination {
        /// Elements in the file.
        elems: u64,
        /// Elements asked for.
        given: u64,
    },
    /// A value that cannot be trained.
    #[error(
        "element {index} is {value:e}, which {why}; the file is damaged or its training diverged: use an earlier copy"
    )]
    Value {
        /// Row-major index.
        index: u64,
        /// The value, as f32.
        value: f32,
        /// Why it is refused.
        why: &'static str,
    },
    /// A value to be saved that cannot be.
    #[error(
        "element {index} is {value:e}, which {why}; the model was not saved and what was there before is untouched"
    )]
    Unsavable {
        /// Row-major index.
        index: u64,
        /// The value, as f32.
        value: f32,
        /// Why it is refused.
        why: &'static str,
    },
    /// The tensor that should repeat another one differs from it.
    #[error(
        "config.json ties it to \"{of}\", but the two differ; set \"tie_word_embeddings\" to false to train them apart, or remove one from the file"
    )]
    NotTied {
        /// The tensor it should repeat.
        of: String,
    },
    /// The caller could not give the values to be saved.
    #[error("its values could not be produced: {0}")]
    Produce(String),
}

/// The advice that ends most messages about broken files.
const DAMAGED: &str = "the file is damaged or incomplete: copy or download it again";

/// How many names a list in an error shows.
const SHOWN: usize = 8;

struct Mismatch<'a> {
    path: &'a PathBuf,
    missing: &'a [String],
    unused: &'a [String],
    wrong: &'a [String],
}

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the weights do not fit config.json", self.path.display())?;
        list(f, "missing", self.missing)?;
        list(f, "not used by this architecture", self.unused)?;
        list(f, "wrong", self.wrong)?;
        f.write_str("\n  config.json and the .safetensors files must come from the same model")
    }
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, items: &[String]) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {title} ({}): {}", items.len(), items[..items.len().min(SHOWN)].join(", "))?;
    if items.len() > SHOWN {
        write!(f, ", and {} more", items.len() - SHOWN)?;
    }
    Ok(())
}

/// Shorthand for errors about a whole file.
pub(crate) fn file(path: impl Into<PathBuf>, problem: impl Into<String>) -> Error {
    Error::File { path: path.into(), problem: problem.into() }
}

/// Shorthand for errors about one tensor.
pub(crate) fn tensor(path: impl Into<PathBuf>, tensor: impl Into<String>, fault: TensorFault) -> Error {
    Error::Tensor { path: path.into(), tensor: tensor.into(), fault }
}

/// Turns a system error into ours: `.map_err(io(path, "reading"))`.
pub(crate) fn io(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.into();
    move |reason| Error::Io { path, action, reason }
}
