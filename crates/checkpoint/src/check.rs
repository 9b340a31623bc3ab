//! Compares what a model needs with what the files have, before anything large is allocated.

use crate::dir::ModelDir;
use crate::error::{self, Error, TensorFault};
use crate::read;

/// A tensor that the model needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    /// Its name in the files.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
}

impl Expected {
    /// A tensor of this name and these dimensions.
    pub fn new(name: impl Into<String>, shape: &[u64]) -> Self {
        Expected { name: name.into(), shape: shape.to_vec() }
    }
}

/// A name that the files of a tied model may have beside the tensor it repeats, such as `lm_head.weight` beside
/// `model.embed_tokens.weight`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alias {
    /// The name that may be there.
    pub name: String,
    /// The expected tensor it must equal, byte for byte.
    pub of: String,
}

/// Tensors that old tools saved although they follow from the configuration: present in many directories, read by none.
const HARMLESS: [&str; 3] = [".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"];

/// Whether a tensor that no model asks for may be ignored: the precomputed rotation tables. An export keeps them.
pub fn is_harmless_extra(name: &str) -> bool {
    HARMLESS.iter().any(|suffix| name.ends_with(suffix))
}

impl ModelDir {
    /// Checks that the files hold exactly the expected tensors, in their shapes and in a float type.
    ///
    /// All differences are reported in one [`Error::Mismatch`]. Ignored are the tensors of [`is_harmless_extra`]. An
    /// alias may be absent; where present it must repeat its tensor byte for byte (both are read to compare), since a
    /// head that differs was trained apart and would be lost silently. Allocates nothing of the size of a tensor.
    pub fn check(&self, expected: &[Expected], aliases: &[Alias]) -> Result<(), Error> {
        let (mut missing, mut unused, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for want in expected {
            let Some(have) = self.get(&want.name) else {
                missing.push(want.name.clone());
                continue;
            };
            let file = have.file.display();
            if have.shape != want.shape {
                wrong.push(format!(
                    "{} in {file} has shape {:?}, config.json asks for {:?}",
                    want.name, have.shape, want.shape
                ));
            }
            if have.dtype.float().is_none() {
                wrong.push(format!("{} in {file}: {}", want.name, TensorFault::NotFloat(have.dtype)));
            }
        }
        let known: std::collections::HashSet<&str> =
            expected.iter().map(|e| e.name.as_str()).chain(aliases.iter().map(|a| a.name.as_str())).collect();
        for have in self.tensors() {
            if !known.contains(have.name) && !is_harmless_extra(have.name) {
                let file = have.file.file_name().unwrap_or_default().to_string_lossy();
                unused.push(format!("{} ({file})", have.name));
            }
        }
        if !(missing.is_empty() && unused.is_empty() && wrong.is_empty()) {
            return Err(Error::Mismatch { path: self.path().to_owned(), missing, unused, wrong });
        }
        for alias in aliases {
            let (Some((shard, a)), Some((of_shard, b))) = (self.locate(&alias.name), self.locate(&alias.of)) else {
                continue;
            };
            let same = a.shape == b.shape && a.dtype == b.dtype && read::equal_bytes((shard, a), (of_shard, b))?;
            if !same {
                let fault = TensorFault::NotTied { of: alias.of.clone() };
                return Err(error::tensor(&shard.path, &alias.name, fault));
            }
        }
        Ok(())
    }
}
