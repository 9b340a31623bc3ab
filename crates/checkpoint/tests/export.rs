//! Writing: the same files as the source, whole or not at all, readable by the format's own library.

mod common;

use common::{dir_of, file, index, ramp, raw, text};
use megatrain_checkpoint::{
    Alias, Error, Expected, ExportPlan, ExportTensor, FileDType, FloatDType, MAX_SHARD_BYTES, ModelDir, check_target,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Keys out of alphabetical order and numbers whose last digit a careless parser loses.
const CONFIG: &str =
    r#"{"model_type": "llama", "architectures": ["A"], "initializer_range": 0.041666666666666664, "eps": 1e-05}"#;

/// A sharded, tied model of mixed dtypes with an alias and a rotation table.
fn source() -> tempfile::TempDir {
    let first = file(&[raw("z", "F32", &[1_100_000], &ramp(1_100_000)), raw("embed", "BF16", &[2, 3], &ramp(6))]);
    let table = raw("l.rotary_emb.inv_freq", "F32", &[2], &[1.0, 0.3]);
    let second = file(&[table, raw("head", "BF16", &[2, 3], &ramp(6)), raw("a", "F16", &[5], &ramp(5))]);
    let index = index(&[("z", ONE), ("a", TWO), ("embed", ONE), ("head", TWO), ("l.rotary_emb.inv_freq", TWO)]);
    dir_of(&[
        ("config.json", CONFIG.as_bytes()),
        (ONE, &first),
        (TWO, &second),
        (INDEX, &index),
        ("tokenizer.json", b"{}"),
        ("generation_config.json", b"{\"eos_token_id\": 2}"),
        ("notes.txt", b"not part of the model"),
    ])
}

fn expected() -> (Vec<Expected>, Vec<Alias>) {
    let expected = vec![Expected::new("a", &[5]), Expected::new("embed", &[2, 3]), Expected::new("z", &[1_100_000])];
    (expected, vec![Alias { name: "head".to_owned(), of: "embed".to_owned() }])
}

/// All values of a source, as a trainer would hold them.
fn values(model: &ModelDir) -> BTreeMap<String, Vec<f32>> {
    let read = |name: &str| {
        let mut out = vec![0.0; model.get(name).unwrap().shape.iter().product::<u64>() as usize];
        model.read_f32(name, &mut out).unwrap();
        (name.to_owned(), out)
    };
    expected().0.iter().map(|e| read(&e.name)).collect()
}

fn from(values: &BTreeMap<String, Vec<f32>>) -> impl FnMut(&str, u64, &mut [f32]) -> Result<(), String> {
    |name, first, out| {
        out.copy_from_slice(&values[name][first as usize..][..out.len()]);
        Ok(())
    }
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap_or_default())
    };
    fs::read_dir(dir).unwrap().map(|entry| read(entry.unwrap())).collect()
}

#[test]
fn all_weights_may_be_saved_in_another_type() {
    let dir = source();
    let model = ModelDir::open(dir.path()).unwrap();
    let values = values(&model);
    let (expected, aliases) = expected();
    let plan = ExportPlan::like(&model, &expected, &aliases).unwrap().with_dtype(FloatDType::F32);
    let out = tempfile::tempdir().unwrap();
    plan.write(&out.path().join("m"), model.config(), &mut from(&values)).unwrap();
    let saved = ModelDir::open(out.path().join("m")).unwrap();
    saved.check(&expected, &aliases).unwrap();
    assert_eq!(self::values(&saved), values);
    for name in ["a", "embed", "head", "z"] {
        assert_eq!(saved.get(name).unwrap().dtype, FileDType::Float(FloatDType::F32), "{name}");
    }
    let index: Value = serde_json::from_slice(&fs::read(out.path().join("m").join(INDEX)).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 4 * (5 + 6 + 6 + 1_100_000 + 2));
}

