//! Wrong flags, files and machines: each row spoils a working scene in one way, and the error must say what is wrong,
//! where, and what to do.

mod common;

use common::Scene;
use common::rows::{AS_IS, Row, check};
use serde_json::{Value, json};

const FLAGS: &[Row] = &[
    ("no sequences", AS_IS, "{train} --batch-size 0", &["--batch-size must be at least 1"]),
    (
        "negative batch",
        AS_IS,
        "{train} --batch-size -4",
        &["'-4' for '--batch-size", "`-4` is no whole number from 0 on"],
    ),
    ("batch in floating point", AS_IS, "{train} --batch-size 1e3", &["`1e3` is no whole number", "for example 1000"]),
    (
        "batch of all numbers there are",
        AS_IS,
        "{train} --batch-size 18446744073709551615",
        &["--batch-size 18446744073709551615", "may have 4096", "raise the second"],
    ),
    (
        "micro-batch of all memory there is",
        AS_IS,
        "{train} --batch-size 99999999999 --micro-batch-size 99999999999",
        &["--micro-batch-size 99999999999 times --seq-len 32", "lower one of them"],
    ),
    ("empty micro-batch", AS_IS, "{train} --micro-batch-size 0", &["--micro-batch-size must be at least 1"]),
    (
        "micro-batch above batch",
        AS_IS,
        "{train} --batch-size 2 --micro-batch-size 3",
        &["--micro-batch-size 3 is larger than --batch-size 2; lower it"],
    ),
    ("nothing to predict", AS_IS, "{train} --seq-len 1", &["--seq-len 1 is too short", "use at least 2"]),
    (
        "beyond the model's positions",
        AS_IS,
        "{train} --seq-len 33",
        &["--seq-len 33 is longer", "max_position_embeddings of 32; lower it"],
    ),
    ("lr NaN", AS_IS, "{train} --lr nan", &["--lr: learning rate is NaN", "finite and at least 0"]),
    ("lr infinite", AS_IS, "{train} --lr inf", &["--lr: learning rate is inf", "finite and at least 0"]),
    ("lr negative", AS_IS, "{train} --lr -1e-3", &["--lr: learning rate is -0.001", "at least 0"]),
    ("lr no number", AS_IS, "{train} --lr fast", &["invalid value 'fast' for '--lr <RATE>'"]),
    ("decay negative", AS_IS, "{train} --weight-decay -0.1", &["--weight-decay: weight_decay is -0.1", "at least 0"]),
    ("decay past zero", AS_IS, "{train} --lr 1 --weight-decay 2", &["--lr times --weight-decay", "change their sign"]),
    ("beta1 of 1", AS_IS, "{train} --beta1 1", &["--beta1: beta1 is 1", "below 1"]),
    ("beta2 of 1", AS_IS, "{train} --beta2 1.0", &["--beta2: beta2 is 1", "below 1"]),
    ("beta2 negative", AS_IS, "{train} --beta2 -0.5", &["--beta2: beta2 is -0.5", "at least 0"]),
    ("eps of 0", AS_IS, "{train} --eps 0", &["--eps: eps is 0", "above 0", "1e-8"]),
    ("clip negative", AS_IS, "{train} --clip -1", &["--clip -1 is no norm", "or 0 for no clipping"]),
    ("clip NaN", AS_IS, "{train} --clip nan", &["--clip NaN is no norm"]),
    (
        "eager cannot clip",
        AS_IS,
        "{train} --update eager --clip 0.5",
        &["--update eager", "cannot clip to 0.5", "--update after-norm, or --clip 0"],
    ),
    (
        "warm-up beyond the end",
        AS_IS,
        "{train} --steps 10 --warmup 11",
        &["--warmup", "warm-up of 11 steps is longer than the run of 10; shorten"],
    ),
    (
        "warm-up into the decay",
        AS_IS,
        "{train} --steps 10 --warmup 10 --lr-schedule wsd",
        &["--warmup and --lr-schedule", "do not fit into the run of 10"],
    ),
    ("dtype", AS_IS, "{train} --dtype fp8", &["invalid value 'fp8' for '--dtype", "f32, bf16"]),
    ("schedule", AS_IS, "{train} --lr-schedule cosin", &["invalid value 'cosin'", "constant, linear, cosine, wsd"]),
    ("activations", AS_IS, "{train} --activations some", &["invalid value 'some'", "auto, keep, partial, recompute"]),
    ("update policy", AS_IS, "{train} --update late", &["invalid value 'late'", "auto, eager, after-norm"]),
    ("device", AS_IS, "{train} --device tpu", &["`tpu` is no device; write auto, cpu or cuda:N"]),
    ("no CUDA here", AS_IS, "{train} --device cuda:9", &["--device cuda:9"]),
    ("executor", AS_IS, "{train} --executor fast", &["`fast` is no executor mode", "threads, inline or shuffle:SEED"]),
    ("threads", AS_IS, "{train} --threads 1000000", &["--threads 1000000", "this machine runs"]),
    ("size", AS_IS, "{train} --device-memory lots", &["`lots` is not a size in bytes; write for example 512MiB"]),
    (
        "budget too small",
        AS_IS,
        "{train} --device-memory 1KiB",
        &[
            "budget of 1.00 KiB is too small",
            "needs",
            "raise --device-memory, or lower --micro-batch-size or --seq-len",
        ],
    ),
    ("one slot", AS_IS, "{train} --slots 1", &["`1` is no number of slots; write a number from 2 on, or all"]),
    ("preset", AS_IS, "train --preset gpt5 --data @/data.txt", &["no preset `gpt5`; there are demo, smollm2-135m"]),
    ("two models", AS_IS, "{train} --preset demo", &["'--model <DIR>' cannot be used with '--preset <NAME>'"]),
    ("no model", AS_IS, "train --data @/data.txt", &["no model: give --model DIR", "or --preset NAME"]),
    ("format", AS_IS, "{train} --format csv", &["--format: \"csv\" is no data format; formats are", "alpaca"]),
    (
        "mixing strategy",
        AS_IS,
        "{train} --mix-strategy shuffle",
        &["--mix-strategy: \"shuffle\" is no mixing strategy", "interleave_under"],
    ),
    (
        "packed and grouped",
        AS_IS,
        "{train} --packing true --group-by-length",
        &["--group-by-length", "--packing", "leave out one"],
    ),
    ("truncation", AS_IS, "{train} --truncation middle", &["invalid value 'middle'", "drop, left, right"]),
    ("mask", AS_IS, "{train} --train-on prompt", &["invalid value 'prompt'", "all-turns, last-turn, everything"]),
    (
        "folder without names",
        AS_IS,
        "{train} --dataset-dir @",
        &["--dataset-dir is where --dataset looks", "give --dataset NAME"],
    ),
    (
        "evaluation of nothing",
        AS_IS,
        "{train} --eval-steps 5",
        &["--eval-steps needs something to evaluate on", "--eval-data FILES or --held-out FRACTION"],
    ),
    ("evaluation after no step", AS_IS, "{train} --held-out 0.2 --eval-steps 0", &["--eval-steps 0 means nothing"]),
    (
        "patience without evaluations",
        AS_IS,
        "{train} --held-out 0.2 --early-stopping-patience 2",
        &["--early-stopping-patience counts evaluations", "--eval-steps N"],
    ),
    (
        "patience without a loss",
        AS_IS,
        "{train} --eval-prompts the --eval-steps 2 --early-stopping-patience 2",
        &["--early-stopping-patience looks at the evaluation's loss", "--held-out FRACTION"],
    ),
    (
        "two evaluations",
        AS_IS,
        "{train} --held-out 0.2 --eval-data @/data.txt",
        &["'--held-out <FRACTION>' cannot be used with '--eval-data <PATH>...'"],
    ),
    (
        "best of nothing",
        AS_IS,
        "{train} --held-out 0.2 --save-best",
        &["--save-best saves at evaluations during training", "--eval-steps N"],
    ),
    (
        "prompt without room for an answer",
        AS_IS,
        "{train} --batch-size 1 --eval-prompts the_quick_brown_fox_jumps_over_the_lazy_dog",
        &["--eval-prompts", "has 43 tokens", "fit the 32 of a micro-batch", "shorten it or raise --seq-len"],
    ),
    ("weight of an evaluation", AS_IS, "{train} --eval-data @/data.txt:2", &["--eval-data @/data.txt", "no weights"]),
    ("no data", AS_IS, "train --model @/model --out @/out", &["no data: give --data files or directories"]),
    ("all held out", AS_IS, "{train} --held-out 1.5", &["--held-out 1.5 is no share of the data", "below 1"]),
    ("held out NaN", AS_IS, "{train} --held-out nan", &["--held-out NaN is no share"]),
    ("held out negative", AS_IS, "{train} --held-out -0.1", &["--held-out -0.1 is no share"]),
    ("no steps", AS_IS, "{train} --steps 0", &["--steps 0 leaves nothing to do; give at least 1"]),
    ("no epochs", AS_IS, "{train} --epochs 0", &["--epochs 0 leaves nothing to do"]),
    ("seed", AS_IS, "{train} --seed -1", &["'-1' for '--seed <N>'", "no whole number"]),
    ("unknown flag", AS_IS, "{train} --learning-rate 1", &["unexpected argument '--learning-rate' found", "'--lr'"]),
    ("misspelt flag", AS_IS, "{train} --batch-sise 1", &["'--batch-sise'", "'--batch-size'"]),
    ("misspelt command", AS_IS, "tran", &["unrecognized subcommand 'tran'", "'train'"]),
    ("wrong trace path", AS_IS, "{train} --trace @/no/t.json", &["--trace @/no/t.json", "No such file"]),
    ("plan of nothing", AS_IS, "plan --model @/model --batch-size 0", &["--batch-size must be at least 1"]),
    ("no profile", AS_IS, "plan --model @/model --profile @/p.json", &["machine profile @/p.json", "No such file"]),
    (
        "profile of another form",
        |s| s.write("p.json", "{\"name\": \"x\", \"speed\": 1}"),
        "plan --model @/model --profile @/p.json",
        &["in the machine profile @/p.json", "unknown field `speed`", "line 1"],
    ),
    ("nothing to generate with", AS_IS, "generate --prompt hi", &["--model <DIR>"]),
    (
        "temperature",
        AS_IS,
        "generate --model @/model --prompt hi --temperature -1",
        &["--temperature -1 is not a number"],
    ),
    ("temperature NaN", AS_IS, "generate --model @/model --prompt hi --temperature nan", &["--temperature NaN"]),
    ("no prompt", AS_IS, "generate --model @/model --prompt ''", &["no tokens; give --prompt some text"]),
    (
        "answer too long",
        AS_IS,
        "generate --model @/model --prompt hi --max-tokens 31",
        &["33 tokens", "max_position_embeddings of 32", "lower --max-tokens"],
    ),
    (
        "answer of all numbers there are",
        AS_IS,
        "generate --model @/model --prompt hi --max-tokens 18446744073709551615",
        &["max_position_embeddings of 32", "lower --max-tokens"],
    ),
    ("threads to generate with", AS_IS, "generate --model @/model --prompt hi --threads 99999", &["--threads 99999"]),
];

