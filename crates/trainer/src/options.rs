//! [`TrainOptions`]: what `megatrain train` can be told, by flag or by the same key of a TOML file. Flags win.

use crate::data::{TrainOn, Truncation};
pub use crate::values::{Bytes, Device, ExecutorMode, JsonObject, Slots};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, CommandFactory, Parser, ValueEnum};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::{Path, PathBuf};

/// Everything about a training run. Absent means the default that the help names.
#[derive(Args, Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainOptions {
    /// Hugging Face model directory to fine-tune.
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,

    /// Built-in architecture to train from random weights (an unknown name lists them).
    #[arg(long, value_name = "NAME", help_heading = "Model", conflicts_with = "model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,

    /// Numbers to compute with; masters and moments are 32-bit either way [default: bf16 where the processor multiplies it, else f32].
    #[arg(long, value_name = "f32|bf16", help_heading = "Model")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,

    /// Files or folders of .json, .jsonl, .txt (also .gz, .zst), .parquet or .arrow: conversations, prompts with
    /// completions, texts or token ids. `PATH:WEIGHT` for each mixes them by weight.
    #[arg(long, value_name = "PATH[:WEIGHT]", num_args = 1.., help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "one_or_many")]
    pub data: Option<Vec<PathBuf>>,

    /// Data sets by the names that dataset_info.json gives them, as in LLaMA-Factory; commas or spaces between them.
    #[arg(long, value_name = "NAME[:WEIGHT]", num_args = 1.., value_delimiter = ',', help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "names")]
    pub dataset: Option<Vec<String>>,

    /// Folder that holds dataset_info.json and its files [default: data].
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset_dir: Option<PathBuf>,

    /// What the records of --data and --eval-data are: alpaca, sharegpt, openai, prompt-completion, text or tokens
    /// [default: what each file's first record shows].
    #[arg(long, value_name = "NAME", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,

    /// How weighted sources are mixed: concat, interleave_under (until one has no more), interleave_over (until all were
    /// read, short ones again) or interleave_once (each record once) [default: interleave_under with weights, else concat].
    #[arg(long, value_name = "STRATEGY", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix_strategy: Option<String>,

    /// Chat template: a name (chatml, llama3, mistral, ...; an unknown one lists them) or a .jinja file [default: the
    /// model's own].
    #[arg(long, value_name = "NAME|FILE", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,

    /// More variables for the chat template, as a JSON object, for example {"enable_thinking": false}.
    #[arg(long, value_name = "JSON", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_kwargs: Option<JsonObject>,

    /// What of a conversation is learnt [default: all-turns].
    #[arg(long, value_name = "WHAT", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train_on: Option<TrainOn>,

    /// What becomes of a conversation longer than --seq-len [default: drop]. Texts are always cut into pieces.
    #[arg(long, value_name = "HOW", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Truncation>,

    /// Whether documents share sequences, isolated from each other [default: true; false for token ids, and with
    /// --group-by-length].
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packing: Option<bool>,

    /// Bring unpacked sequences of about one length together.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_by_length: Option<bool>,

    /// Tokens in a sequence [default: 512, or the model's limit if lower].
    #[arg(long, value_name = "TOKENS", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq_len: Option<usize>,

    /// Train while the data is still being read, in bounded memory, for files of any size; needs --steps. Shuffling and
    /// packing are within windows of --buffer-size.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<bool>,

    /// With --streaming, documents in a window [default: 16384, fewer where they are long].
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_size: Option<usize>,

    /// Keep the data in file order.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_shuffle: Option<bool>,

    /// Seed of everything random: shuffling, held-out choice, random weights [default: 0].
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,

    /// Files or folders to evaluate on, before and after training; every format that --data takes.
    #[arg(long, value_name = "PATH", num_args = 1.., help_heading = "Evaluation", conflicts_with = "held_out")]
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "one_or_many")]
    pub eval_data: Option<Vec<PathBuf>>,

    /// Data sets to evaluate on, by the names that dataset_info.json gives them (see --dataset-dir).
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', help_heading = "Evaluation", conflicts_with = "held_out")]
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "names")]
    pub eval_dataset: Option<Vec<String>>,

    /// Share of the data kept apart, chosen by the seed, and evaluated before and after training [default: 0].
    #[arg(long, value_name = "FRACTION", allow_hyphen_values = true, help_heading = "Evaluation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<f64>,

    /// Evaluate after every so many steps, too.
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Evaluation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_steps: Option<u64>,

    /// End after this many evaluations in a row without a lower loss.
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Evaluation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping_patience: Option<u64>,

    /// With --eval-steps, save the model of the lowest evaluation loss to OUT/best-model [default: true].
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Evaluation")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_best: Option<bool>,

    /// Prompts that the model answers at each evaluation; where conversations are trained, as a user's message.
    #[arg(long, value_name = "TEXT", num_args = 1.., help_heading = "Evaluation")]
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "one_or_many")]
    pub eval_prompts: Option<Vec<String>>,

    /// Optimizer steps [default: as many as --epochs take].
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Steps")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,

    /// Passes over the data, where --steps is not given [default: 1].
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Steps")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,

    /// Sequences in an optimizer step [default: 4].
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Steps")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,

    /// Sequences computed together; the result is the same for any, to rounding [default: the batch size, at most 4].
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Steps")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch_size: Option<usize>,

    /// Peak learning rate [default: 2e-5 with --model, 1e-3 with --preset].
    #[arg(long, value_name = "RATE", allow_hyphen_values = true, help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,

    /// How the learning rate changes after warm-up [default: cosine].
    #[arg(long, value_name = "SCHEDULE", help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_schedule: Option<Schedule>,

    /// Steps over which the learning rate rises from 0, which the first step has [default: a twentieth of the steps].
    #[arg(long, value_name = "STEPS", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<u64>,

    /// Decoupled weight decay; never on norms and biases [default: 0.01].
    #[arg(long, value_name = "X", allow_hyphen_values = true, help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,

    /// AdamW's first decay rate [default: 0.9].
    #[arg(long, value_name = "X", allow_hyphen_values = true, help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f64>,

    /// AdamW's second decay rate [default: 0.999].
    #[arg(long, value_name = "X", allow_hyphen_values = true, help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f64>,

    /// AdamW's epsilon [default: 1e-8].
    #[arg(long, value_name = "X", allow_hyphen_values = true, help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,

    /// Largest global gradient norm; 0 for no clipping [default: 1, or 0 with --update eager].
    #[arg(long, value_name = "NORM", allow_hyphen_values = true, help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,

    /// When a unit is updated: as its gradient lands, or after the global norm is known [default: auto, after-norm where --clip is on].
    #[arg(long, value_name = "POLICY", help_heading = "Optimizer")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<Update>,

    /// auto, cpu or cuda:N [default: auto].
    #[arg(long, value_name = "DEVICE", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,

    /// Threads to compute with [default: all].
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,

    /// What the forward pass keeps for the backward pass [default: auto, as much as fits].
    #[arg(long, value_name = "LEVEL", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activations: Option<ActivationLevel>,

    /// Keep activations in host memory between forward and backward.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<bool>,

    /// Device memory the plan may use, e.g. 512MiB [default: what is free].
    #[arg(long, value_name = "BYTES", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<Bytes>,

    /// Blocks whose weights the device holds at once, or `all` [default: 2].
    #[arg(long, value_name = "N|all", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<Slots>,

    /// Order of execution: threads, inline or shuffle:SEED. Results are the same bits [default: threads].
    #[arg(long, value_name = "MODE", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<ExecutorMode>,

    /// On a GPU, wait for it after every command, so that a fault is told with the command that caused it. Slow.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "true|false", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_sync: Option<bool>,

    /// Write a Chrome/Perfetto trace of the last step to this file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,

    /// Numbers of the saved weights [default: those of the model's files; f32 with --preset].
    #[arg(long, value_name = "f32|bf16", help_heading = "Output")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_dtype: Option<Dtype>,

    /// Folder for the trained model and metrics.jsonl [default: out].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out: Option<PathBuf>,
}

