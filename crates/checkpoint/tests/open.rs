//! Opening and checking: every way in which a directory can be wrong is named, and none makes us panic.

mod common;

use common::{Raw, dir_of, file, framed, index, ramp, raw, text};
use megatrain_checkpoint::{Alias, Expected, FloatDType, ModelDir};
use std::fs;

const CONFIG: (&str, &[u8]) = ("config.json", b"{\"model_type\": \"llama\"}");

fn open_error(files: &[(&str, &[u8])]) -> String {
    let dir = dir_of(files);
    text(dir.path(), ModelDir::open(dir.path()).expect_err("this must not open"))
}

/// The message for a directory of a sound configuration and one weight file.
fn file_error(bytes: &[u8]) -> String {
    open_error(&[CONFIG, ("model.safetensors", bytes)])
}

fn sound() -> Vec<u8> {
    file(&[raw("a", "BF16", &[2, 3], &ramp(6)), raw("b", "F32", &[4], &ramp(4))])
}

#[test]
fn a_sound_directory_opens_and_tells_what_it_holds() {
    let dir = dir_of(&[CONFIG, ("model.safetensors", &sound())]);
    let model = ModelDir::open(dir.path()).unwrap();
    let names: Vec<_> = model.tensors().map(|t| (t.name, t.dtype.header_name(), t.shape.to_vec())).collect();
    assert_eq!(names, [("a", "BF16", vec![2, 3]), ("b", "F32", vec![4])]);
    assert_eq!(model.config()["model_type"], "llama");
    assert_eq!(model.main_dtype(), Some(FloatDType::F32), "16 bytes against 12");
    assert_eq!(model.get("a").unwrap().len_bytes, 12);
    assert!(model.get("c").is_none());
}

#[test]
fn wrong_directories_are_named() {
    let weights = sound();
    let safe = ("model.safetensors", weights.as_slice());
    let error = ModelDir::open("/no/such/model").unwrap_err().to_string();
    assert!(error.starts_with("/no/such/model: no such directory; give a local directory"), "{error}");
    let dir = dir_of(&[safe]);
    let error = ModelDir::open(dir.path().join("model.safetensors")).unwrap_err();
    assert_eq!(
        text(dir.path(), error),
        "model.safetensors: this is a file; give the model's directory, in which config.json lies beside it"
    );

    assert_eq!(open_error(&[]), "DIR: the directory is empty; it needs config.json and .safetensors files");
    assert!(open_error(&[safe]).starts_with("DIR: there is no config.json;"));
    assert!(
        open_error(&[("config.json", b"{\"a\": }"), safe]).starts_with("config.json: not valid JSON: expected value")
    );
    assert!(open_error(&[("config.json", b"[]"), safe]).starts_with("config.json: this is not a JSON object"));
    assert!(open_error(&[CONFIG]).starts_with("DIR: there are no weights; it needs model.safetensors"));
    let pickles = open_error(&[CONFIG, ("pytorch_model.bin", b"x")]);
    assert!(pickles.starts_with("DIR: pytorch_model.bin is here, but PyTorch pickles are not read; save the model as"));
    assert!(open_error(&[CONFIG, ("q4.gguf", b"x")]).contains("GGUF files are not read"));
    let shard = ("model-00001-of-00002.safetensors", weights.as_slice());
    assert!(open_error(&[CONFIG, shard]).starts_with("DIR: model-00001-of-00002.safetensors is here, but neither"));
    let both = open_error(&[CONFIG, safe, ("model.safetensors.index.json", b"{}")]);
    assert!(both.starts_with("DIR: both model.safetensors and model.safetensors.index.json are here"), "{both}");
}