#[test]
fn flags() {
    check(FLAGS);
}

const CONFIG: &str = "{train} --config @/run.toml";

const FILES: &[Row] = &[
    ("none", AS_IS, CONFIG, &["reading the configuration @/run.toml", "No such file"]),
    ("a folder", AS_IS, "{train} --config @/model", &["reading the configuration @/model", "directory"]),
    ("not text", |s| s.write("run.toml", b"lr = \xff"), CONFIG, &["the configuration @/run.toml", "valid UTF-8"]),
    (
        "misspelt key",
        |s| s.write("run.toml", "warmpu = 1"),
        CONFIG,
        &["in the configuration @/run.toml", "unknown key `warmpu`; did you mean `warmup`?"],
    ),
    (
        "another trainer's name",
        |s| s.write("run.toml", "max_grad_norm = 1.0"),
        CONFIG,
        &["@/run.toml", "unknown key `max_grad_norm`; its name here is `clip`"],
    ),
    (
        "nothing like a key",
        |s| s.write("run.toml", "zzz = 1.0"),
        CONFIG,
        &["@/run.toml", "unknown key `zzz`; the keys are model, preset"],
    ),
    (
        "section",
        |s| s.write("run.toml", "[optimizer]\nlr = 1e-3"),
        CONFIG,
        &["@/run.toml", "`[optimizer]` is a section", "write the keys at the top"],
    ),
    (
        "wrong type",
        |s| s.write("run.toml", "seq_len = 8\nlr = \"fast\""),
        CONFIG,
        &["@/run.toml", "line 2", "invalid type: string \"fast\", expected f64"],
    ),
    ("negative", |s| s.write("run.toml", "batch_size = -1"), CONFIG, &["@/run.toml", "line 1", "-1"]),
    ("fraction of a step", |s| s.write("run.toml", "steps = 1.5"), CONFIG, &["@/run.toml", "line 1", "expected u64"]),
    ("unknown value", |s| s.write("run.toml", "dtype = \"fp8\""), CONFIG, &["@/run.toml", "line 1", "`fp8`", "`bf16`"]),
    ("syntax", |s| s.write("run.toml", "steps = 1\nlr = \n"), CONFIG, &["@/run.toml", "line 2"]),
    ("key twice", |s| s.write("run.toml", "lr = 1\nlr = 2"), CONFIG, &["@/run.toml", "line 2", "duplicate key"]),
    ("NaN, which JSON lacks", |s| s.write("run.toml", "lr = nan"), CONFIG, &["`lr` is NaN or infinite; give a finite"]),
    ("infinity", |s| s.write("run.toml", "clip = inf"), CONFIG, &["`clip` is NaN or infinite"]),
    (
        "NaN beside a file",
        |s| s.write("run.toml", "steps = 1"),
        "{train} --config @/run.toml --lr nan",
        &["`lr` is NaN"],
    ),
    (
        "two models",
        |s| s.write("run.toml", "model = \"m\"\npreset = \"demo\""),
        "train --config @/run.toml",
        &["@/run.toml", "`model` and `preset` exclude each other; keep one"],
    ),
    (
        "value out of range",
        |s| s.write("run.toml", "beta1 = 1.0"),
        CONFIG,
        &["--beta1: beta1 is 1, but must be at least 0 and below 1"],
    ),
];