/// Compute dtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 16-bit brain float with f32 accumulation.
    Bf16,
}

/// Learning-rate schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// The peak rate throughout.
    Constant,
    /// A straight line to 0.
    Linear,
    /// Half a cosine to 0.
    Cosine,
    /// The peak rate, then down over the last tenth.
    Wsd,
}

/// Update policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Update {
    /// After-norm where gradients are clipped, else eager.
    Auto,
    /// As each gradient lands; cannot clip.
    Eager,
    /// After the global norm is known.
    AfterNorm,
}

/// Activation levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActivationLevel {
    /// As much as fits.
    Auto,
    /// All activations.
    Keep,
    /// All but gate and up.
    Partial,
    /// The block input only.
    Recompute,
}

/// `data = "a.txt"` and `data = ["a.txt", "b"]`.
fn one_or_many<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<T>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given<T> {
        One(T),
        Many(Vec<T>),
    }
    Ok(Some(match Given::deserialize(d)? {
        Given::One(one) => vec![one],
        Given::Many(many) => many,
    }))
}

/// The same for names, where one text may hold several between commas.
fn names<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<String>>, D::Error> {
    let given: Option<Vec<String>> = one_or_many(d)?;
    Ok(given.map(|texts| texts.iter().flat_map(|text| text.split(',')).map(|name| name.trim().to_owned()).collect()))
}

