//! Wrong data: as `bad_input.rs`, for files of records and for what is made of them.

mod common;

use common::Scene;
use common::rows::{AS_IS, Row, check};
use serde_json::json;

/// `{train}` with a file of records as its data.
const JSONL: &str = "train --model @/model --data @/data.jsonl --out @/out";

const DATA: &[Row] = &[
    (
        "absent",
        AS_IS,
        "train --model @/model --data @/no.txt",
        &["@/no.txt: no such file or directory; check the path"],
    ),
    ("empty", |s| s.write("data.txt", ""), "{train}", &["@/data.txt: the file is empty; remove it or leave it out"]),
    ("blank", |s| s.write("data.txt", "\n \r\n"), "{train}", &["@/data.txt: the file is empty"]),
    (
        "not UTF-8",
        |s| s.write("data.txt", b"one\ntwo \xc3("),
        "{train}",
        &["@/data.txt:2: byte 8 of the file (0xc3) is not UTF-8; convert"],
    ),
    ("UTF-16", |s| s.write("data.txt", b"\xff\xfeh\0i\0"), "{train}", &["@/data.txt: this is UTF-16; convert it"]),
    ("folder without data", AS_IS, "train --model @/model --data @/model/..", &[]),
    (
        "given twice",
        AS_IS,
        "train --model @/model --data @/data.txt @/data.txt",
        &["@/data.txt: given twice in --data"],
    ),
    (
        "another format",
        |s| s.write("data.csv", "a,b"),
        "train --model @/model --data @/data.csv",
        &["@/data.csv: data files are .txt, .jsonl, .json", ".parquet or .arrow", "convert it to .jsonl"],
    ),
    (
        "not JSON",
        |s| s.write("data.jsonl", "{\"text\": \"a b\"}\n\n{\"text\": \n"),
        JSONL,
        &["@/data.jsonl:3: not valid JSON", "whole on its line"],
    ),
    (
        "list for a record",
        |s| s.write("data.jsonl", "{\"text\": \"a b\"}\n[1, 2]"),
        JSONL,
        &["@/data.jsonl:2: a record must be an object, not a list"],
    ),
    (
        "number for a text",
        |s| s.write("data.jsonl", "{\"text\": 5}"),
        JSONL,
        &["@/data.jsonl:1: \"text\" must be a string, not a number"],
    ),
    (
        "neither key",
        |s| s.write("data.jsonl", "{\"document\": \"a\"}"),
        JSONL,
        &["@/data.jsonl:1", "document", "\"messages\"", "\"text\""],
    ),
    (
        "no messages",
        |s| s.write("data.jsonl", "{\"messages\": []}"),
        JSONL,
        &["@/data.jsonl: its only record cannot be used", "@/data.jsonl:1: \"messages\" is empty"],
    ),
    (
        "both keys",
        |s| s.write("data.jsonl", "{\"text\": \"a\", \"input_ids\": [1]}"),
        JSONL,
        &["@/data.jsonl:1", "both \"text\" and \"input_ids\"; keep one"],
    ),
    (
        "mixed kinds",
        |s| s.write("data.jsonl", "{\"input_ids\": [1, 2]}\n{\"text\": \"a\"}"),
        JSONL,
        &["@/data.jsonl:2", "of the form \"text\", but line 1 is \"tokens\"; put the two kinds in separate files"],
    ),
    (
        "labels of another length",
        |s| s.write("data.jsonl", "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2]}"),
        JSONL,
        &["@/data.jsonl:1: \"labels\" has 2 places, \"input_ids\" 3"],
    ),
    (
        "id outside the vocabulary",
        |s| s.write("data.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 257]}"),
        JSONL,
        &["@/data.jsonl:2: place 1 of input_ids is 257", "between 0 and 256"],
    ),
    (
        "negative id",
        |s| s.write("data.jsonl", "{\"input_ids\": [-1, 2]}"),
        JSONL,
        &["@/data.jsonl:1: place 0 of input_ids is -1"],
    ),
    (
        "id that is none",
        |s| s.write("data.jsonl", "{\"input_ids\": [1, 2.5]}"),
        JSONL,
        &["@/data.jsonl:1: place 1 of \"input_ids\" is 2.5, not a token id"],
    ),
    (
        "label that is none",
        |s| s.write("data.jsonl", "{\"input_ids\": [1, 2], \"labels\": [-100, -5]}"),
        JSONL,
        &["@/data.jsonl:1: place 1 of labels is -5", "or -100 where nothing is trained"],
    ),
    (
        "no ids",
        |s| s.write("data.jsonl", "{\"input_ids\": []}"),
        JSONL,
        &["@/data.jsonl:1: \"input_ids\" is empty; remove the record"],
    ),
    (
        "line longer than the sequences",
        |s| s.write("data.jsonl", format!("{{\"input_ids\": {:?}}}", [7; 40])),
        JSONL,
        &["@/data.jsonl:1", "40 tokens, more than --seq-len 32; raise --seq-len or shorten the line"],
    ),
    (
        "nothing to learn",
        |s| s.write("data.jsonl", "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}"),
        JSONL,
        &["no target to learn in 1 documents", "a label other than -100"],
    ),
    (
        "empty texts",
        |s| s.write("data.jsonl", "{\"text\": \"\"}"),
        JSONL,
        &["@/data.jsonl: its only record cannot be used", "\"text\" is empty"],
    ),
    (
        "too little to hold out of",
        |s| s.write("data.txt", "a"),
        "{train} --held-out 0.5",
        &["too small to hold 0.5 of it out, equal documents together; give more data or a larger share"],
    ),
    (
        "nothing to learn in what is held out",
        |s| {
            let masked = |i| format!("{{\"input_ids\": [1, {i}], \"labels\": [-100, -100]}}\n");
            s.write("data.jsonl", (0..20).map(masked).collect::<String>() + "{\"input_ids\": [1, 2, 3, 4, 5, 6]}");
        },
        "train --model @/model --data @/data.jsonl --out @/out --held-out 0.05",
        &["--held-out", "no target to learn"],
    ),
];

