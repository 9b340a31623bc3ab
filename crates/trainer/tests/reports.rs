//! What users of other trainers reported of data, losses and evaluation, as somebody meets it who uses the command. The
//! whole list, with the tests of the other crates: `docs/notes/reports_data.md`.

mod common;

use common::Scene;
use megatrain_data::chat::built_in_names;
use megatrain_data::{TextTokenizer, Tokenizer};
use serde_json::{Value, json};

/// A conversation as a line.
fn chat(turns: &[(&str, &str)]) -> String {
    let messages: Vec<_> = turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    format!("{}\n", json!({ "messages": messages }))
}

fn chat_scene() -> Scene {
    let scene = Scene::new();
    scene.chat_model();
    scene
}

/// A document of a preview: `input_ids` and `labels`.
type Tokens = (Vec<i32>, Vec<i32>);

/// The documents that a preview writes, and what it says beside them.
fn preview(scene: &Scene, args: &str) -> (Vec<Tokens>, String) {
    let output = scene.output(&format!("data preview --model @/model --json {args}"));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args}: {said}");
    let parse = |line: &str| -> Tokens {
        let line: Value = serde_json::from_str(line).unwrap();
        let ids = |key: &str| serde_json::from_value(line[key].clone()).unwrap();
        (ids("input_ids"), ids("labels"))
    };
    (String::from_utf8(output.stdout).unwrap().lines().map(parse).collect(), said.replace(&scene.fill("@"), "@"))
}

/// The text that a preview shows a person.
fn shown(scene: &Scene, args: &str) -> String {
    let output = scene.output(&format!("data preview --model @/model {args}"));
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().replace(&scene.fill("@"), "@")
}

/// The places that are learnt.
fn supervised(labels: &[i32]) -> Vec<usize> {
    (0..labels.len()).filter(|&i| labels[i] != -100).collect()
}

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"))
}

/// Whether two losses differ by no more than rounding: each token's is an f32 after some hundred operations.
fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-6
}

/// huggingface/trl#976, huggingface/transformers#23530
#[test]
fn an_end_token_that_pads_too_is_learnt_packed_unpacked_and_grouped() {
    let scene = chat_scene();
    let config = json!({"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"});
    scene.write("model/tokenizer_config.json", config.to_string());
    scene.write(
        "chats.jsonl",
        chat(&[("user", "a"), ("assistant", "b")]) + &chat(&[("user", "c"), ("assistant", "a longer answer")]),
    );
    scene.write(
        "pairs.jsonl",
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"c\", \"completion\": \"a longer answer\"}\n",
    );
    scene.write("texts.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c a longer text\"}\n");
    let end = Tokenizer::load(scene.path("model")).unwrap().eos_id().unwrap();
    for file in ["chats.jsonl", "pairs.jsonl", "texts.jsonl"] {
        let data = format!("--data @/{file} --template chatml --seq-len 64");
        let (documents, _) = preview(&scene, &data);
        assert!(documents.len() == 2 && documents[0].0.len() != documents[1].0.len(), "{file}: unequal lengths");
        for (tokens, labels) in &documents {
            // What is learnt of a chat is "answer<|im_end|>\n", of the others "answer<|im_end|>", to the last place.
            let places = supervised(labels);
            assert!(places.iter().all(|&i| labels[i] == tokens[i]), "{file}");
            assert_eq!(places, (places[0]..tokens.len()).collect::<Vec<_>>(), "{file}");
            assert!(places[0] > 0 || file == "texts.jsonl", "{file}: the prompt is not learnt");
            let after_the_end = if file == "chats.jsonl" { 2 } else { 1 };
            assert_eq!(tokens[tokens.len() - after_the_end], end, "{file}");
            assert_eq!(labels[tokens.len() - after_the_end], end, "{file}: the end is learnt");
        }
        // Both share a micro-batch with padding: nothing of it counts, and all ends do.
        let count = |(tokens, labels): &Tokens| (tokens.len(), supervised(&labels[1..]).len());
        let (tokens, targets) = documents.iter().map(count).fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
        let losses = ["--packing true", "--packing false", "--group-by-length"].map(|mode| {
            let rest = "--batch-size 2 --steps 1 --lr 0 --dtype f32";
            scene.run(&format!("train --model @/model {data} --out @/out {rest} {mode}")).unwrap();
            let metrics = scene.metrics("out");
            assert_eq!(
                (&metrics[0]["tokens"], &metrics[0]["targets"]),
                (&json!(tokens), &json!(targets)),
                "{file} {mode}"
            );
            number(&metrics[0], "loss")
        });
        assert!(near(losses[1], losses[0]) && near(losses[2], losses[0]), "{file}: {losses:?}");
    }
}

