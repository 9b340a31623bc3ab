//! The tiny models in `tests/golden` with what PyTorch computes; `tests/golden/make.py` says what is in them.

use megatrain_data::{IGNORE, MicroBatch};
use megatrain_layers::ModelConfig;
use megatrain_trainer::setup::Source;
use safetensors::SafeTensors;
use std::path::PathBuf;

/// One family's model and results.
pub struct Golden {
    /// Name of its folder.
    pub name: String,
    /// The model, opened from the folder.
    pub source: Source,
    results: Vec<u8>,
}

impl Golden {
    /// Every family, by name.
    ///
    /// # Panics
    /// If a folder cannot be read.
    pub fn all() -> Vec<Golden> {
        let entries = std::fs::read_dir(root()).expect("tests/golden").map(|e| e.expect("an entry of tests/golden"));
        let folders = entries.filter(|e| e.path().is_dir());
        let mut names: Vec<String> = folders.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names.iter().map(|name| Golden::open(name)).collect()
    }

    /// The family in this folder.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn open(name: &str) -> Golden {
        let dir = root().join(name);
        let source = Source::open(&dir).unwrap_or_else(|e| panic!("{}: {e:#}", dir.display()));
        let results = std::fs::read(dir.join("golden.safetensors")).expect("golden.safetensors");
        Golden { name: name.into(), source, results }
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.source.model.config
    }

    /// The folder.
    pub fn dir(&self) -> PathBuf {
        root().join(&self.name)
    }

    /// A result of floats.
    ///
    /// # Panics
    /// If there is none of this name.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    /// Lengths of the documents in every batch.
    pub fn documents(&self) -> Vec<usize> {
        self.ints("cu_seqlens").windows(2).map(|w| (w[1] - w[0]) as usize).collect()
    }

    /// Tokens in a batch.
    pub fn tokens(&self) -> usize {
        self.documents().iter().sum()
    }

    /// Steps there are batches and results for.
    pub fn steps(&self) -> usize {
        self.floats("losses").len()
    }

    /// Batch number `step`, without padding.
    pub fn batch(&self, step: usize) -> MicroBatch {
        let tokens = self.tokens();
        let row = |name| self.ints(name)[step * tokens..][..tokens].to_vec();
        let targets = row("targets");
        let mut cu_seqlens = self.ints("cu_seqlens");
        let docs = cu_seqlens.len() - 1;
        cu_seqlens.resize(tokens + 1, tokens as i32);
        MicroBatch {
            tokens: row("input_ids"),
            target_count: targets.iter().filter(|&&t| t != IGNORE).count() as u64,
            targets,
            positions: self.ints("positions"),
            cu_seqlens,
            used: tokens,
            docs,
        }
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        self.words(name).into_iter().map(i32::from_le_bytes).collect()
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.results).expect("a safetensors file");
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{} {name}: {e}", self.name));
        tensor.data().as_chunks().0.to_vec()
    }
}

/// In the repository, or where MEGATRAIN_GOLDEN says, as in a bundle that runs elsewhere.
fn root() -> PathBuf {
    let elsewhere = std::env::var_os("MEGATRAIN_GOLDEN").map(PathBuf::from);
    elsewhere.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden"))
}
