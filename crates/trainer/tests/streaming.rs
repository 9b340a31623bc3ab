//! `--streaming`: runs of the command whose data is read while they train.

mod common;

use common::Scene;
use common::rows::{AS_IS, Row, check};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

const STREAM: &str =
    "train --model @/model --data @/data.jsonl --dtype f32 --lr-schedule constant --lr 1e-2 --streaming";

/// A scene with so many texts of 4 to 27 tokens in `data.jsonl`.
fn texts(count: usize) -> Scene {
    let scene = Scene::new();
    let line = |i: usize| format!("{{\"text\": \"{i} {}\"}}\n", "lazy dog ".repeat(i % 3));
    scene.write("data.jsonl", (0..count).map(line).collect::<String>());
    scene
}

fn weights(scene: &Scene, out: &str) -> Vec<u8> {
    scene.read(&format!("{out}/model/model.safetensors"))
}

/// The data of a run's page.
fn page(scene: &Scene, out: &str) -> Value {
    let html = String::from_utf8(scene.read(&format!("{out}/report.html"))).unwrap();
    let (_, rest) = html.split_once(r#"<script id="data" type="application/json">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Runs the binary, which has to succeed, and gives what it says.
fn said(scene: &Scene, args: &str) -> String {
    let output = scene.output(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn the_same_bits_come_twice_whatever_the_threads() {
    let scene = texts(60);
    // Several windows an epoch, and several epochs.
    let args = format!("{STREAM} --steps 40 --batch-size 3 --buffer-size 16 --seed 5");
    scene.run(&format!("{args} --out @/a")).unwrap();
    let mut one_thread = scene.command(&format!("{args} --out @/b --threads 1"));
    assert!(one_thread.env("RAYON_NUM_THREADS", "1").stderr(Stdio::null()).status().unwrap().success());
    assert!(weights(&scene, "a") == weights(&scene, "b"));
    assert_eq!(scene.metrics("a").len(), 40);
    scene.run(&format!("{args} --out @/c --seed 6").replace("--seed 5 ", "")).unwrap();
    assert!(weights(&scene, "a") != weights(&scene, "c"), "the seed shuffles");
}

#[test]
fn what_is_read_is_counted_once_and_told() {
    let scene = texts(60);
    let bad = "{\"text\": \"\"}\n{\"text\": 5}\n";
    scene.write("data.jsonl", [&scene.read("data.jsonl")[..], bad.as_bytes()].concat());
    let text = said(&scene, &format!("{STREAM} --steps 60 --batch-size 3 --buffer-size 16 --out @/out"));
    for part in [
        "data     streaming 1 file(s)",
        "windows of up to 16 documents",
        "1 file(s) (text), 60 document(s)",
        "2 records skipped",
        "data.jsonl:61",
        "read to its end",
        "% full",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(
        !text.contains("4 records skipped") && !text.contains("120 document"),
        "a later pass was counted, too:\n{text}"
    );
    let data = &page(&scene, "out")["facts"]["data"];
    assert_eq!((&data["documents"], &data["partial"]), (&60.into(), &false.into()), "{data}");
    assert_eq!(data["skipped"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum::<u64>(), 2);

    let text = said(&scene, &format!("{STREAM} --steps 3 --batch-size 3 --buffer-size 16 --out @/out"));
    assert!(text.contains("not read to its end") && !text.contains("60 document(s)"), "{text}");
    assert_eq!(page(&scene, "out")["facts"]["data"]["partial"], true);
}

#[test]
fn in_file_order_and_unpacked_the_bits_are_those_of_data_read_whole() {
    let scene = texts(70);
    scene.write("more.jsonl", (0..30).map(|i| format!("{{\"text\": \"more {i}\"}}\n")).collect::<String>());
    for (i, data) in ["@/data.jsonl", "@/data.jsonl:3 @/more.jsonl:1 --mix-strategy interleave_over"].iter().enumerate()
    {
        let args = STREAM.replace("@/data.jsonl", data) + " --steps 60 --batch-size 3 --no-shuffle --packing false";
        scene.run(&format!("{args} --buffer-size 7 --out @/streamed{i}")).unwrap();
        scene.run(&format!("{} --out @/whole{i}", args.replace("--streaming", ""))).unwrap();
        assert!(weights(&scene, &format!("streamed{i}")) == weights(&scene, &format!("whole{i}")), "{data}");
    }
    assert!(weights(&scene, "whole0") != weights(&scene, "whole1"));
}

#[test]
fn data_in_one_window_is_trained_as_without_a_stream() {
    // Fewer tokens than the first window takes.
    let scene = texts(30);
    let args = format!("{STREAM} --steps 8 --batch-size 4");
    scene.run(&format!("{args} --out @/streamed")).unwrap();
    scene.run(&format!("{} --out @/whole", args.replace("--streaming", ""))).unwrap();
    assert!(weights(&scene, "streamed") == weights(&scene, "whole"));
}

#[test]
fn chats_are_streamed_with_their_template() {
    let scene = Scene::new();
    scene.chat_model();
    let chat = |i: usize| {
        let turn = |role: &str, text: String| format!("{{\"role\": \"{role}\", \"content\": \"{text}\"}}");
        format!("{{\"messages\": [{}, {}]}}\n", turn("user", format!("{i}?")), turn("assistant", format!("{i}!")))
    };
    scene.write("data.jsonl", (0..40).map(chat).collect::<String>());
    scene.write("eval.jsonl", (90..95).map(chat).collect::<String>());
    let args = format!(
        "{STREAM} --template chatml --seq-len 128 --steps 12 --batch-size 2 --no-shuffle --packing false \
         --eval-data @/eval.jsonl --eval-steps 5 --eval-prompts hi"
    );
    scene.run(&format!("{args} --buffer-size 5 --out @/streamed")).unwrap();
    scene.run(&format!("{} --out @/whole", args.replace("--streaming", ""))).unwrap();
    assert!(weights(&scene, "streamed") == weights(&scene, "whole"));
    assert_eq!(scene.evaluations("streamed"), scene.evaluations("whole"));
    assert_eq!(scene.evaluations("streamed").len(), 4);
    let template = |out: &str| scene.read(&format!("{out}/model/chat_template.jinja"));
    assert!(template("streamed") == template("whole"));
    assert_eq!(page(&scene, "streamed")["facts"]["data"]["held_out"], 5);
}

#[test]
fn a_bad_line_in_the_middle_ends_the_run_and_saves_the_model() {
    let scene = texts(60);
    let good = String::from_utf8(scene.read("data.jsonl")).unwrap();
    let broken: String = good.lines().take(50).map(|line| format!("{line}\n")).collect();
    scene.write("data.jsonl", broken + "{\"text\": \n");
    // One sequence a step, one document a sequence: the windows before the one with line 51 are trained.
    let args = format!("{STREAM} --batch-size 1 --no-shuffle --packing false --buffer-size 4");
    let output = scene.output(&format!("{args} --steps 10000 --out @/out"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let steps = scene.metrics("out").len();
    let want = format!("the data broke off after step {steps} of 10000; the model as it was then is saved in");
    assert!(said.contains(&want) && said.contains(&scene.fill("@/data.jsonl:51: not valid JSON")), "{said}");
    assert!((10..51).contains(&steps), "{steps} steps of what came before");
    assert_eq!(page(&scene, "out")["state"], "stopped");
    // What was learnt is what a run of as many steps learns.
    scene.write("data.jsonl", good);
    scene.run(&format!("{args} --steps {steps} --out @/whole")).unwrap();
    assert!(weights(&scene, "out") == weights(&scene, "whole"));
    scene.run("generate --model @/out/model --prompt the --max-tokens 2").unwrap();
}

#[test]
fn a_bad_line_that_is_never_reached_is_no_fault() {
    let scene = texts(50);
    let good = scene.read("data.jsonl");
    scene.write("data.jsonl", [&good[..], b"{\"text\": \n"].concat());
    scene.run(&format!("{STREAM} --batch-size 1 --buffer-size 4 --steps 5 --out @/out")).unwrap();
    assert!(common::opens(&scene.path("out/model")));
}

/// A file without a target, of more than one window.
fn masked(scene: &Scene) {
    scene.write("data.jsonl", "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n".repeat(500));
}

const WRONG: &[Row] = &[
    ("no steps", AS_IS, "{train} --streaming", &["--streaming needs --steps N"]),
    ("epochs", AS_IS, "{train} --streaming --epochs 2", &["--streaming needs --steps N", "--epochs means nothing"]),
    (
        "held-out data",
        AS_IS,
        "{train} --streaming --steps 2 --held-out 0.1",
        &["--held-out chooses among all documents", "give --eval-data FILE"],
    ),
    (
        "a draw among all records",
        |s| {
            s.write("data.jsonl", "{\"instruction\": \"a\", \"output\": \"b\"}\n".repeat(9));
            s.write("dataset_info.json", r#"{"nine": {"file_name": "data.jsonl", "num_samples": 3}}"#);
        },
        "train --model @/model --dataset nine --dataset-dir @ --out @/out --template chatml --streaming --steps 2",
        &["@/data.jsonl: \"num_samples\" of dataset_info.json", "--streaming", "leave out one"],
    ),
    ("a window without a stream", AS_IS, "{train} --buffer-size 9", &["--buffer-size is the size", "--streaming"]),
    ("no room", AS_IS, "{train} --streaming --steps 2 --buffer-size 0", &["--buffer-size 0 leaves no room"]),
    ("no data", AS_IS, "train --streaming --steps 2 --out @/out", &["--streaming reads data", "--data FILES"]),
    (
        "absent",
        AS_IS,
        "train --model @/model --data @/no.txt --out @/out --streaming --steps 2",
        &["@/no.txt: no such file"],
    ),
    (
        "damaged at its beginning",
        |s| s.write("data.jsonl", "{\"text\": \n"),
        "train --model @/model --data @/data.jsonl --out @/out --streaming --steps 2",
        &["@/data.jsonl:1: not valid JSON"],
    ),
    (
        "all skipped",
        |s| s.write("data.jsonl", "{\"input_ids\": [1, 2, 3]}\n".repeat(3)),
        "train --model @/model --data @/data.jsonl --out @/out --streaming --steps 2 --seq-len 2 --truncation drop",
        &["nothing would be learnt", "3 x too long", "@/data.jsonl:1"],
    ),
    (
        "too long",
        |s| s.write("data.jsonl", format!("{{\"input_ids\": {:?}}}", [7; 40])),
        "train --model @/model --data @/data.jsonl --out @/out --streaming --steps 2",
        &["@/data.jsonl:1", "40 tokens, more than --seq-len 32"],
    ),
    (
        "nothing to learn in all of the data",
        masked,
        "train --model @/model --data @/data.jsonl --out @/out --streaming --steps 10000 --buffer-size 20",
        &["no target to learn in 500 documents"],
    ),
    (
        "nothing to learn in what was read",
        masked,
        "train --model @/model --data @/data.jsonl --out @/out --streaming --steps 2 --buffer-size 20",
        &["nothing was learnt: none of the 2 step(s) had a target"],
    ),
];

#[test]
fn what_cannot_be_streamed_is_refused() {
    check(WRONG);
}

#[test]
fn a_preview_reads_all_and_says_so() {
    let scene = texts(20);
    let text = said(&scene, "data preview --model @/model --data @/data.jsonl --streaming --json");
    assert!(text.contains("read whole") && text.contains("20 document(s)"), "{text}");
}

#[test]
fn ctrl_c_ends_a_stream_and_saves() {
    let scene = texts(60);
    let stderr = std::fs::File::create(scene.path("stderr")).unwrap();
    let mut command = scene.command(&format!("{STREAM} --steps 100000000 --buffer-size 16 --out @/out"));
    let mut child = command.stderr(stderr).stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let wait_for = |ready: &mut dyn FnMut() -> bool| {
        while !ready() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited too long");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(&mut || {
        std::fs::read_to_string(scene.path("out/metrics.jsonl")).is_ok_and(|text| text.lines().count() > 50)
    });
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    wait_for(&mut || child.try_wait().unwrap().is_some());
    let said = String::from_utf8(scene.read("stderr")).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert!(said.contains("interrupted after step") && said.contains("read to its end"), "{said}");
    assert!(common::opens(&scene.path("out/model")));
}