/// deepseek-ai/DeepSeek-R1#151, unslothai/unsloth#10312
#[test]
fn one_begin_token_whoever_puts_it_there() {
    for (written, added) in [(false, false), (false, true), (true, false), (true, true)] {
        for by_config in [true, false] {
            let scene = chat_scene();
            let mut config = json!({"bos_token": "<s>", "eos_token": "</s>"});
            if by_config {
                config["add_bos_token"] = json!(added);
            }
            scene.write("model/tokenizer_config.json", config.to_string());
            let begin = Tokenizer::load(scene.path("model")).unwrap().bos_id().unwrap();
            if added && !by_config {
                let mut tokenizer: Value = serde_json::from_slice(&scene.read("model/tokenizer.json")).unwrap();
                let single =
                    json!([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
                tokenizer["post_processor"] = json!({
                    "type": "TemplateProcessing", "single": single, "pair": single,
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [begin], "tokens": ["<s>"]}}
                });
                scene.write("model/tokenizer.json", tokenizer.to_string());
            }
            let start = if written { "{{ bos_token }}" } else { "" };
            let turns = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
            scene.write("model/chat_template.jinja", start.to_owned() + turns);
            scene.write("chats.jsonl", chat(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]));
            scene.write("pairs.jsonl", "{\"prompt\": \"a \", \"completion\": \"b\"}");
            scene.write("texts.jsonl", "{\"text\": \"a b\"}");
            for (file, expected) in [("chats", written || added), ("pairs", added), ("texts", added)] {
                let case = format!("{file}: template {written}, tokenizer {added} by its config {by_config}");
                let (documents, _) = preview(&scene, &format!("--data @/{file}.jsonl --seq-len 64"));
                let tokens = &documents[0].0;
                let places: Vec<_> = (0..tokens.len()).filter(|&i| tokens[i] == begin).collect();
                assert_eq!(places, if expected { vec![0] } else { vec![] }, "{case}");
            }
        }
    }
}

/// marin-community/marin#7237, QwenLM/Qwen3#1522
#[test]
fn templates_without_marks_have_the_masks_of_those_with_them() {
    let scene = chat_scene();
    let data = chat(&[("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")])
        + &chat(&[("user", "e"), ("assistant", "")])
        + &chat(&[("user", "e"), ("assistant", "f g")]);
    scene.write("chats.jsonl", data);
    let turn = "{{ '<|im_start|>' + m.role + '\\n' }}";
    let prompt = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    let said = "{{ m.content + '<|im_end|>\\n' }}";
    scene.write("stock.jinja", format!("{{% for m in messages %}}{turn}{said}{{% endfor %}}{prompt}"));
    let marked = format!(
        "{{% for m in messages %}}{turn}{{% if m.role == 'assistant' %}}{{% generation %}}{said}{{% endgeneration %}}\
         {{% else %}}{said}{{% endif %}}{{% endfor %}}{prompt}"
    );
    scene.write("marked.jinja", &marked);
    scene.write("empty.jinja", marked.replace(&format!("{said}{{% endgen"), "{% endgen"));
    let by =
        |template: &str| preview(&scene, &format!("--data @/chats.jsonl --seq-len 128 --template @/{template}.jinja"));
    let (stock, said) = by("stock");
    assert_eq!((stock.len(), &stock), (2, &by("marked").0), "{said}");
    assert!(stock.iter().all(|(_, labels)| supervised(labels).len() > 2));
    // Marks around nothing: no healthy-looking run, but an error.
    let error =
        scene.run("train --model @/model --data @/chats.jsonl --template @/empty.jinja --out @/out").unwrap_err();
    assert!(error.contains("nothing would be learnt") && error.contains("2 x nothing to learn"), "{error}");
    // Each built-in template, none of which has marks: the answers are learnt and the questions are not.
    scene.write("one.jsonl", chat(&[("user", "Sky"), ("assistant", "Blue"), ("user", "Sea"), ("assistant", "Green")]));
    for name in built_in_names() {
        let text = shown(&scene, &format!("--data @/one.jsonl --seq-len 256 --template {name}"));
        let body = text.split_once(" learnt ───\n").unwrap_or_else(|| panic!("{name}: {text}")).1;
        let learnt: String = body.split('⟦').skip(1).map(|part| part.split('⟧').next().unwrap()).collect();
        assert!(learnt.contains("Blue") && learnt.contains("Green"), "{name}: {text}");
        assert!(!learnt.contains("Sky") && !learnt.contains("Sea") && !learnt.contains("user"), "{name}: {text}");
    }
}

