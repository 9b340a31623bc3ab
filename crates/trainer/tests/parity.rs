//! Tokens, labels and loss of chats, as transformers and PyTorch have them: from data files to `data preview --json` and to a
//! run's evaluation. `golden/parity/make.py` made the other side.

mod common;

use common::Scene;
use serde_json::Value;
use std::path::Path;

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parity").join(name)).unwrap()
}

/// The golden model with its tokenizer, the data files, and for every file and template what they become.
fn scene() -> (Scene, Vec<Value>) {
    let scene = Scene::new();
    scene.chat_model();
    scene.write("model/tokenizer_config.json", r#"{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": false}"#);
    for name in ["config.json", "model.safetensors"] {
        scene.write(&format!("model/{name}"), golden(name));
    }
    for name in ["alpaca.json", "glaive.json", "flags.jsonl"] {
        scene.write(name, golden(name));
    }
    let mut golden: Value = serde_json::from_slice(&golden("golden.json")).unwrap();
    let Value::Array(rows) = golden["rows"].take() else { panic!("no rows") };
    assert_eq!(rows.len(), 12);
    (scene, rows)
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

/// The arguments that name a row's data and template.
fn arguments(row: &Value) -> String {
    format!("--model @/model --data @/{} --template {} --seq-len 1024", text(row, "data"), text(row, "template"))
}

/// `{"input_ids", "labels"}` of the records of which something is learnt.
fn expected(row: &Value, train_on: &str) -> Vec<Value> {
    let records = row["records"].as_array().unwrap().iter();
    let learnt = records.filter(|record| !record["learnt"][train_on].is_null());
    let line = |record: &Value| {
        let mut labels = vec![Value::from(-100); record["ids"].as_array().unwrap().len()];
        for range in record["learnt"][train_on].as_array().unwrap() {
            let [begin, end] = [0, 1].map(|i| range[i].as_u64().unwrap() as usize);
            labels[begin..end].clone_from_slice(&record["ids"].as_array().unwrap()[begin..end]);
        }
        serde_json::json!({ "input_ids": record["ids"], "labels": labels })
    };
    learnt.map(line).collect()
}

#[test]
fn ids_and_labels_are_those_of_transformers() {
    let (scene, rows) = scene();
    for row in &rows {
        for train_on in ["all-turns", "last-turn", "everything"] {
            let here = format!("{} {} {train_on}", text(row, "data"), text(row, "template"));
            let output = scene.output(&format!("data preview {} --train-on {train_on} --json", arguments(row)));
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{here}: {said}");
            let lines = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines, expected(row, train_on), "{here}");
            for skip in row["skipped"].as_array().unwrap() {
                let place = format!("{}:{}: ", text(row, "data"), skip["line"]);
                let listed = said.lines().any(|line| line.starts_with("skipped ") && line.contains(&place));
                assert!(
                    listed && said.contains(&format!("x {}, first ", text(skip, "reason"))),
                    "{here}: {skip}\n{said}"
                );
            }
        }
    }
}

#[test]
fn the_loss_is_that_of_pytorch() {
    let (scene, rows) = scene();
    for row in &rows {
        let eval =
            format!("--eval-data @/{} --dtype f32 --steps 1 --batch-size 1 --lr 0 --out @/out", text(row, "data"));
        scene.run(&format!("train {} {eval}", arguments(row))).unwrap();
        let evaluations = scene.evaluations("out");
        let [loss, bound] = ["loss", "bound"].map(|key| row[key].as_f64().unwrap());
        let here = format!("{} {}: {evaluations:?}, PyTorch {loss}", text(row, "data"), text(row, "template"));
        assert!((evaluations[0].1 - loss).abs() <= bound && bound < 2e-5, "{here}");
    }
}