#[test]
fn an_unchanged_model_comes_back_byte_for_byte() {
    let dir = source();
    let model = ModelDir::open(dir.path()).unwrap();
    let values = values(&model);
    let (expected, aliases) = expected();
    let plan = ExportPlan::like(&model, &expected, &aliases).unwrap();
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("deep/model");
    plan.write(&target, model.config(), &mut from(&values)).unwrap();

    let (mut before, after) = (files(dir.path()), files(&target));
    before.remove("notes.txt");
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for name in [ONE, TWO] {
        let (old, new) =
            (SafeTensors::deserialize(&before[name]).unwrap(), SafeTensors::deserialize(&after[name]).unwrap());
        let metadata = |bytes| SafeTensors::read_metadata(bytes).unwrap().1.metadata().clone();
        assert_eq!(metadata(&before[name]), metadata(&after[name]));
        for (name, tensor) in old.tensors() {
            assert_eq!(new.tensor(&name).unwrap(), tensor, "{name}");
        }
        assert_eq!(new.len(), old.len());
    }
    let json = |files: &BTreeMap<_, Vec<u8>>, name: &str| serde_json::from_slice::<Value>(&files[name]).unwrap();
    for name in ["config.json", INDEX] {
        assert_eq!(json(&before, name).to_string(), json(&after, name).to_string(), "{name}: keys, order and digits");
    }
    assert!(String::from_utf8_lossy(&after["config.json"]).contains("0.041666666666666664"));
    let order: Vec<_> = ModelDir::open(&target).unwrap().tensors().map(|t| t.name.to_owned()).collect();
    assert_eq!(order, model.tensors().map(|t| t.name.to_owned()).collect::<Vec<_>>());
    assert_eq!(files(&out.path().join("deep")).len(), 1, "nothing is left beside the model");
    assert_eq!(plan.weight_bytes(), 4 * 1_100_000 + 12 + 8 + 12 + 10);
}

#[test]
fn a_trained_tied_model_stays_tied() {
    let dir = source();
    let model = ModelDir::open(dir.path()).unwrap();
    let mut values = values(&model);
    values.get_mut("embed").unwrap()[4] = 123.0;
    let (expected, aliases) = expected();
    let plan = ExportPlan::like(&model, &expected, &aliases).unwrap();
    // Over the source itself, which stays readable.
    plan.write(dir.path(), model.config(), &mut from(&values)).unwrap();
    let again = ModelDir::open(dir.path()).unwrap();
    again.check(&expected, &aliases).unwrap();
    let mut head = [0.0; 6];
    again.read_f32("head", &mut head).unwrap();
    assert_eq!(head[4], 123.0);
    model.read_f32("head", &mut head).unwrap();
    assert_eq!(head[4], ramp(6)[4], "the opened directory is what it was");
}

fn tensor(name: &str, shape: &[u64], dtype: FloatDType) -> ExportTensor {
    ExportTensor { name: name.to_owned(), shape: shape.to_vec(), dtype }
}

#[test]
fn a_fresh_model_is_one_file_or_shards_with_an_index() {
    let tensors = [
        tensor("b", &[3], FloatDType::Bf16),
        tensor("a", &[2, 2], FloatDType::F32),
        tensor("c", &[4], FloatDType::F16),
        tensor("big", &[9], FloatDType::F32),
    ];
    let mut produce = |_: &str, first: u64, out: &mut [f32]| {
        for (i, value) in out.iter_mut().enumerate() {
            *value = first as f32 + i as f32;
        }
        Ok(())
    };
    for (limit, expected) in [
        (MAX_SHARD_BYTES, vec!["config.json", "extra.json", "model.safetensors"]),
        (
            24,
            vec![
                "config.json",
                "extra.json",
                "model-00001-of-00003.safetensors",
                "model-00002-of-00003.safetensors",
                "model-00003-of-00003.safetensors",
                INDEX,
            ],
        ),
    ] {
        let out = tempfile::tempdir().unwrap();
        let plan = ExportPlan::fresh(&tensors, limit).unwrap().with_file("extra.json", "{}");
        plan.write(out.path(), &json!({"model_type": "x"}), &mut produce).unwrap();
        let written = files(out.path());
        assert_eq!(written.keys().collect::<Vec<_>>(), expected);
        let model = ModelDir::open(out.path()).unwrap();
        let wanted: Vec<Expected> = tensors.iter().map(|t| Expected::new(&t.name, &t.shape)).collect();
        model.check(&wanted, &[]).unwrap();
        for t in &tensors {
            let info = model.get(&t.name).unwrap();
            assert_eq!(info.dtype.float(), Some(t.dtype));
            let mut out = vec![0.0; t.shape.iter().product::<u64>() as usize];
            model.read_f32(&t.name, &mut out).unwrap();
            assert!(out.iter().enumerate().all(|(i, &value)| value == i as f32));
        }
        for bytes in written.iter().filter(|(name, _)| name.ends_with(".safetensors")).map(|(_, bytes)| bytes) {
            let (header_bytes, metadata) = SafeTensors::read_metadata(bytes).unwrap();
            assert_eq!(header_bytes % 8, 0);
            assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
            for (name, info) in metadata.tensors() {
                assert_eq!(info.data_offsets.0 * 8 % info.dtype.bitsize(), 0, "{name} is aligned to its elements");
            }
        }
    }
    let error = |tensors: &[ExportTensor]| ExportPlan::fresh(tensors, 100).unwrap_err().to_string();
    assert!(error(&[tensor("a", &[1], FloatDType::F32), tensor("a", &[1], FloatDType::F32)]).contains("given twice"));
    assert!(error(&[tensor("a", &[0], FloatDType::F32)]).contains("shape [0] has no elements"));
}

