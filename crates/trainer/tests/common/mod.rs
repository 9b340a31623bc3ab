//! A tiny model directory with data beside it, to be spoilt, and the command line run on it.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod messages;
pub mod rows;

use megatrain_layers::ModelConfig;
use megatrain_planner::Model;
use megatrain_trainer::{cli, weights};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Stands in arguments, texts and expectations for the scene's directory.
pub const HERE: &str = "@";

/// The arguments that `{train}` stands for.
pub const TRAIN: &str = "train --model @/model --data @/data.txt --out @/out";

/// A directory with `model/` (12,000 f32 parameters, tokens are bytes, 32 positions) and `data.txt` (7 sequences of 32).
pub struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Scene {
        megatrain_trainer::say::be_quiet();
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 257,
            "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
            "tie_word_embeddings": false, "eos_token_id": 256
        });
        scene.write_model(&config);
        for (name, bytes) in megatrain_data::ByteTokenizer::files() {
            scene.write(&format!("model/{name}"), bytes);
        }
        scene.write("data.txt", "the quick brown fox jumps over the lazy dog\n".repeat(5));
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts the scene's directory in for [`HERE`].
    pub fn fill(&self, text: &str) -> String {
        text.replace(HERE, &self.dir.path().display().to_string())
    }

    /// Writes a file, its folders too.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Changes `config.json` and leaves the weights as they are.
    pub fn config(&self, key: &str, value: Value) {
        let mut config: Value = serde_json::from_slice(&self.read("model/config.json")).unwrap();
        config[key] = value;
        self.write("model/config.json", config.to_string());
    }

    /// Changes a size or the family, with weights to match.
    pub fn model(&self, change: impl FnOnce(&mut Value)) {
        let mut config: Value = serde_json::from_slice(&self.read("model/config.json")).unwrap();
        change(&mut config);
        self.write_model(&config);
    }

    fn write_model(&self, config: &Value) {
        self.write("model/config.json", config.to_string());
        let model = Model::new(&ModelConfig::from_hf(config).unwrap());
        let (mut header, mut data) = (Map::new(), Vec::new());
        for tensor in weights::expected(&model) {
            let begin = data.len();
            let elems: u64 = tensor.shape.iter().product();
            for i in 0..elems {
                let value = match tensor.shape.len() {
                    1 => 1.0,
                    _ => ((begin as u64 + i * 7919) % 199) as f32 / 1000.0 - 0.1,
                };
                data.extend(value.to_le_bytes());
            }
            let entry = json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, data.len()] });
            header.insert(tensor.name, entry);
        }
        self.write("model/model.safetensors", safetensors(&Value::Object(header), &data));
    }

    /// Changes the header and the data of the weight file.
    pub fn weights(&self, change: impl FnOnce(&mut Value, &mut Vec<u8>)) {
        let bytes = self.read("model/model.safetensors");
        let at = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let (mut header, mut data) = (serde_json::from_slice(&bytes[8..at]).unwrap(), bytes[at..].to_vec());
        change(&mut header, &mut data);
        self.write("model/model.safetensors", safetensors(&header, &data));
    }

    /// Gives the model 256 positions and a tokenizer that knows the special tokens of chat templates (400 ids).
    pub fn chat_model(&self) {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/golden/chat/tokenizer.json");
        self.write("model/tokenizer.json", std::fs::read(golden).unwrap());
        self.write("model/tokenizer_config.json", json!({ "eos_token": "<|im_end|>" }).to_string());
        self.model(|config| {
            config["vocab_size"] = json!(400);
            config["max_position_embeddings"] = json!(256);
            config.as_object_mut().unwrap().remove("eos_token_id");
        });
    }

    /// Overwrites a whole tensor with one value.
    pub fn set_tensor(&self, name: &str, value: f32) {
        self.weights(|header, data| {
            let offset = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize;
            data[offset(0)..offset(1)].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&value.to_le_bytes()));
        });
    }

    /// Arguments from a line: `{train}` is [`TRAIN`], `@` the scene's directory, `''` an empty argument.
    pub fn args(&self, line: &str) -> Vec<String> {
        let line = self.fill(&line.replace("{train}", TRAIN));
        line.split_whitespace().map(|word| if word == "''" { String::new() } else { word.into() }).collect()
    }

    /// Runs the command line inside this process.
    pub fn run(&self, line: &str) -> Result<(), String> {
        let args = std::iter::once("megatrain".to_owned()).chain(self.args(line));
        let cli = cli::parse(args).map_err(|e| e.to_string())?;
        match std::panic::catch_unwind(|| cli::run(cli)) {
            Ok(result) => result.map_err(|e| format!("error: {e:#}")),
            Err(_) => Err("panicked".into()),
        }
    }

    /// The binary with these arguments, to be started. Tokens are not kept.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megatrain"));
        command.args(self.args(line)).current_dir(self.dir.path()).env("MEGATRAIN_CACHE", "off");
        command
    }

    /// Runs the binary to its end.
    pub fn output(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// The steps of a run's `metrics.jsonl`, which must be 1, 2, 3, ...; not its evaluations and samples.
    pub fn metrics(&self, out: &str) -> Vec<Value> {
        let lines: Vec<_> = self.lines(&format!("{out}/metrics.jsonl"));
        let lines: Vec<_> = lines.into_iter().filter(|line| line.get("loss").is_some()).collect();
        let steps: Vec<_> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..=lines.len() as u64).collect::<Vec<_>>());
        lines
    }

    /// Step and loss of the evaluations in a run's `metrics.jsonl`.
    pub fn evaluations(&self, out: &str) -> Vec<(u64, f64)> {
        let lines = self.lines(&format!("{out}/metrics.jsonl"));
        let evaluations = lines.iter().filter(|line| line.get("eval_loss").is_some());
        let figures = |line: &Value| {
            let loss = line["eval_loss"].as_f64().unwrap();
            assert!((line["perplexity"].as_f64().unwrap() / loss.exp() - 1.0).abs() < 1e-12);
            (line["step"].as_u64().unwrap(), loss)
        };
        evaluations.map(figures).collect()
    }

    /// The lines of a file of JSON lines.
    pub fn lines(&self, name: &str) -> Vec<Value> {
        let text = String::from_utf8(self.read(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A `.safetensors` file.
pub fn safetensors(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Whether a folder holds a model that can be opened.
pub fn opens(dir: &Path) -> bool {
    megatrain_trainer::setup::Source::open(dir).is_ok()
}