/// hiyouga/LlamaFactory#2962, #9600, #2381
#[test]
fn odd_repeated_and_unknown_roles_are_left_out_with_line_reason_and_totals() {
    let scene = chat_scene();
    let record = |roles: &[&str]| -> Value {
        let messages: Vec<_> = roles.iter().map(|role| json!({"from": role, "value": format!("by {role}")})).collect();
        json!({ "conversations": messages })
    };
    let records = [
        record(&["human", "gpt"]),
        record(&["user", "user", "gpt"]),
        record(&["gpt", "human", "gpt"]),
        record(&["human", "gpt", "human"]),
        record(&["hummany", "gpt"]),
        record(&["human", "gpt", "gpt"]),
        record(&["system", "human", "gpt", "human", "gpt"]),
    ];
    let lines = records.each_ref().map(|record| format!("{record}\n"));
    scene.write("roles.jsonl", lines.concat());
    scene.write("roles.json", format!("[\n{}]", lines.join(",")));
    for (file, first) in [("roles.jsonl", 1), ("roles.json", 2)] {
        let line = |i: usize| format!("@/{file}:{}", i + first);
        let skipped = [
            (1, "messages 1 and 2 are both the user's; join them"),
            (2, "message 1, the first, is the assistant's; the user must begin"),
            (3, "the last message is the user's; the assistant must have answered it"),
            (
                4,
                "message 1: its role is \"hummany\"; known are system, human, user, gpt, assistant, chatgpt, model, \
                 function_call, observation, tool",
            ),
            (5, "messages 2 and 3 are both the assistant's; join them"),
        ];
        let totals = format!(
            "5 records skipped\n           1 x no answer, first {}: {}\n           3 x turns out of order, first {}: {}\n           \
             1 x unknown role, first {}: {}\n",
            line(3),
            skipped[2].1,
            line(1),
            skipped[0].1,
            line(4),
            skipped[3].1
        );
        let data = format!("--data @/{file} --template chatml --seq-len 128");
        let (documents, said) = preview(&scene, &data);
        assert_eq!(documents.len(), 2, "the first and the last are good");
        assert!(said.contains("2 document(s)") && said.contains(&totals), "{said}\nwanted {totals}");
        for (i, reason) in skipped {
            assert!(said.contains(&format!("skipped  {}: {reason}\n", line(i))), "{said}");
        }
        assert!(shown(&scene, &data).contains(&totals));
        let output = scene.output(&format!("train --model @/model {data} --out @/out --steps 1"));
        let said = String::from_utf8_lossy(&output.stderr).replace(&scene.fill("@"), "@");
        assert!(output.status.success() && said.contains(&totals), "{said}");
    }
    // Of a file in which nothing is good, nothing is trained.
    scene.write("bad.jsonl", lines[1..6].concat());
    let error = scene.run("train --model @/model --data @/bad.jsonl --template chatml --out @/out").unwrap_err();
    let wanted = "none of its 5 records can be used; the first is @/bad.jsonl:1: messages 1 and 2 are both the user's";
    assert!(error.contains(&scene.fill(wanted)), "{error}");
}