/// Reads a whole number, or says what one looks like.
pub(crate) fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = text.parse::<u64>().ok().and_then(|n| T::try_from(n).ok());
    number.ok_or_else(|| format!("`{text}` is no whole number from 0 on; write digits only, for example 1000"))
}

#[derive(Parser)]
struct OnlyOptions {
    #[command(flatten)]
    options: TrainOptions,
}

/// What other trainers call our keys.
const ELSEWHERE: [(&str, &str); 23] = [
    ("learning_rate", "lr"),
    ("lr_scheduler_type", "lr_schedule"),
    ("warmup_steps", "warmup"),
    ("max_steps", "steps"),
    ("num_train_epochs", "epochs"),
    ("num_epochs", "epochs"),
    ("per_device_train_batch_size", "micro_batch_size"),
    ("model_name_or_path", "model"),
    ("base_model", "model"),
    ("datasets", "data"),
    ("output_dir", "out"),
    ("max_grad_norm", "clip"),
    ("max_seq_length", "seq_len"),
    ("cutoff_len", "seq_len"),
    ("max_length", "seq_len"),
    ("sequence_len", "seq_len"),
    ("sample_packing", "packing"),
    ("chat_template", "template"),
    ("val_size", "held_out"),
    ("val_set_size", "held_out"),
    ("mask_history", "train_on"),
    ("train_on_prompt", "train_on"),
    ("train_on_inputs", "train_on"),
];

/// The flag here that another trainer's flag or key means.
pub fn elsewhere(flag: &str) -> Option<String> {
    let key = flag.trim_start_matches('-').replace('-', "_");
    let (_, ours) = ELSEWHERE.iter().find(|(theirs, _)| *theirs == key)?;
    Some(format!("--{}", ours.replace('_', "-")))
}

/// Every key of the TOML file: the flags' names with underscores.
pub fn keys() -> Vec<String> {
    let command = OnlyOptions::command();
    command.get_arguments().map(|a| a.get_id().to_string()).filter(|id| id != "help").collect()
}

impl TrainOptions {
    /// Reads a TOML file. Relative paths in it count from the current directory, as on the command line.
    ///
    /// # Errors
    /// Unknown keys with the nearest known one, wrong types with their line.
    pub fn read_toml(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading the configuration {}", path.display()))?;
        Self::parse_toml(&text).with_context(|| format!("in the configuration {}", path.display()))
    }

    /// Parses TOML text.
    ///
    /// # Errors
    /// As [`TrainOptions::read_toml`].
    pub fn parse_toml(text: &str) -> Result<Self> {
        let table: toml::Table = text.parse()?;
        let known = keys();
        for key in table.keys() {
            if known.contains(key) {
                continue;
            }
            if table[key].is_table() {
                bail!("`[{key}]` is a section, and there are none: write the keys at the top, without a heading");
            }
            if let Some((_, ours)) = ELSEWHERE.iter().find(|(theirs, _)| *theirs == key.replace('-', "_")) {
                bail!("unknown key `{key}`; its name here is `{ours}`");
            }
            let near = known
                .iter()
                .map(|k| (strsim::jaro_winkler(&key.replace('-', "_"), k), k))
                .filter(|(score, _)| *score > 0.8)
                .max_by(|a, b| a.0.total_cmp(&b.0));
            match near {
                Some((_, near)) => bail!("unknown key `{key}`; did you mean `{near}`?"),
                None => bail!("unknown key `{key}`; the keys are {}", known.join(", ")),
            }
        }
        let options: TrainOptions = toml::from_str(text)?;
        if options.model.is_some() && options.preset.is_some() {
            bail!("`model` and `preset` exclude each other; keep one");
        }
        Ok(options)
    }

