//! Tokenizers: the built-in one against Hugging Face's reading of its files, and what model directories ask for.
#![cfg(feature = "tokenizer")]

use megatrain_data::{ByteTokenizer, TextTokenizer, Tokenizer};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Texts and the ids that transformers 5.24 gives for them with the files that `examples/byte_tokenizer_files.rs`
/// writes into `DIR`:
///
/// ```python
/// import json, transformers
/// tokenizer = transformers.AutoTokenizer.from_pretrained("DIR")
/// texts = ["", "Hello, world!\n", "  two  spaces\t\r\n\n", "na\u00efve caf\u00e9 \u20ac \U0001f600", "\u0000\u007f\u00ad",
///          "a<|endoftext|>b", "<|endoftext|>", "<|endoftex"]
/// rows = [{"text": t, "ids": tokenizer(t)["input_ids"]} for t in texts]
/// assert all(tokenizer.decode(r["ids"]) == r["text"] for r in rows)
/// json.dump(rows, open("byte_tokenizer.json", "w"))
/// ```
const GOLDEN: &str = include_str!("golden/byte_tokenizer.json");

fn write_byte_files(dir: &Path) {
    for (name, bytes) in ByteTokenizer::files() {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn the_byte_tokenizer_its_files_and_transformers_agree() {
    let dir = tempfile::tempdir().unwrap();
    write_byte_files(dir.path());
    let loaded = Tokenizer::load(dir.path()).unwrap();
    let rows: Vec<Value> = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        let text = row["text"].as_str().unwrap();
        let ids: Vec<i32> = row["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect();
        assert_eq!(ByteTokenizer.encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(loaded.encode(text).unwrap(), ids, "{text:?}");
        let visible = text.replace(ByteTokenizer::EOS, "");
        assert_eq!(ByteTokenizer.decode(&ids).unwrap(), visible);
        assert_eq!(loaded.decode(&ids).unwrap(), visible);
    }
    let every_byte: Vec<i32> = (0..256).collect();
    assert_eq!(ByteTokenizer.decode(&every_byte).unwrap(), loaded.decode(&every_byte).unwrap());
    assert_eq!((loaded.vocab_size(), loaded.eos_id(), loaded.bos_id()), (257, Some(256), None));
    assert_eq!((loaded.stop_ids(), ByteTokenizer.stop_ids()), (&[256][..], &[256][..]));
}

#[test]
fn batches_are_encoded_in_order() {
    let texts: Vec<String> = (0..500).map(|i| "x".repeat(i % 7) + &i.to_string()).collect();
    let one_by_one: Vec<_> = texts.iter().map(|t| ByteTokenizer.encode(t).unwrap()).collect();
    assert_eq!(ByteTokenizer.encode_batch(&texts).unwrap(), one_by_one);
}

#[test]
fn a_text_gets_exactly_one_begin_token_where_one_is_asked_for() {
    // (add_bos_token, tokenizer.json adds one itself, the text has one) -> begin tokens in the ids
    let table = [
        (Some(true), false, false, 1),
        (Some(true), true, false, 1),
        (Some(true), true, true, 1),
        (Some(false), false, false, 0),
        (Some(false), true, false, 0),
        (Some(false), true, true, 1),
        (None, false, false, 0),
        (None, true, false, 1),
        (None, true, true, 1),
    ];
    for (asked, own, in_text, expected) in table {
        let dir = tempfile::tempdir().unwrap();
        write_byte_files(dir.path());
        edit(&dir.path().join("tokenizer.json"), |tokenizer| {
            let mut bos = tokenizer["added_tokens"][0].clone();
            bos["id"] = json!(257);
            bos["content"] = json!("<s>");
            tokenizer["added_tokens"].as_array_mut().unwrap().push(bos);
            if own {
                tokenizer["post_processor"] = json!({
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}
                });
            }
        });
        edit(&dir.path().join("tokenizer_config.json"), |config| {
            config["bos_token"] = json!({"content": "<s>", "special": true});
            match asked {
                Some(asked) => config["add_bos_token"] = json!(asked),
                None => drop(config.as_object_mut().unwrap().remove("add_bos_token")),
            }
        });
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let ids = tokenizer.encode(if in_text { "<s>ab" } else { "ab" }).unwrap();
        let count = ids.iter().filter(|&&id| id == 257).count();
        assert_eq!(count, expected, "asked {asked:?}, own {own}, in text {in_text}: {ids:?}");
        assert_eq!(ids[expected..], [97, 98]);
    }
}

#[test]
fn end_tokens_are_gathered_from_all_files() {
    let dir = tempfile::tempdir().unwrap();
    write_byte_files(dir.path());
    fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [7, 256, 9]}"#).unwrap();
    fs::write(dir.path().join("config.json"), r#"{"eos_token_id": 8, "bos_token_id": 3}"#).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!((tokenizer.eos_id(), tokenizer.bos_id()), (Some(256), Some(3)));
    assert_eq!(tokenizer.stop_ids(), [256, 7, 9, 8]);
    edit(&dir.path().join("tokenizer_config.json"), |config| config["eos_token"] = Value::Null);
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!((tokenizer.eos_id(), tokenizer.stop_ids()), (Some(7), &[7, 256, 9, 8][..]));
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let dir = tempfile::tempdir().unwrap();
    write_byte_files(dir.path());
    edit(&dir.path().join("tokenizer.json"), |tokenizer| {
        tokenizer["truncation"] =
            json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
        tokenizer["padding"] = json!({
            "strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 256,
            "pad_type_id": 0, "pad_token": "<|endoftext|>"
        });
    });
    assert_eq!(Tokenizer::load(dir.path()).unwrap().encode("abcdefgh").unwrap().len(), 8);
}

#[test]
fn broken_directories_are_named() {
    let error = |prepare: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        write_byte_files(dir.path());
        prepare(dir.path());
        let prefix = format!("{}/", dir.path().display());
        Tokenizer::load(dir.path()).unwrap_err().to_string().replace(&prefix, "")
    };
    let absent = error(&|dir| fs::remove_file(dir.join("tokenizer.json")).unwrap());
    assert!(absent.contains("there is no tokenizer.json; make one"), "{absent}");
    let damaged = error(&|dir| fs::write(dir.join("tokenizer.json"), "{\"version\"").unwrap());
    assert!(damaged.starts_with("tokenizer.json: not a tokenizer that can be read"), "{damaged}");
    let config = |change: fn(&mut Value)| error(&move |dir| edit(&dir.join("tokenizer_config.json"), change));
    assert_eq!(
        config(|c| c["eos_token"] = json!("</s>")),
        "tokenizer_config.json: \"eos_token\" is \"</s>\", which tokenizer.json does not have"
    );
    assert_eq!(
        config(|c| c["add_bos_token"] = json!(true)),
        "tokenizer_config.json: \"add_bos_token\" is true, but no file names the begin token; add \"bos_token\""
    );
    let id = error(&|dir| fs::write(dir.join("config.json"), r#"{"eos_token_id": "x"}"#).unwrap());
    assert_eq!(id, "config.json: \"eos_token_id\" is \"x\", not a token id");
}
