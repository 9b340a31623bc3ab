//! Mistakes of somebody who begins, each with the whole message that they read: what is wrong, where, and what to do.

mod common;

use common::messages::{GOOD, Row, chat, check};
use common::rows::AS_IS;

/// What somebody does who begins.
const NEWCOMERS: &[Row] = &[
    (
        "a wrong path",
        AS_IS,
        "train --model @/model --data @/dta.jsonl --out @/out",
        "@/dta.jsonl: no such file or directory; check the path",
    ),
    (
        "a spreadsheet",
        |s| s.write("data.csv", "q,a"),
        "train --model @/model --data @/data.csv --out @/out",
        "@/data.csv: data files are .txt, .jsonl, .json (each also .gz or .zst), .parquet or .arrow; convert it to .jsonl, an object a line, for example in Python: pandas.read_csv(\"data.csv\").to_json(\"data.jsonl\", orient=\"records\", lines=True)",
    ),
    (
        "a workbook",
        |s| s.write("data.xlsx", "PK"),
        "train --model @/model --data @/data.xlsx --out @/out",
        "@/data.xlsx: data files are .txt, .jsonl, .json (each also .gz or .zst), .parquet or .arrow; convert it to .jsonl, an object a line, for example in Python: pandas.read_excel(\"data.xlsx\").to_json(\"data.jsonl\", orient=\"records\", lines=True)",
    ),
    (
        "no data",
        AS_IS,
        "train --model @/model --out @/out",
        "no data: give --data files or directories, or --dataset names",
    ),
    (
        "a name on the hub",
        AS_IS,
        "train --model HuggingFaceTB/SmolLM2-135M --data @/data.txt --out @/out",
        "HuggingFaceTB/SmolLM2-135M: no such directory, and models are not downloaded. If this is a name on the Hugging Face hub: `hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M`, then give SmolLM2-135M",
    ),
    (
        "a data set on the hub",
        AS_IS,
        "train --model @/model --data tatsu-lab/alpaca --out @/out",
        "tatsu-lab/alpaca: no such file or directory. A data set on the Hugging Face hub is downloaded first: `hf download tatsu-lab/alpaca --repo-type dataset --local-dir alpaca`, then give alpaca",
    ),
    (
        "a wrong model",
        AS_IS,
        "train --model @/no --data @/data.txt --out @/out",
        "@/no: no such directory; give a local directory with config.json and .safetensors files (models are not downloaded)",
    ),
    (
        "GGUF",
        |s| s.write("m.gguf", "GGUF"),
        "train --model @/m.gguf --data @/data.txt --out @/out",
        "@/m.gguf: this is a GGUF file, made for inference and not read here; give the directory of the model that it was made from, with config.json and .safetensors files",
    ),
    (
        "a file of weights",
        AS_IS,
        "train --model @/model/model.safetensors --data @/data.txt --out @/out",
        "@/model/model.safetensors: this is a file; give the model's directory, in which config.json lies beside it",
    ),
    (
        "a model without weights",
        |s| s.remove("model/model.safetensors"),
        "train --model @/model --data @/data.txt --out @/out",
        "@/model: there are no weights; it needs model.safetensors, or model.safetensors.index.json and the files that names",
    ),
    (
        "a model without a tokenizer",
        |s| s.remove("model/tokenizer.json"),
        "train --model @/model --data @/data.txt --out @/out",
        "@/data.txt: this is text, but there is no tokenizer to encode it; give a model directory with a tokenizer.json, or pre-tokenized data",
    ),
    (
        "a model without a configuration",
        |s| s.remove("model/config.json"),
        "train --model @/model --data @/data.txt --out @/out",
        "@/model: there is no config.json; give the directory that holds the model itself",
    ),
    (
        "an adapter",
        |s| {
            s.write("lora/adapter_config.json", "{}");
            s.write("lora/adapter_model.safetensors", "");
        },
        "train --model @/lora --data @/data.txt --out @/out",
        "@/lora: this is an adapter (adapter_config.json), not a model; merge it into its base model first, with merge_and_unload() of PEFT",
    ),
    (
        "a folder of models",
        |s| s.write("models/a/config.json", "{}"),
        "train --model @/models --data @/data.txt --out @/out",
        "@/models: there is no config.json; give the directory that holds the model itself, perhaps @/models/a",
    ),
    (
        "longer than the model",
        AS_IS,
        "train --model @/model --data @/data.txt --out @/out --seq-len 4096",
        "--seq-len 4096 is longer than the model's max_position_embeddings of 32; lower it",
    ),
    (
        "all too long",
        |s| chat(s, GOOD),
        "train --model @/model --data @/data.jsonl --template chatml --seq-len 8 --out @/out",
        "nothing would be learnt: 1 record skipped\n           1 x too long, first @/data.jsonl:1: too long: 16 tokens, at most 8 are allowed\n           (a larger --seq-len keeps what is too long; --truncation right or left cuts it)",
    ),
    (
        "the conversation file as a base model's",
        |s| chat(s, GOOD),
        "train --model @/model --data @/data.jsonl --out @/out",
        "@/data.jsonl:1: the model has no chat template of its own (chat_template.jinja, or \"chat_template\" in tokenizer_config.json); name one. built in: alpaca, chatml, deepseek, deepseek-r1, gemma, llama2, llama3, llama3.1, mistral, phi3, phi4, qwen2.5, qwen3, smollm2, vicuna, zephyr (--template NAME or --template FILE.jinja)",
    ),
    (
        "nowhere to write",
        |s| s.write("file", ""),
        "train --model @/model --data @/data.txt --out @/file/out",
        "--out @/file/out: @/file is a file, not a folder; choose another place",
    ),
    #[cfg(target_os = "linux")]
    (
        "nothing to be written",
        AS_IS,
        "train --model @/model --data @/data.txt --out /proc/megatrain",
        "--out /proc/megatrain: nothing can be written in /proc: No such file or directory (os error 2); choose another folder",
    ),
    (
        "a file to write to",
        AS_IS,
        "train --model @/model --data @/data.txt --out @/data.txt",
        "--out @/data.txt: there is a file of this name; give a folder",
    ),
    (
        "something else to write over",
        |s| s.write("out/model/thesis.txt", ""),
        "train --model @/model --data @/data.txt --out @/out",
        "--out: @/out/model: this exists and is not a model directory, so it will not be replaced; choose another place",
    ),
    (
        "the flag of another trainer",
        AS_IS,
        "train --model @/model --data @/data.txt --out @/out --learning_rate 1e-5",
        "unexpected argument '--learning_rate' found\n\n  tip: a similar argument exists: '--lr'\n\nUsage: megatrain train --model <DIR> --data <PATH[:WEIGHT]>... --out <DIR> --lr <RATE>\n\nFor more information, try '--help'.\n",
    ),
];

#[test]
fn newcomers() {
    check(NEWCOMERS);
}