/// axolotl-ai-cloud/axolotl#879, hiyouga/LlamaFactory#2536
#[test]
fn absent_null_and_empty_inputs_are_the_same_and_a_null_output_is_left_out() {
    let scene = chat_scene();
    let records = [
        r#"{"instruction": "Add 1 and 2.", "output": "3"}"#,
        r#"{"instruction": "Add 1 and 2.", "input": null, "output": "3"}"#,
        r#"{"instruction": "Add 1 and 2.", "input": "", "output": "3"}"#,
        r#"{"instruction": "Add 1 and 2.", "input": "", "output": null}"#,
    ];
    scene.write("lines.jsonl", records.join("\n"));
    scene.write("array.json", format!("[{}]", records.join(",\n")));
    let mut files = vec![("lines.jsonl", 3), ("array.json", 3)];
    if cfg!(feature = "arrow") {
        for name in ["alpaca.parquet", "alpaca_without_input.parquet"] {
            let golden =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/golden/tables").join(name);
            scene.write(name, std::fs::read(golden).unwrap());
        }
        files.extend([("alpaca.parquet", 2), ("alpaca_without_input.parquet", 2)]);
    }
    let mut all = Vec::new();
    for (file, good) in files {
        let (documents, said) = preview(&scene, &format!("--data @/{file} --template chatml --seq-len 64"));
        assert_eq!(documents.len(), good, "{file}");
        assert!(said.contains(&format!("skipped  @/{file}:{}: \"output\" is null", good + 1)), "{said}");
        assert!(said.contains("1 record skipped\n           1 x field null"), "{said}");
        all.extend(documents);
    }
    all.dedup();
    assert_eq!(all.len(), 1, "the same tokens and labels from every file");
    scene.write("null.jsonl", records[3]);
    let error = scene.run("train --model @/model --data @/null.jsonl --template chatml --out @/out").unwrap_err();
    assert!(
        error.ends_with(&scene.fill("its only record cannot be used: @/null.jsonl:1: \"output\" is null")),
        "{error}"
    );
}

/// meta-pytorch/torchtune#892, axolotl-ai-cloud/axolotl#3796
#[test]
fn a_packed_document_changes_nothing_for_its_neighbour() {
    let scene = Scene::new();
    let trained = |out: &str, first: &[i32]| {
        let masked = vec![-100; first.len()];
        let one = json!({"input_ids": first, "labels": masked});
        let two = json!({"input_ids": [7, 3, 9, 7, 2, 5]});
        for (order, lines) in [("before", [&one, &two]), ("behind", [&two, &one])] {
            scene.write("data.jsonl", format!("{}\n{}\n", lines[0], lines[1]));
            let rest = "--packing true --no-shuffle --dtype f32 --steps 3 --lr 1e-2 --lr-schedule constant";
            let output =
                scene.output(&format!("train --model @/model --data @/data.jsonl --out @/{out}-{order} {rest}"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("2 document(s) in 1 sequence(s)"), "{said}");
        }
    };
    trained("a", &[1, 2, 3, 4]);
    trained("b", &[9, 200, 7, 7]);
    for order in ["before", "behind"] {
        let (a, b) = (scene.metrics(&format!("a-{order}")), scene.metrics(&format!("b-{order}")));
        for (a, b) in a.iter().zip(&b) {
            // Five targets: none across the border.
            assert_eq!((&a["targets"], &a["tokens"]), (&json!(5), &json!(10)));
            assert_eq!((&a["loss"], &a["grad_norm"]), (&b["loss"], &b["grad_norm"]), "{order}");
        }
        let weights = |run: &str| scene.read(&format!("{run}-{order}/model/model.safetensors"));
        assert!(weights("a") == weights("b"), "{order}: the other document changed what was learnt");
    }
    // Alone it has the same loss, so positions begin anew.
    scene.write("alone.jsonl", json!({"input_ids": [7, 3, 9, 7, 2, 5]}).to_string());
    scene.run("train --model @/model --data @/alone.jsonl --out @/alone --dtype f32 --steps 1 --lr 0").unwrap();
    let alone = number(&scene.metrics("alone")[0], "loss");
    for order in ["before", "behind"] {
        let packed = number(&scene.metrics(&format!("a-{order}"))[0], "loss");
        assert!(near(packed, alone), "{order}: {packed} and {alone}");
    }
}

/// huggingface/trl#2175, huggingface/transformers#24725, huggingface/transformers#35204
#[test]
fn unequal_micro_batches_log_the_mean_over_tokens() {
    let scene = Scene::new();
    scene.write("data.jsonl", "{\"input_ids\": [3, 9]}\n{\"input_ids\": [4, 1, 5, 9]}\n");
    let logged = |sizes: &str| {
        let rest = "--no-shuffle --dtype f32 --lr 0 --epochs 1";
        scene.run(&format!("train --model @/model --data @/data.jsonl --out @/out {rest} {sizes}")).unwrap();
        scene.metrics("out")
    };
    let apart = logged("--batch-size 1");
    let (short, long) = (number(&apart[0], "loss"), number(&apart[1], "loss"));
    assert_eq!((&apart[0]["targets"], &apart[1]["targets"]), (&json!(1), &json!(3)));
    assert!((short / long - 1.0).abs() > 1e-3, "the case cannot tell a mean of means");
    let [one, two] = ["--batch-size 2 --micro-batch-size 2", "--batch-size 2 --micro-batch-size 1"].map(|sizes| {
        let metrics = logged(sizes);
        assert_eq!((metrics.len(), &metrics[0]["targets"]), (1, &json!(4)));
        assert!(near(number(&metrics[0], "loss"), (short + 3.0 * long) / 4.0), "{sizes}");
        number(&metrics[0], "grad_norm")
    });
    assert!((one / two - 1.0).abs() < 1e-5, "{one} and {two}");
}

/// huggingface/transformers#47394, huggingface/transformers#35066: what is shifted twice learns the token after the next.
#[test]
fn labels_are_shifted_once() {
    let scene = Scene::new();
    let row = |i: usize, labels: bool| {
        let ids: Vec<usize> = (0..12).map(|t| 97 + (i * 5 + t) % 26).collect();
        if labels { json!({"input_ids": ids, "labels": ids}) } else { json!({"input_ids": ids}) }
    };
    for labels in [false, true] {
        let rows = (0..64).map(|i| format!("{}\n", row(i, labels)));
        scene.write("data.jsonl", rows.collect::<String>());
        let rest = "--dtype f32 --batch-size 8 --lr 1e-2 --lr-schedule constant --epochs 12";
        scene.run(&format!("train --model @/model --data @/data.jsonl --out @/out {rest}")).unwrap();
        assert_eq!(scene.metrics("out")[0]["targets"], 8 * 11, "no target across rows");
        let output = scene.output("generate --model @/out/model --prompt k --max-tokens 8 --dtype f32");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "klmnopqrs\n");
    }
    // Whoever has shifted them is told, before a run that would learn the wrong thing.
    let shifted = json!({"input_ids": [97, 98, 99], "labels": [98, 99, -100]});
    scene.write("data.jsonl", shifted.to_string());
    let error = scene.run("train --model @/model --data @/data.jsonl --out @/out2").unwrap_err();
    assert!(error.contains(&scene.fill("@/data.jsonl:1: \"labels\" are shifted")), "{error}");
}

