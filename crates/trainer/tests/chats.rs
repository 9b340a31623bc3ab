//! Conversations through the command: what is learnt of them, evaluation, and which model is kept.

mod common;

use common::Scene;
use serde_json::{Value, json};
use std::path::Path;

/// What transformers and this crate are both given, and what transformers makes of it (`golden/make_preview.py`).
fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

fn scene() -> Scene {
    let scene = Scene::new();
    scene.chat_model();
    scene.write("chats.jsonl", golden("chats.jsonl"));
    let record = |(i, answer): (usize, &str)| {
        let input = if i % 2 == 0 { "" } else { "in words" };
        json!({ "instruction": format!("Write the number {i}"), "input": input, "output": answer })
    };
    let answers = ["zero", "one", "two", "three", "four", "five"];
    scene.write("alpaca.json", Value::from_iter(answers.into_iter().enumerate().map(record)).to_string());
    scene
}

fn parse(bytes: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(bytes).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn preview(scene: &Scene, args: &str) -> (Vec<u8>, String) {
    let output = scene.output(&format!("data preview --model @/model --template smollm2 {args}"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    (output.stdout, said)
}

#[test]
fn a_preview_in_json_is_what_transformers_gives() {
    let scene = scene();
    let (lines, said) = preview(&scene, "--data @/chats.jsonl --seq-len 256 --json");
    assert_eq!(parse(&lines), parse(&golden("preview.jsonl")));
    let tokens: usize = parse(&lines).iter().map(|line| line["input_ids"].as_array().unwrap().len()).sum();
    assert!(said.contains("4 document(s)") && said.contains(&format!("{tokens} tokens")), "{said}");
    assert!(said.contains("1 special token(s) spelled inside messages"), "{said}");
    let (two, _) = preview(&scene, "--data @/chats.jsonl --seq-len 256 --json --limit 2");
    assert_eq!(parse(&two), parse(&lines)[..2]);
    // The order of the file, packed and shuffled or not.
    let (other, _) = preview(&scene, "--data @/chats.jsonl --seq-len 256 --json --packing false --seed 7");
    assert_eq!(other, lines);
}

#[test]
fn a_preview_marks_what_is_learnt_and_where_documents_end() {
    let scene = scene();
    let (text, _) = preview(&scene, "--data @/chats.jsonl --seq-len 256 --no-shuffle --limit 1");
    let text = String::from_utf8(text).unwrap();
    let wanted = [
        "chats.jsonl:1: 98 tokens",
        "<|im_start|>assistant\n⟦Paris.<|im_end|>\n⟧",
        "chats.jsonl:2: ",
        "full",
        "sequence 1 of ",
        "median",
    ];
    assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
    assert!(!text.contains('\x1b'), "colour though nobody looks at it");
    // What is left out is listed with line and reason.
    let (text, _) = preview(&scene, "--data @/chats.jsonl --seq-len 100");
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("1 x too long") && text.contains("chats.jsonl:3: too long: "), "{text}");
}

#[test]
fn choices_of_masks_lengths_and_data_sets_are_obeyed() {
    let scene = scene();
    let learnt = |args: &str| -> Vec<(usize, usize)> {
        let count = |line: &Value| {
            let labels = line["labels"].as_array().unwrap();
            (labels.len(), labels.iter().filter(|label| **label != -100).count())
        };
        parse(&preview(&scene, &format!("--json {args}")).0).iter().map(count).collect()
    };
    let all = learnt("--data @/chats.jsonl --seq-len 256");
    let last = learnt("--data @/chats.jsonl --seq-len 256 --train-on last-turn");
    let everything = learnt("--data @/chats.jsonl --seq-len 256 --train-on everything");
    assert!(last[1].1 < all[1].1 && last[0] == all[0]);
    assert!(everything.iter().all(|(tokens, learnt)| tokens == learnt));
    // Too long ones: left out, or cut at either end, never longer than allowed.
    let longest = all.iter().map(|&(tokens, _)| tokens).max().unwrap();
    let cut = |how: &str| learnt(&format!("--data @/chats.jsonl --seq-len {} --truncation {how}", longest - 1));
    assert_eq!(cut("drop").len(), 3);
    for how in ["left", "right"] {
        assert!(
            cut(how).len() == 4 && cut(how).iter().all(|&(tokens, learnt)| tokens < longest && learnt > 0),
            "{how}"
        );
    }
    // By name, from a registry.
    scene.write("dataset_info.json", r#"{"six": {"file_name": "alpaca.json"}}"#);
    let six = learnt("--data @/alpaca.json --seq-len 256");
    assert_eq!(learnt("--dataset six --dataset-dir @ --seq-len 256"), six);
    // Mixed by weight.
    let mixed = "--data @/alpaca.json:3 @/chats.jsonl:1 --mix-strategy interleave_once --seq-len 256";
    let (mixed, joined) = (learnt(mixed), learnt("--data @/alpaca.json @/chats.jsonl --seq-len 256"));
    let sorted = |mut list: Vec<_>| {
        list.sort();
        list
    };
    assert!(mixed != joined && sorted(mixed) == sorted(joined));
}

/// Metrics without what depends on the clock.
fn timeless(mut lines: Vec<Value>) -> Vec<Value> {
    for line in &mut lines {
        for key in ["seconds", "tokens_per_s", "model_tflops"] {
            line.as_object_mut().unwrap().remove(key);
        }
    }
    lines
}

#[test]
fn conversations_train_as_their_tokens_and_labels_do() {
    let scene = scene();
    let (lines, _) = preview(&scene, "--data @/alpaca.json --seq-len 128 --json");
    scene.write("tokens.jsonl", &lines);
    let count = |key: &str| -> u64 {
        let ids = parse(&lines).into_iter().flat_map(|line| line[key].as_array().unwrap().clone());
        ids.filter(|id| *id != -100).count() as u64
    };
    for packing in ["--packing false", "--packing true --batch-size 1", "--group-by-length"] {
        let rest = format!("--dtype f32 --seq-len 128 --batch-size 3 --lr 1e-2 --seed 3 --epochs 1 {packing}");
        let rest = if packing.contains("batch") { rest.replace("--batch-size 3 ", "") } else { rest };
        let chat = format!("train --model @/model --data @/alpaca.json --template smollm2 --out @/out {rest}");
        scene.run(&chat).unwrap();
        scene.run(&format!("train --model @/model --data @/tokens.jsonl --out @/out2 {rest}")).unwrap();
        let metrics = scene.metrics("out");
        let sum = |key: &str| metrics.iter().map(|line| line[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("tokens"), sum("targets")), (count("input_ids"), count("labels")), "{packing}");
        assert_eq!(timeless(metrics.clone()), timeless(scene.metrics("out2")), "{packing}");
        assert!(scene.read("out/model/model.safetensors") == scene.read("out2/model/model.safetensors"));
        // The model carries the template that was named; without a named one it keeps what it had.
        let template = scene.read("out/model/chat_template.jinja");
        assert!(String::from_utf8(template).unwrap().contains("named SmolLM"));
        assert!(!scene.path("out2/model/chat_template.jinja").exists());
        scene
            .run(
                &chat
                    .replace("@/model --data", "@/out/model --data")
                    .replace(" --template smollm2", "")
                    .replace("@/out ", "@/out3 "),
            )
            .unwrap();
        if !packing.contains("true") {
            assert_eq!(metrics.len(), 2, "six records, three a step");
        }
    }
}

/// A short run that evaluates, on text.
const EVALUATED: &str = "train --model @/model --data @/data.txt --eval-data @/eval.txt --dtype f32 --seq-len 16";

fn evaluated() -> Scene {
    let scene = Scene::new();
    scene.write(
        "eval.txt",
        "the lazy dog jumps over the quick brown fox, and so on until the end of the text\n".repeat(3),
    );
    scene
}

#[test]
fn the_evaluation_does_not_depend_on_batches() {
    let scene = evaluated();
    let losses = [1, 3, 8].map(|size| {
        scene.run(&format!("{EVALUATED} --out @/out{size} --batch-size {size} --steps 1 --lr 0")).unwrap();
        scene.evaluations(&format!("out{size}"))
    });
    for evaluations in &losses {
        assert_eq!(evaluations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(evaluations[0].1, evaluations[1].1, "a learning rate of 0 changes nothing");
        // Each token's loss is an f32 of some rounding steps; their mean has no more than a few of its own.
        assert!((evaluations[0].1 / losses[0][0].1 - 1.0).abs() < 1e-6, "{losses:?}");
    }
}

#[test]
fn the_run_stops_when_the_evaluation_no_longer_gets_better() {
    let scene = evaluated();
    let stops = "--steps 50 --lr 0 --eval-steps 2 --early-stopping-patience 2";
    let output = scene.output(&format!("{EVALUATED} --out @/out {stops}"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("stopped after step 6: 2 evaluation(s)"), "{said}");
    assert_eq!(scene.metrics("out").len(), 6);
    let steps: Vec<_> = scene.evaluations("out").iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 2, 4, 6]);
    assert!(common::opens(&scene.path("out/model")));
}

#[test]
fn the_best_model_is_kept() {
    let scene = evaluated();
    // Far too high a rate: what was learnt is soon lost.
    let rest = "--lr 1e-1 --lr-schedule constant --batch-size 2 --eval-steps 1";
    scene.run(&format!("{EVALUATED} --out @/out --steps 11 {rest}")).unwrap();
    let evaluations = scene.evaluations("out");
    let steps: Vec<_> = evaluations.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, (0..=11).collect::<Vec<_>>());
    let best = evaluations[1..].iter().copied().reduce(|a, b| if b.1 < a.1 { b } else { a }).unwrap();
    assert!((1..11).contains(&best.0), "the test wants a best step before the last: {evaluations:?}");
    // The same run up to that step ends with these weights.
    scene.run(&format!("{EVALUATED} --out @/out2 --steps {} {rest} --save-best false", best.0)).unwrap();
    assert!(scene.read("out/best-model/model.safetensors") == scene.read("out2/model/model.safetensors"));
    assert!(scene.read("out/model/model.safetensors") != scene.read("out2/model/model.safetensors"));
    assert!(!scene.path("out2/best-model").exists());
}

/// What an earlier run left under the same name is not taken for this run's best, whether this run has one or not.
#[test]
fn an_earlier_runs_best_model_is_put_aside() {
    let scene = evaluated();
    let run = |rest: &str| {
        let output = scene.output(&format!("{EVALUATED} --out @/out --steps 2 {rest}"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    };
    let weights = |name: &str| scene.read(&format!("out/{name}/model.safetensors"));
    assert!(!run("--eval-steps 1 --seed 1").contains("earlier run"));
    let first = weights("best-model");
    // A run that keeps none.
    let said = run("--lr 1e-2");
    let wanted = "out/best-model is of an earlier run; it is @/out/best-model-earlier now";
    assert!(said.contains(&scene.fill(&format!("note     @/{wanted}"))), "{said}");
    assert!(!scene.path("out/best-model").exists() && weights("best-model-earlier") == first);
    // One that keeps its own, twice: the last but one is kept.
    run("--eval-steps 1 --lr 1e-2");
    let second = weights("best-model");
    assert!(second != first && weights("best-model-earlier") == first);
    run("--eval-steps 1 --lr 1e-3");
    assert!(weights("best-model") != second && weights("best-model-earlier") == second);
    // A run that fails before it begins leaves all as it was.
    let before = weights("best-model");
    scene.run(&format!("{EVALUATED} --out @/out --device-memory 1KiB")).unwrap_err();
    assert!(weights("best-model") == before && weights("best-model-earlier") == second);
    // What it would put aside cannot be what it trains, nor what is no model.
    for name in ["best-model", "best-model-earlier"] {
        let args = EVALUATED.replace("@/model", &format!("@/out/{name}"));
        let error = scene.run(&format!("{args} --out @/out")).unwrap_err();
        assert!(
            error.contains("is where this run puts its own best model") && error.contains("choose another --out"),
            "{error}"
        );
    }
    scene.write("mine/best-model-earlier/thesis.txt", "ten years of work");
    let error = scene.run(&format!("{EVALUATED} --out @/mine")).unwrap_err();
    assert!(error.contains("will not be replaced; choose another place"), "{error}");
}

/// `--eval-dataset`, the name of LLaMA-Factory, is `--eval-data` by names of the registry.
#[test]
fn data_sets_to_evaluate_on_may_be_named() {
    let scene = evaluated();
    let info = r#"{"held": {"file_name": "eval.txt", "columns": {"prompt": "text"}}, "more": {"file_name": "more.jsonl", "columns": {"prompt": "text"}}}"#;
    scene.write("dataset_info.json", info);
    scene.write("more.jsonl", "{\"text\": \"the quick brown fox\"}\n");
    let train = "train --model @/model --data @/data.txt --dtype f32 --seq-len 16 --steps 1 --lr 0";
    let loss = |args: &str| {
        scene.run(&format!("{train} --out @/out {args}")).unwrap();
        scene.evaluations("out")[0].1
    };
    let by_path = loss("--eval-data @/eval.txt @/more.jsonl");
    assert_eq!(by_path, loss("--eval-dataset held,more --dataset-dir @"));
    assert_eq!(by_path, loss("--eval-data @/eval.txt --eval-dataset more --dataset-dir @"));
    assert_ne!(by_path, loss("--eval-dataset held --dataset-dir @"));
    scene.write("run.toml", scene.fill("eval_dataset = \"held, more\"\ndataset_dir = \"@\""));
    assert_eq!(by_path, loss("--config @/run.toml"));
    for (args, wanted) in [
        ("--eval-dataset held:2 --dataset-dir @", "--eval-dataset @/eval.txt: what is evaluated on has no weights"),
        (
            "--eval-dataset hold --dataset-dir @",
            "--eval-dataset: @/dataset_info.json: there is no data set \"hold\"; there are held, more",
        ),
        (
            "--eval-dataset held --dataset-dir @/model",
            "--eval-dataset looks for dataset_info.json in @/model, where it is not",
        ),
        ("--eval-dataset held --dataset-dir @ --held-out 0.1", "'--eval-dataset <NAME>...'"),
    ] {
        let error = scene.run(&format!("{train} --out @/out {args}")).unwrap_err();
        assert!(error.contains(&scene.fill(wanted)), "{error}\nwanted {wanted}");
    }
}

/// `--chat-template-kwargs`, the name of TRL and vLLM.
#[test]
fn templates_get_the_variables_that_are_given() {
    let scene = scene();
    scene.write(
        "one.jsonl",
        r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}"#,
    );
    let template = "{{ greeting | default('none') }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}\
                    {% if add_generation_prompt %}<|im_start|>{{ '!' if thinks else '?' }}{% endif %}";
    scene.write("my.jinja", template);
    scene.write("run.toml", "chat_template_kwargs = { greeting = \"none\", thinks = true }");
    let show = |args: &str| {
        let output =
            scene.output(&format!("data preview --model @/model --data @/one.jsonl --template @/my.jinja {args}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(show("").contains("none<|im_start|>Hi"));
    assert!(show(r#"--chat-template-kwargs {"greeting":"Good","thinks":false}"#).contains("Good<|im_start|>Hi"));
    assert_eq!(show("--config @/run.toml"), show(r#"--chat-template-kwargs {"thinks":true}"#));
    // Prompts see them, too.
    let train =
        "train --model @/model --data @/one.jsonl --template @/my.jinja --out @/out --steps 1 --lr 0 --dtype f32";
    let answer = |args: &str| {
        scene.run(&format!("{train} --eval-prompts Hi {args}")).unwrap();
        scene.lines("out/metrics.jsonl").iter().find(|line| line.get("sample").is_some()).unwrap()["sample"].clone()
    };
    let given = r#"--chat-template-kwargs {"thinks":true,"greeting":"abcdefgh"}"#;
    assert_ne!(answer(given), answer(""), "the model answers another prompt");
    for (args, wanted) in [
        (
            "--chat-template-kwargs [1]",
            "`[1]` is JSON, but no object; write for example '{\"enable_thinking\": false}'",
        ),
        ("--chat-template-kwargs thinks=true", "`thinks=true` is no JSON"),
        (r#"--chat-template-kwargs {"messages":[]}"#, "messages"),
    ] {
        let error = scene.run(&format!("{train} {args}")).unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn prompts_are_answered_at_each_evaluation() {
    let scene = Scene::new();
    let asks = "--eval-prompts the quick --eval-steps 2 --steps 3 --lr 1e-2 --dtype f32";
    scene.run(&format!("{{train}} {asks}")).unwrap();
    let lines = scene.lines("out/metrics.jsonl");
    let samples: Vec<_> = lines.iter().filter(|line| line.get("sample").is_some()).collect();
    let asked: Vec<_> = samples.iter().map(|s| (s["step"].as_u64().unwrap(), s["prompt"].as_str().unwrap())).collect();
    assert_eq!(asked, [(0, "the"), (0, "quick"), (2, "the"), (2, "quick"), (3, "the"), (3, "quick")]);
    let output = scene.output("generate --model @/out/model --prompt the --max-tokens 29 --dtype f32");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.strip_suffix('\n').unwrap(), format!("the{}", samples[4]["sample"].as_str().unwrap()));
}

#[test]
fn a_model_asked_in_chat_answers_as_at_an_evaluation() {
    let scene = scene();
    let train = "train --model @/model --data @/alpaca.json --template smollm2 --seq-len 128 --steps 1 --dtype f32";
    scene.run(&format!("{train} --held-out 0.3 --eval-prompts hello --out @/out")).unwrap();
    let lines = scene.lines("out/metrics.jsonl");
    let sample = lines.iter().rfind(|line| line.get("sample").is_some()).unwrap()["sample"].as_str().unwrap();
    let ask = "generate --prompt hello --chat --max-tokens 64 --dtype f32";
    let output = scene.output(&format!("{ask} --model @/out/model"));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        !sample.is_empty() && said.trim_end_matches('\n').starts_with(sample.trim_end_matches('\n')),
        "{said:?}, {sample:?}"
    );
    let error = scene.run(&format!("{ask} --model @/model")).unwrap_err();
    assert!(error.contains("--chat with the model in") && error.contains("no chat template"), "{error}");
}

/// Element type and size of a model's weights, and what its config.json calls the type.
fn saved(scene: &Scene, model: &str) -> (Vec<String>, Value) {
    let bytes = scene.read(&format!("{model}/model.safetensors"));
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..end]).unwrap();
    let mut types: Vec<_> = header.values().filter_map(|t| Some(t["dtype"].as_str()?.to_owned())).collect();
    types.dedup();
    let config: Value = serde_json::from_slice(&scene.read(&format!("{model}/config.json"))).unwrap();
    (types, config["torch_dtype"].clone())
}

#[test]
fn the_saved_weights_may_be_of_another_type_and_rounding_is_told() {
    let scene = scene();
    let rest = "--data @/alpaca.json --template smollm2 --seq-len 128 --steps 2 --lr 1e-4 --warmup 0 --dtype f32";
    let train = |args: &str| {
        let output = scene.output(&format!("train {rest} {args}"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said.contains("computed in f32 and saved in bfloat16")
    };
    assert!(train("--model @/model --out @/bf16 --save-dtype bf16"));
    assert_eq!(saved(&scene, "bf16/model"), (vec!["BF16".to_owned()], json!("bfloat16")));
    assert!(train("--model @/bf16/model --out @/same --held-out 0.3"), "as the model's files are");
    assert_eq!(saved(&scene, "same/model"), (vec!["BF16".to_owned()], json!("bfloat16")));
    assert!(!train("--model @/bf16/model --out @/f32 --save-dtype f32 --held-out 0.3"));
    assert_eq!(saved(&scene, "f32/model"), (vec!["F32".to_owned()], json!("float32")));
    // The loss after training is that of what was saved: exactly in f32, and not so after rounding.
    let losses = |out: &str| -> Vec<f64> {
        scene.lines(&format!("{out}/metrics.jsonl")).iter().filter_map(|line| line["eval_loss"].as_f64()).collect()
    };
    let after = |out: &str| {
        train(&format!("--model @/{out}/model --out @/again --held-out 0.3 --save-dtype f32"));
        losses("again")[0]
    };
    assert_eq!(after("f32"), *losses("f32").last().unwrap());
    assert_ne!(after("same"), *losses("same").last().unwrap());
}

#[test]
fn files_of_a_folder_that_are_no_data_are_named() {
    let scene = scene();
    scene.write("d/chats.jsonl", golden("chats.jsonl"));
    scene.write("d/notes/a.md", "# A");
    let (_, said) = preview(&scene, "--data @/d --seq-len 256");
    assert!(said.contains("1 file(s) passed over, data files are .txt") && said.contains("d/notes/a.md"), "{said}");
    let (_, said) = preview(&scene, "--data @/chats.jsonl --seq-len 256");
    assert!(!said.contains("passed over"), "{said}");
}