#[test]
fn wrong_files_are_named_with_their_tensor() {
    let whole = sound();
    let starts = |bytes: &[u8], expected: &str| {
        let error = file_error(bytes);
        assert!(error.starts_with(&format!("model.safetensors: {expected}")), "got {error}\nnot {expected}");
    };
    starts(b"", "the file is empty: copy or download it again");
    starts(b"abc", "the file has only 3 bytes");
    starts(b"version https://git-lfs", "this is a Git LFS pointer (run `git lfs pull`");
    starts(b"PK\x03\x04aaaaaaaaaa", "this is a zip archive");
    starts(b"<!doctype html>", "this is a web page");
    starts(&u64::MAX.to_le_bytes(), "the header claims 18446744073709551615 bytes");
    starts(&[&1000u64.to_le_bytes()[..], b"{}"].concat(), "the file is truncated inside its header: 1000 header bytes");
    starts(&framed("{\"a\":", b""), "the header is not valid (EOF");
    starts(&framed("\u{e9}", b"").replace_last(0xff), "the header is not valid (invalid utf-8");
    starts(&framed("[]", b""), "the header is not valid (invalid type: sequence");
    starts(&framed("{\"__metadata__\": {\"a\": 1}}", b""), "the header is not valid (__metadata__ must map");
    starts(&framed("{}", b""), "the file holds no tensors");
    starts(&whole[..whole.len() - 1], "tensor \"b\": it needs bytes up to ");
    starts(&[&whole[..], b"12"].concat(), "2 bytes at the end belong to no tensor");

    let one = |entry: &str, data: &[u8], expected: &str| {
        starts(&framed(&format!("{{\"w\": {entry}}}"), data), &format!("tensor \"w\": {expected}"));
    };
    one("3", b"", "its header entry is malformed (not an object)");
    one(r#"{"shape": [1], "data_offsets": [0, 4]}"#, b"1234", "its header entry is malformed (no \"dtype\")");
    one(
        r#"{"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}"#,
        b"1234",
        "its header entry is malformed (\"shape\"",
    );
    one(r#"{"dtype": "F32", "shape": [1], "data_offsets": [4]}"#, b"1234", "its header entry is malformed (\"data_");
    one(r#"{"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}"#, b"1234", "unknown element type \"F33\"");
    one(r#"{"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}"#, b"", "shape [0] has no elements");
    one(
        r#"{"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}"#,
        b"1234",
        "shape [2] of F32 does not take the 4 bytes",
    );
    one(r#"{"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}"#, b"1234", "its offsets [4, 0] run backwards");
    one(
        r#"{"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}"#,
        b"12345678",
        "bytes 0 to 4 before it belong to no",
    );
    one(
        r#"{"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]}"#,
        b"1234",
        "shape [4294967296, 4294967296] of F32 does not take",
    );
    let last = u64::MAX;
    one(
        &format!(r#"{{"dtype": "U8", "shape": [1], "data_offsets": [{}, {last}]}}"#, last - 1),
        b"1",
        "its header entry is malformed (offsets beyond any file)",
    );
    let overlap = r#"{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                      "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}"#;
    starts(&framed(overlap, b"123456"), "tensor \"b\": it overlaps tensor \"a\": it begins at byte 2");
    let twice = r#"{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                    "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}"#;
    starts(&framed(twice, b"12"), "the header is not valid (tensor \"a\" appears twice");
}

trait ReplaceLast {
    fn replace_last(self, byte: u8) -> Self;
}

impl ReplaceLast for Vec<u8> {
    fn replace_last(mut self, byte: u8) -> Self {
        *self.last_mut().unwrap() = byte;
        self
    }
}

#[test]
fn index_and_shards_must_agree() {
    const ONE: &str = "model-00001-of-00002.safetensors";
    const TWO: &str = "model-00002-of-00002.safetensors";
    const INDEX: &str = "model.safetensors.index.json";
    let (first, second) = (file(&[raw("a", "F32", &[2], &ramp(2))]), file(&[raw("b", "F32", &[3], &ramp(3))]));
    let good = index(&[("a", ONE), ("b", TWO)]);
    let dir = dir_of(&[CONFIG, (INDEX, &good), (ONE, &first), (TWO, &second)]);
    assert_eq!(ModelDir::open(dir.path()).unwrap().tensors().count(), 2);

    let error = |index: &[u8]| open_error(&[CONFIG, (INDEX, index), (ONE, &first), (TWO, &second)]);
    let missing = open_error(&[CONFIG, (INDEX, &good), (ONE, &first)]);
    assert!(missing.starts_with(&format!("{INDEX}: 1 of 2 weight files that the index names are missing: {TWO};")));
    let truncated = open_error(&[CONFIG, (INDEX, &good), (ONE, &first), (TWO, &second[..second.len() - 4])]);
    assert!(truncated.starts_with(&format!("{TWO}: tensor \"b\": it needs bytes up to")), "{truncated}");
    let swapped = error(&index(&[("a", TWO), ("b", TWO), ("c", ONE)]));
    assert!(swapped.starts_with(&format!("{INDEX}: tensor \"a\": the index places it in {TWO}, but it is in {ONE}")));
    let absent = error(&index(&[("a", ONE), ("b", TWO), ("c", ONE)]));
    assert!(absent.starts_with(&format!("{INDEX}: tensor \"c\": the index places it in {ONE}, which has no such")));
    let more = file(&[raw("b", "F32", &[3], &ramp(3)), raw("d", "F32", &[1], &ramp(1))]);
    let unnamed = open_error(&[CONFIG, (INDEX, &good), (ONE, &first), (TWO, &more)]);
    assert!(unnamed.starts_with(&format!("{TWO}: tensor \"d\": {INDEX} does not name it;")), "{unnamed}");
    let again = open_error(&[CONFIG, (INDEX, &good), (ONE, &first), (TWO, &first)]);
    assert!(again.starts_with(&format!("{TWO}: tensor \"a\": ")) && again.contains("holds a tensor of the same name"));
    let outside = error(&index(&[("a", "../other/model.safetensors")]));
    assert!(outside.contains("which is not the name of a file beside the index"), "{outside}");
    assert!(error(b"{}").contains("the index has no \"weight_map\""));
    assert!(error(b"{\"weight_map\": {\"a\": 3}}").contains("does not give a file name for it"));
}

#[test]
fn all_differences_from_what_is_expected_are_listed_at_once() {
    let bytes = file(&[
        raw("model.embed_tokens.weight", "BF16", &[3, 2], &ramp(6)),
        raw("model.norm.weight", "BF16", &[2], &ramp(2)),
        raw("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[1], &[1.0]),
        raw("extra.bias", "BF16", &[2], &ramp(2)),
        Raw("model.ids", "I64", vec![1], vec![0; 8]),
    ]);
    let dir = dir_of(&[CONFIG, ("model.safetensors", &bytes)]);
    let model = ModelDir::open(dir.path()).unwrap();
    let expected = [
        Expected::new("model.embed_tokens.weight", &[3, 2]),
        Expected::new("model.norm.weight", &[4]),
        Expected::new("model.ids", &[1]),
        Expected::new("lm_head.weight", &[3, 2]),
    ];
    let error = text(dir.path(), model.check(&expected, &[]).unwrap_err());
    assert_eq!(
        error,
        "DIR: the weights do not fit config.json\n  missing (1): lm_head.weight\n  not used by this architecture (1): \
         extra.bias (model.safetensors)\n  wrong (2): model.norm.weight in model.safetensors has shape [2], config.json \
         asks for [4], model.ids in model.safetensors: element type I64 is not one that weights are read from; convert \
         the model to F32, F16 or BF16 (quantized models must be dequantized first)\n  config.json and the .safetensors \
         files must come from the same model"
    );
}

#[test]
fn a_tied_head_must_repeat_the_embedding() {
    let values = ramp(600_000);
    let mut other = values.clone();
    other[599_999] += 1.0;
    let shape = [1000, 600];
    let expected = [Expected::new("embed", &shape)];
    let aliases = [Alias { name: "head".to_owned(), of: "embed".to_owned() }];
    let check = |head: Option<Raw>| {
        let tensors: Vec<Raw> = [raw("embed", "BF16", &shape, &values)].into_iter().chain(head).collect();
        let dir = dir_of(&[CONFIG, ("model.safetensors", &file(&tensors))]);
        ModelDir::open(dir.path()).unwrap().check(&expected, &aliases).map_err(|e| text(dir.path(), e))
    };
    check(None).unwrap();
    check(Some(raw("head", "BF16", &shape, &values))).unwrap();
    for head in [raw("head", "BF16", &shape, &other), raw("head", "F32", &shape, &values)] {
        let error = check(Some(head)).unwrap_err();
        assert!(error.starts_with("model.safetensors: tensor \"head\": config.json ties it to \"embed\""), "{error}");
    }
}

#[test]
fn every_truncation_is_an_error_and_no_damage_makes_us_panic() {
    let whole = sound();
    let dir = dir_of(&[CONFIG]);
    let path = dir.path().join("model.safetensors");
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let error = ModelDir::open(dir.path()).expect_err("a truncated file must not open").to_string();
        assert!(error.contains("model.safetensors"), "{error}");
    }
    // A fixed generator: the same damage in every run.
    let mut state = 12345u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound
    };
    let mut opened = 0;
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + next(4) {
            let at = next(whole.len() - 28);
            bytes[at] = if next(2) == 0 { b"0123456789{}[]\",:eE-."[next(21)] } else { next(256) as u8 };
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok(model) = ModelDir::open(dir.path()) {
            opened += 1;
            for tensor in model.tensors() {
                let elems = tensor.shape.iter().product::<u64>() as usize;
                let _ = model.read_f32(tensor.name, &mut vec![0.0; elems]);
            }
        }
    }
    assert!(opened < 1000, "most damage shows");
}