    /// These options, completed by those of a file.
    ///
    /// # Errors
    /// Numbers that are NaN or infinite, named.
    pub fn over(&self, file: &TrainOptions) -> Result<TrainOptions> {
        let as_map = |options: &TrainOptions| match serde_json::to_value(options)? {
            serde_json::Value::Object(map) => Ok(map),
            other => Err(anyhow!("options serialise as {other}")),
        };
        let (mut all, flags) = (as_map(file)?, as_map(self)?);
        // A model on the command line replaces a preset in the file, and the other way round.
        if flags.contains_key("model") || flags.contains_key("preset") {
            all.remove("model");
            all.remove("preset");
        }
        all.extend(flags);
        // JSON has no NaN and no infinity: they came out as null, which would read as the default.
        if let Some((key, _)) = all.iter().find(|(_, value)| value.is_null()) {
            bail!("`{key}` is NaN or infinite; give a finite number");
        }
        Ok(serde_json::from_value(serde_json::Value::Object(all))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(args: &[&str]) -> TrainOptions {
        OnlyOptions::try_parse_from(std::iter::once("x").chain(args.iter().copied())).unwrap().options
    }

    #[test]
    fn every_flag_is_a_key_and_flags_win() {
        let toml = r#"
            model = "m"
            dtype = "bf16"
            data = ["a", "b"]
            dataset = "d, e:0.5"
            dataset_dir = "f"
            format = "alpaca"
            mix_strategy = "concat"
            template = "chatml"
            chat_template_kwargs = { enable_thinking = false, x = [1, "a"] }
            train_on = "last-turn"
            truncation = "left"
            packing = false
            group_by_length = true
            eval_data = "g"
            eval_dataset = "i, j"
            eval_steps = 10
            early_stopping_patience = 3
            save_best = false
            eval_prompts = "h"
            held_out = 0.5
            seq_len = 7
            streaming = true
            buffer_size = 8
            no_shuffle = true
            seed = 1
            steps = 2
            epochs = 3
            batch_size = 4
            micro_batch_size = 5
            lr = 1
            lr_schedule = "wsd"
            warmup = 6
            weight_decay = 0.1
            beta1 = 0.2
            beta2 = 0.3
            eps = 1e-6
            clip = 2.0
            update = "after-norm"
            device = "cuda:3"
            threads = 8
            activations = "partial"
            spill = true
            device_memory = "2GiB"
            slots = "all"
            executor = "shuffle:9"
            debug_sync = true
            trace = "t"
            save_dtype = "bf16"
            out = "o"
        "#;
        let file = TrainOptions::parse_toml(toml).unwrap();
        let given = match serde_json::to_value(&file).unwrap() {
            serde_json::Value::Object(map) => map.len(),
            _ => unreachable!(),
        };
        // A preset excludes the model; every other key is in the text above.
        assert_eq!(given + 1, keys().len(), "a flag without a key in this test");
        assert_eq!(flags(&[]).over(&file).unwrap(), file);
        let merged = flags(&["--preset", "demo", "--data", "c", "--lr", "3", "--spill", "false"]).over(&file).unwrap();
        assert_eq!((merged.model, merged.preset.as_deref()), (None, Some("demo")));
        assert_eq!(merged.data, Some(vec![PathBuf::from("c")]));
        let kwargs = flags(&["--chat-template-kwargs", r#"{"x": [1, "a"], "enable_thinking": false}"#]);
        assert_eq!(kwargs.chat_template_kwargs, file.chat_template_kwargs);
        assert_eq!((merged.lr, merged.spill, merged.seed), (Some(3.0), Some(false), Some(1)));
    }

    #[test]
    fn wrong_keys_and_values_say_what_to_do() {
        for (toml, want) in [
            ("learning_rat = 1", "unknown key `learning_rat`"),
            ("batch-size = 1", "did you mean `batch_size`?"),
            ("warmpu = 1", "did you mean `warmup`?"),
            ("learning_rate = 1", "its name here is `lr`"),
            ("mask_history = true", "its name here is `train_on`"),
            ("truncation = \"middle\"", "unknown variant `middle`"),
            ("[train]\nlr = 1", "write the keys at the top"),
            ("lr = \"fast\"", "invalid type"),
            ("dtype = \"fp8\"", "unknown variant `fp8`"),
            ("device = \"tpu\"", "write auto, cpu or cuda:N"),
            ("device_memory = \"lots\"", "is not a size in bytes"),
            ("slots = 1", "a number from 2 on"),
            ("chat_template_kwargs = \"[1]\"", "is JSON, but no object"),
            ("executor = \"fast\"", "threads, inline or shuffle:SEED"),
            ("steps = -1", "invalid value"),
            ("model = \"a\"\npreset = \"b\"", "exclude each other"),
            ("lr = 1\nlr = 2", "duplicate key"),
        ] {
            let error = format!("{:#}", TrainOptions::parse_toml(toml).unwrap_err());
            assert!(error.contains(want), "{toml}: {error}");
        }
    }
}