/// huggingface/transformers#39241, karpathy/llm.c#710
#[test]
fn an_evaluation_is_the_mean_over_all_targets_whatever_the_batch() {
    let scene = chat_scene();
    let rows: Vec<String> = (0..7)
        .map(|i| {
            let ids: Vec<usize> = (0..3 + 4 * i).map(|t| (i * 11 + t * 7) % 300).collect();
            let labels: Vec<i64> =
                ids.iter().enumerate().map(|(t, &id)| if t <= i { -100 } else { id as i64 }).collect();
            format!("{}\n", json!({"input_ids": ids, "labels": labels}))
        })
        .collect();
    scene.write("ids.jsonl", rows.concat());
    let chats = (0..7).map(|i| chat(&[("user", &"why ".repeat(1 + i)), ("assistant", &"so ".repeat(1 + 3 * i))]));
    scene.write("chats.jsonl", chats.collect::<String>());
    let evaluated = |file: &str, size: usize| {
        let rest = "--template chatml --seq-len 40 --dtype f32 --steps 1 --lr 0";
        let data = format!("--data @/ids.jsonl --eval-data @/{file}");
        scene.run(&format!("train --model @/model {data} --out @/out {rest} --batch-size {size}")).unwrap();
        scene.evaluations("out")[0].1
    };
    for file in ["ids.jsonl", "chats.jsonl"] {
        let losses = [1, 3, 8].map(|size| evaluated(file, size));
        assert!(near(losses[1], losses[0]) && near(losses[2], losses[0]), "{file}: {losses:?}");
    }
    let (mut sum, mut targets) = (0.0, 0);
    for (i, row) in rows.iter().enumerate() {
        let count = (3 + 4 * i) - (i + 1);
        scene.write("one.jsonl", row);
        sum += evaluated("one.jsonl", 1) * count as f64;
        targets += count;
    }
    let (whole, mean) = (evaluated("ids.jsonl", 3), sum / targets as f64);
    assert!(near(whole, mean), "{whole} and {mean}");
}