#[test]
fn a_failed_export_leaves_what_was_there() {
    let dir = source();
    let model = ModelDir::open(dir.path()).unwrap();
    let good = values(&model);
    let (expected, aliases) = expected();
    let plan = ExportPlan::like(&model, &expected, &aliases).unwrap();
    let out = tempfile::tempdir().unwrap();
    let target = out.path().join("model");
    plan.write(&target, model.config(), &mut from(&good)).unwrap();
    let before = files(&target);

    let mut bad = good.clone();
    bad.get_mut("z").unwrap()[1_099_999] = f32::NAN;
    let nan = plan.write(&target, model.config(), &mut from(&bad)).unwrap_err();
    let nan = text(&target, nan);
    assert!(
        nan.starts_with(&format!(
            "{ONE}: tensor \"z\": element 1099999 is NaN, which is not finite; the model was not"
        ))
    );
    let mut bad = good.clone();
    bad.get_mut("a").unwrap()[2] = 70_000.0;
    let large = text(&target, plan.write(&target, model.config(), &mut from(&bad)).unwrap_err());
    assert!(large.starts_with(&format!("{TWO}: tensor \"a\": element 2 is 7e4, which is too large for")), "{large}");
    let mut refuse = |name: &str, _: u64, _: &mut [f32]| Err(format!("no {name}"));
    let refused = text(&target, plan.write(&target, model.config(), &mut refuse).unwrap_err());
    assert!(refused.ends_with("its values could not be produced: no z"), "{refused}");

    assert_eq!(files(&target), before);
    assert_eq!(files(out.path()).len(), 1, "nothing is left beside the model");
}

#[test]
fn what_a_killed_export_left_is_cleared_or_restored() {
    let dir = source();
    let model = ModelDir::open(dir.path()).unwrap();
    let good = values(&model);
    let (expected, aliases) = expected();
    let plan = ExportPlan::like(&model, &expected, &aliases).unwrap();
    let out = tempfile::tempdir().unwrap();
    let (target, previous) = (out.path().join("model"), out.path().join(".model.previous"));
    plan.write(&target, model.config(), &mut from(&good)).unwrap();
    let before = files(&target);
    // Killed while writing.
    fs::create_dir(out.path().join(".model.partial")).unwrap();
    fs::write(out.path().join(".model.partial/config.json"), "{").unwrap();
    plan.write(&target, model.config(), &mut from(&good)).unwrap();
    assert_eq!(files(out.path()).len(), 1);
    // Killed between two renames: a failing export must bring the old model back.
    fs::rename(&target, &previous).unwrap();
    let mut refuse = |_: &str, _: u64, _: &mut [f32]| Err("no".to_owned());
    plan.write(&target, model.config(), &mut refuse).unwrap_err();
    assert_eq!(files(&target), before);
    assert_eq!(files(out.path()).len(), 1);
}

#[test]
fn only_model_directories_are_replaced() {
    let plan = ExportPlan::fresh(&[tensor("a", &[1], FloatDType::F32)], MAX_SHARD_BYTES).unwrap();
    let mut zeros = |_: &str, _: u64, _: &mut [f32]| Ok(());
    let dir = dir_of(&[("thesis.tex", b"years of work")]);
    for target in [dir.path().to_owned(), dir.path().join("thesis.tex")] {
        let error = plan.write(&target, &json!({}), &mut zeros).unwrap_err();
        assert!(matches!(error, Error::File { .. }));
        assert_eq!(check_target(&target).unwrap_err().to_string(), error.to_string(), "known before a long run");
        assert!(error.to_string().contains("not a model directory, so it will not be replaced"), "{error}");
    }
    assert_eq!(files(dir.path())["thesis.tex"], b"years of work");
    let (empty, model) = (tempfile::tempdir().unwrap(), source());
    for vacant in [dir.path().join("new"), empty.path().to_owned(), model.path().to_owned()] {
        check_target(&vacant).unwrap();
    }
    let error = plan.write(Path::new("/"), &json!({}), &mut zeros).unwrap_err();
    assert!(error.to_string().starts_with("/: a model cannot be written here"), "{error}");
}