/// A conversation file for a model with 256 positions.
const CHATS: &str = "train --model @/model --data @/chats.jsonl --out @/out";

fn chats(scene: &Scene) {
    scene.chat_model();
    let chat = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}"#;
    scene.write("chats.jsonl", chat);
}

const CHAT: &[Row] = &[
    (
        "unknown template",
        chats,
        "train --model @/model --data @/chats.jsonl --out @/out --template lama3",
        &["--template: there is no chat template \"lama3\"", "built in: alpaca, chatml"],
    ),
    ("no template", chats, CHATS, &["@/chats.jsonl:1", "no chat template of its own", "--template NAME", "chatml"]),
    (
        "absent template file",
        chats,
        "train --model @/model --data @/chats.jsonl --out @/out --template @/my.jinja",
        &["reading the template --template @/my.jinja", "No such file"],
    ),
    (
        "damaged template",
        |s| {
            chats(s);
            s.write("my.jinja", "{% for m in messages %}\n{{ m.content }}");
        },
        "train --model @/model --data @/chats.jsonl --out @/out --template @/my.jinja",
        &["@/my.jinja", "chat template", "line 2"],
    ),
    (
        "everything masked",
        |s| {
            chats(s);
            let chat = r#"{"messages": [{"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello", "train": false}]}"#;
            s.write("chats.jsonl", chat.replace('\n', " "));
        },
        "train --model @/model --data @/chats.jsonl --out @/out --template chatml",
        &["nothing would be learnt", "1 x nothing to learn", "@/chats.jsonl:1", "\"train\" and \"weight\" decide"],
    ),
    (
        "all too long",
        chats,
        "train --model @/model --data @/chats.jsonl --out @/out --template chatml --seq-len 8",
        &["nothing would be learnt", "too long", "at most 8 are allowed", "--truncation"],
    ),
    (
        "missing data set",
        |s| {
            chats(s);
            s.write("dataset_info.json", r#"{"mine": {"file_name": "chats.jsonl"}}"#);
        },
        "train --model @/model --dataset mien --dataset-dir @ --out @/out",
        &["--dataset", "@/dataset_info.json", "no data set \"mien\"; there are mine"],
    ),
    (
        "missing registry",
        chats,
        "train --model @/model --dataset mine --dataset-dir @/nowhere --out @/out",
        &["--dataset looks for dataset_info.json in @/nowhere, where it is not", "--dataset-dir names another folder"],
    ),
    (
        "weights for some",
        |s| s.write("more.txt", "more text"),
        "train --model @/model --data @/data.txt @/more.txt:0.5 --out @/out",
        &["@/data.txt has no weight, but others have; give all or none"],
    ),
    (
        "evaluation data without a target",
        |s| s.write("eval.jsonl", "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}"),
        "{train} --eval-data @/eval.jsonl",
        &["--eval-data", "no target to learn"],
    ),
    (
        "tokens of another model",
        |s| {
            chats(s);
            s.model(|config| config["vocab_size"] = json!(100));
        },
        "train --model @/model --data @/chats.jsonl --out @/out --template chatml",
        &["@/chats.jsonl:1", "between 0 and 99, the model's vocabulary", "must come from the same model"],
    ),
];

#[test]
fn chat_data() {
    check(CHAT);
}

#[test]
fn a_preview_fails_where_training_would() {
    let previews: Vec<String> = CHAT
        .iter()
        .chain(DATA)
        .map(|row| row.2.replace("{train}", common::TRAIN).replacen("train", "data preview", 1))
        .collect();
    let rows: Vec<Row> = CHAT
        .iter()
        .chain(DATA)
        .zip(&previews)
        .filter(|(row, _)| !row.2.contains("--eval-data") && !row.2.contains("--held-out"))
        .map(|(row, args)| (row.0, row.1, args.as_str(), row.3))
        .collect();
    check(&rows);
}

#[test]
fn data() {
    check(DATA);
}