#[test]
fn configuration_files() {
    check(FILES);
}

/// A tensor in the middle of the tiny model.
const GATE: &str = "model.layers.0.mlp.gate_proj.weight";

const MODELS: &[Row] = &[
    ("absent", AS_IS, "train --model @/no --data @/data.txt", &["@/no: no such directory", "not downloaded"]),
    ("a file", AS_IS, "train --model @/data.txt --data @/data.txt", &["@/data.txt: this is a file; give the model's"]),
    (
        "empty",
        |s| std::fs::create_dir(s.path("none")).unwrap(),
        "train --model @/none --data @/data.txt",
        &["@/none: the directory is empty; it needs config.json and .safetensors"],
    ),
    ("no config", |s| s.remove("model/config.json"), "{train}", &["@/model: there is no config.json"]),
    (
        "config not JSON",
        |s| s.write("model/config.json", "{\n \"a\": ,}"),
        "{train}",
        &["@/model/config.json: not valid JSON", "line 2"],
    ),
    ("config a list", |s| s.write("model/config.json", "[]"), "{train}", &["@/model/config.json", "not a JSON object"]),
    (
        "unknown family",
        |s| s.config("model_type", json!("mamba")),
        "{train}",
        &["in @/model/config.json", "model_type `mamba` is not supported; known: llama, mistral"],
    ),
    (
        "unknown architecture",
        |s| s.config("architectures", json!(["LlamaForQuestionAnswering"])),
        "{train}",
        &["@/model/config.json", "architectures `LlamaForQuestionAnswering` is not supported", "LlamaForCausalLM"],
    ),
    (
        "no family",
        |s| {
            s.config("model_type", Value::Null);
            s.config("architectures", Value::Null);
        },
        "{train}",
        &["@/model/config.json", "neither `model_type` nor `architectures`"],
    ),
    (
        "activation",
        |s| s.config("hidden_act", json!("gelu")),
        "{train}",
        &["in @/model/config.json", "`hidden_act` = \"gelu\" is not supported: only silu"],
    ),
    (
        "heads that do not divide",
        |s| {
            s.config("num_attention_heads", json!(3));
            s.config("head_dim", Value::Null);
        },
        "{train}",
        &["@/model/config.json", "`num_attention_heads` is 3, expected a divisor of hidden_size = 16"],
    ),
    (
        "key heads that do not divide",
        |s| s.config("num_key_value_heads", json!(3)),
        "{train}",
        &["@/model/config.json", "`num_key_value_heads` is 3, expected a divisor of num_attention_heads = 2"],
    ),
    ("head size", |s| s.config("head_dim", json!(9)), "{train}", &["`head_dim` is 9, expected a multiple of 8"]),
    ("no width", |s| s.config("hidden_size", json!(0)), "{train}", &["`hidden_size` is 0, expected a whole number"]),
    (
        "width in quotes",
        |s| s.config("hidden_size", json!("16")),
        "{train}",
        &["`hidden_size` is \"16\", expected a whole number"],
    ),
    (
        "quantized",
        |s| s.config("quantization_config", json!({"bits": 4})),
        "{train}",
        &["@/model/config.json", "`quantization_config`", "unquantized weights"],
    ),
    (
        "frequencies",
        |s| s.config("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        "{train}",
        &["`rope_scaling.rope_type` = \"yarn\" is not supported: known: default, linear, llama3"],
    ),
    (
        "window shorter than the sequences",
        |s| {
            s.model(|config| {
                config["architectures"] = json!(["MistralForCausalLM"]);
                config["model_type"] = json!("mistral");
                config["sliding_window"] = json!(8);
            });
        },
        "{train}",
        &["--seq-len 32", "`sliding_window` = 8", "use at most 8 tokens"],
    ),
    (
        "renamed tensor",
        |s| {
            s.weights(|header, _| {
                let entry = header.as_object_mut().unwrap().remove("model.norm.weight").unwrap();
                header["model.norm.scale"] = entry;
            });
        },
        "{train}",
        &["@/model", "missing (1): model.norm.weight", "not used by this architecture (1): model.norm.scale"],
    ),
    (
        "misshapen tensors",
        |s| s.config("intermediate_size", json!(32)),
        "{train}",
        &[GATE, "@/model/model.safetensors has shape [24, 16], config.json asks for [32, 16]"],
    ),
    (
        "whole numbers",
        |s| s.weights(|header, _| header[GATE]["dtype"] = json!("I32")),
        "{train}",
        &[GATE, "@/model/model.safetensors", "convert the model to F32, F16 or BF16"],
    ),
    (
        "truncated",
        |s| s.weights(|_, data| data.truncate(data.len() - 10)),
        "{train}",
        &["@/model/model.safetensors: tensor \"", "the file is truncated", "copy or download it again"],
    ),
    (
        "no bytes",
        |s| s.write("model/model.safetensors", ""),
        "{train}",
        &["@/model/model.safetensors: the file is empty"],
    ),
    (
        "a pointer to the file",
        |s| s.write("model/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "{train}",
        &["@/model/model.safetensors", "Git LFS pointer", "git lfs pull"],
    ),
    (
        "tensor of no elements",
        |s| {
            s.weights(|header, _| {
                header["model.nothing"] = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
            });
        },
        "{train}",
        &["@/model/model.safetensors: tensor \"model.nothing\"", "no elements"],
    ),
    (
        "tensors that overlap",
        |s| {
            s.weights(|header, _| {
                for i in 0..2 {
                    header[GATE]["data_offsets"][i] = (header[GATE]["data_offsets"][i].as_u64().unwrap() - 8).into();
                }
            });
        },
        "{train}",
        &["@/model/model.safetensors: tensor \"model.layers.0.mlp.gate_proj.weight\"", "overlaps tensor"],
    ),
    (
        "NaN",
        |s| s.set_tensor(GATE, f32::NAN),
        "{train}",
        &["@/model/model.safetensors", GATE, "element 0 is NaN, which is not finite", "use an earlier copy"],
    ),
    (
        "more than bf16 holds",
        |s| s.set_tensor(GATE, f32::MAX),
        "{train} --dtype bf16",
        &["@/model/model.safetensors", GATE, "not finite in bf16"],
    ),
    (
        "head beside a tied table",
        |s| s.config("tie_word_embeddings", json!(true)),
        "{train}",
        &["tensor \"lm_head.weight\"", "ties it to \"model.embed_tokens.weight\", but the two differ"],
    ),
    (
        "missing shard",
        |s| {
            let mut map = serde_json::Map::new();
            s.weights(|header, _| {
                for (i, name) in header.as_object().unwrap().keys().enumerate() {
                    map.insert(name.clone(), format!("model-0000{}-of-00002.safetensors", 1 + i % 2).into());
                }
            });
            let index = s.path("model/model.safetensors.index.json");
            std::fs::write(index, json!({ "metadata": {}, "weight_map": map }).to_string()).unwrap();
            let shard = s.path("model/model-00001-of-00002.safetensors");
            std::fs::rename(s.path("model/model.safetensors"), shard).unwrap();
        },
        "{train}",
        &["@/model/model.safetensors.index.json", "1 of 2 weight files", "missing: model-00002-of-00002.safetensors"],
    ),
    (
        "pickles only",
        |s| std::fs::rename(s.path("model/model.safetensors"), s.path("model/pytorch_model.bin")).unwrap(),
        "{train}",
        &["@/model: pytorch_model.bin is here", "PyTorch pickles are not read", "safe_serialization=True"],
    ),
    (
        "broken tokenizer",
        |s| s.write("model/tokenizer.json", "{\"model\": 1}"),
        "{train}",
        &["@/model/tokenizer.json: not a tokenizer that can be read"],
    ),
    (
        "text without a tokenizer",
        |s| s.remove("model/tokenizer.json"),
        "{train}",
        &["@/data.txt: this is text, but there is no tokenizer", "or pre-tokenized data"],
    ),
    (
        "prompt without a tokenizer",
        |s| s.remove("model/tokenizer.json"),
        "generate --model @/model --prompt hi",
        &["@/model has no tokenizer.json"],
    ),
    (
        "vocabulary smaller than the tokenizer's",
        |s| s.model(|config| config["vocab_size"] = json!(100)),
        "{train}",
        &["@/data.txt", "between 0 and 99, the model's vocabulary", "must come from the same model"],
    ),
    (
        "prompt outside the vocabulary",
        |s| s.model(|config| config["vocab_size"] = json!(100)),
        "generate --model @/model --prompt hi --max-tokens 4",
        &["token id 104 of the prompt", "vocabulary of 100", "tokenizer.json and config.json"],
    ),
];

#[test]
fn model_directories() {
    check(MODELS);
}

const MACHINE: &[Row] = &[
    (
        "more memory than any machine has",
        AS_IS,
        "train --preset llama-3.1-70b --data @/data.txt --out @/out --seq-len 131072 --batch-size 64 \
         --micro-batch-size 1 --activations keep",
        &[
            "does not fit, and nothing was allocated",
            "needed",
            "available",
            "lower --micro-batch-size",
            "--device-memory",
        ],
    ),
    (
        "a file in the way",
        |s| s.write("out", "mine"),
        "{train}",
        &["--out @/out: there is a file of this name; give a folder"],
    ),
    (
        "a file for a parent",
        AS_IS,
        "train --model @/model --data @/data.txt --out @/data.txt/out",
        &["--out @/data.txt/out: @/data.txt is a file, not a folder"],
    ),
    (
        "somebody else's folder in the way",
        |s| s.write("out/model/thesis.txt", "ten years of work"),
        "{train}",
        &["--out", "@/out/model", "will not be replaced; choose another place"],
    ),
    (
        "gradients that are not finite",
        |s| s.set_tensor("lm_head.weight", 3e38),
        "{train} --dtype f32 --steps 20",
        &["10 steps in a row", "the last at step 10", "nothing was changed", "Lower --lr"],
    ),
    (
        "losses that are not finite",
        |s| s.set_tensor("lm_head.weight", 3e38),
        "{train} --dtype f32 --steps 20 --update eager",
        &["10 steps in a row", "the last at step 10"],
    ),
    (
        "weights that leave the numbers",
        AS_IS,
        "{train} --dtype f32 --steps 5 --lr 3e38 --weight-decay 0 --lr-schedule constant",
        &["step 1", "is not finite", "Lower the learning rate"],
    ),
];

#[test]
fn machines_and_numbers() {
    check(MACHINE);
}

/// One row of each kind through the binary: exit status, and where the error goes.
#[test]
fn the_binary_fails_as_a_command_should() {
    for (rows, what, status) in [
        (FLAGS, "dtype", 2),
        (FLAGS, "lr NaN", 1),
        (FILES, "misspelt key", 1),
        (MODELS, "truncated", 1),
        (MACHINE, "gradients that are not finite", 1),
    ] {
        let (_, spoil, args, wanted) = rows.iter().find(|row| row.0 == what).unwrap();
        let scene = Scene::new();
        spoil(&scene);
        let output = scene.output(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{what}: {error}");
        assert!(error.lines().any(|line| line.starts_with("error: ")), "{what}: {error}");
        assert!(wanted.iter().all(|w| error.contains(&scene.fill(w))), "{what}: {error}");
        assert!(!error.contains("panicked"), "{what}: {error}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{what}");
    }
}
