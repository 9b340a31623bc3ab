//! `dataset_info.json`: what LLaMA-Factory's descriptions mean, and which are refused.

use megatrain_data::{DataSource, Registry, Sample, SampleOptions, Samples};
use serde_json::{Value, json};
use std::fs;
use tempfile::TempDir;

fn registry(info: &Value) -> (TempDir, Registry) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("dataset_info.json"), format!("\u{feff}{info:#}")).unwrap();
    let registry = Registry::open(dir.path()).unwrap();
    (dir, registry)
}

/// The messages, in short, of what a description makes of a file with one record; or why it is skipped.
fn read(entry: Value, record: Value) -> String {
    let mut entry = entry;
    entry["file_name"] = json!("a.json");
    let (dir, registry) = registry(&json!({"set": entry}));
    fs::write(dir.path().join("a.json"), json!([record]).to_string()).unwrap();
    let source = registry.source("set").unwrap();
    let mut samples = Samples::new(&[source], &SampleOptions::default()).unwrap();
    match samples.next().unwrap() {
        Ok(Sample::Conversation(c)) => {
            let tools = if c.tools.is_some() { "tools; " } else { "" };
            let messages = c.messages.iter().map(|m| match &m.tool_calls {
                Some(calls) => format!("{}: {calls}", m.role),
                None => format!("{}: {}", m.role, m.content),
            });
            tools.to_owned() + &messages.collect::<Vec<_>>().join("; ")
        }
        Ok(Sample::Text { text, .. }) => format!("text: {text}"),
        Ok(other) => panic!("{other:?}"),
        Err(_) => samples.skips().listed[0].reason.clone(),
    }
}

#[test]
fn alpaca_columns_are_those_that_are_listed() {
    let record =
        json!({"instruction": "i", "input": "x", "output": "o", "system": "s", "history": [["a", "b"]], "q": "w"});
    assert_eq!(read(json!({}), record.clone()), "user: i\nx; assistant: o", "history and system must be listed");
    let all = json!({"prompt": "instruction", "query": "input", "response": "output", "system": "system", "history": "history"});
    let expected = "system: s; user: a; assistant: b; user: i\nx; assistant: o";
    assert_eq!(read(json!({"columns": all, "formatting": "alpaca"}), record.clone()), expected);
    let listed = json!({"columns": {"prompt": "q", "response": "output"}, "ranking": false, "split": "train"});
    assert_eq!(read(listed, record.clone()), "user: w; assistant: o", "an unlisted query does not exist");
    let text = json!({"columns": {"prompt": "instruction"}});
    assert_eq!(read(text, record), "text: i", "pre-training: the prompt alone");
}

#[test]
fn sharegpt_columns_and_tags_are_those_that_are_listed() {
    let conversations = json!([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]);
    let record = json!({"conversations": conversations, "system": "s", "tools": "[{\"name\": \"f\"}]"});
    let plain = json!({"formatting": "sharegpt"});
    assert_eq!(read(plain.clone(), record.clone()), "user: q; assistant: a", "system and tools must be listed");
    let columns = json!({"messages": "conversations", "system": "system", "tools": "tools"});
    let listed = json!({"formatting": "sharegpt", "columns": columns});
    assert_eq!(read(listed, record), "tools; system: s; user: q; assistant: a");

    let tags = json!({
        "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"
    });
    let openai = json!({"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": tags});
    let messages = |role: &str| {
        let last = json!({"role": "assistant", "content": "a"});
        json!({"messages": [{"role": "system", "content": "s"}, {"role": role, "content": "q"}, last]})
    };
    assert_eq!(read(openai.clone(), messages("user")), "system: s; user: q; assistant: a");
    assert_eq!(read(openai, messages("tool")), "message 2: its role is \"tool\"; known are system, user, assistant");
    let own = json!({"formatting": "openai", "columns": {"messages": "messages"}});
    assert_eq!(read(own, messages("user")), "system: s; user: q; assistant: a");

    let tags = json!({"user_tag": "U", "assistant_tag": "A", "function_tag": "F", "observation_tag": "O"});
    let record = json!({"conversations": [
        {"from": "U", "value": "q"}, {"from": "F", "value": "{\"name\": \"f\"}"}, {"from": "O", "value": "r"}, {"from": "A", "value": "a"}
    ]});
    let expected = "user: q; assistant: [{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]; tool: r; assistant: a";
    assert_eq!(read(json!({"formatting": "sharegpt", "tags": tags}), record.clone()), expected);
    assert!(read(plain, record).starts_with("message 1: its role is \"U\"; known are system, human"));
}

#[test]
fn names_may_have_weights_and_must_be_known() {
    let (dir, registry) = registry(&json!({"b": {"file_name": "sub"}, "a:1": {"file_name": "a.jsonl"}}));
    fs::create_dir(dir.path().join("sub")).unwrap();
    let absent = registry.source("a:1").unwrap_err().to_string();
    assert!(
        absent.ends_with("data set \"a:1\": a.jsonl is not in this file's folder; mend its \"file_name\""),
        "{absent}"
    );
    fs::write(dir.path().join("a.jsonl"), "").unwrap();
    let DataSource { path, weight, .. } = registry.source("b:0.25").unwrap();
    assert_eq!((path, weight), (dir.path().join("sub"), Some(0.25)));
    assert_eq!(registry.source("a:1").unwrap().weight, None, "a name as it stands has no weight");
    assert_eq!(registry.names().collect::<Vec<_>>(), ["b", "a:1"]);
    let error = registry.source("c").unwrap_err().to_string();
    assert!(error.ends_with("dataset_info.json: there is no data set \"c\"; there are b, a:1"), "{error}");
}

/// Draws so many samples of a file of ten good lines and two bad by a seed: the lines of what is handed out.
fn drawing(num_samples: u64) -> impl Fn(u64) -> Vec<u64> {
    let entry = json!({"file_name": "a.jsonl", "columns": {"prompt": "text"}, "num_samples": num_samples});
    let (dir, registry) = registry(&json!({"set": entry}));
    let lines = (0..12).map(|i| if i % 6 == 0 { "{\"text\": \"\"}\n" } else { "{\"text\": \"t\"}\n" });
    fs::write(dir.path().join("a.jsonl"), lines.collect::<String>()).unwrap();
    let source = registry.source("set").unwrap();
    move |seed| {
        assert!(dir.path().exists(), "it lives as long as this");
        let options = SampleOptions { seed, ..SampleOptions::default() };
        let mut samples = Samples::new(std::slice::from_ref(&source), &options).unwrap();
        let lines: Vec<u64> = samples.by_ref().map(|sample| sample.unwrap().place().1).collect();
        let report = samples.reports().next().unwrap();
        assert_eq!((samples.skips().total(), report.skipped), (2, 2), "told once");
        assert_eq!((report.samples, report.passes), (num_samples, 1));
        assert_eq!(samples.progress().0, samples.progress().1);
        lines
    }
}

#[test]
fn as_many_samples_are_drawn_as_were_asked_for() {
    let (four, more) = (drawing(4), drawing(23));
    let good = [2, 3, 4, 5, 6, 8, 9, 10, 11, 12];
    assert_eq!(drawing(10)(1), good);
    for seed in 0..20 {
        let some = four(seed);
        assert!(some.len() == 4 && some.is_sorted() && some.iter().all(|line| good.contains(line)), "{some:?}");
        assert!(some.windows(2).all(|pair| pair[0] < pair[1]), "none twice: {some:?}");
        let more = more(seed);
        assert_eq!(more.len(), 23);
        assert!(good.iter().all(|line| [2, 3].contains(&more.iter().filter(|l| *l == line).count())), "{more:?}");
    }
    assert_eq!(four(1), four(1));
    assert_ne!(four(1), four(2));
    // Every sample is as likely as any other: of 2000 draws of 4 in 10, 800 with a standard deviation of 22.
    let mut counts = [0; 13];
    (0..2000).flat_map(&four).for_each(|line| counts[line as usize] += 1);
    assert!(good.iter().all(|&line| (690..=910).contains(&counts[line as usize])), "{counts:?}");
}

#[test]
fn descriptions_that_ask_for_more_are_refused() {
    let table = [
        (
            json!({"hf_hub_url": "x/y"}),
            "\"hf_hub_url\" names no local file; download the data and name it by \"file_name\" alone",
        ),
        (
            json!({"file_name": "a", "ms_hub_url": "x/y"}),
            "\"ms_hub_url\" names no local file; download the data and name it by \"file_name\" alone",
        ),
        (
            json!({"script_url": "x"}),
            "\"script_url\" names a Python script; let it write .jsonl and name that by \"file_name\"",
        ),
        (
            json!({"file_name": "a", "ranking": true}),
            "it is preference data (\"ranking\"), which is for DPO and reward models",
        ),
        (json!({"file_name": "a", "num_samples": 0}), "\"num_samples\" must be a whole number above 0"),
        (json!({"file_name": "a", "num_samples": "7"}), "\"num_samples\" must be a whole number above 0"),
        (json!({"file_name": "a", "num_samples": 1.5}), "\"num_samples\" must be a whole number above 0"),
        (
            json!({"file_name": "a", "subset": "en"}),
            "\"subset\" is a choice on a hub, and this is a local file; leave it out, or name the file that is meant",
        ),
        (
            json!({"file_name": "a", "split": "test"}),
            "\"split\" is not supported; make a file of the records that are meant",
        ),
        (
            json!({"file_name": "a", "fromatting": "sharegpt"}),
            "\"fromatting\" is no known key; there are file_name, formatting, columns, tags and num_samples",
        ),
        (
            json!({"file_name": "a", "formatting": "chatml"}),
            "formatting \"chatml\" is unknown; there are alpaca, sharegpt and openai",
        ),
        (json!({"file_name": 7}), "\"file_name\" must be a string, not a number"),
        (json!({"columns": {}}), "\"file_name\" is missing"),
        (json!({"file_name": "a", "columns": {"response": "o"}}), "\"columns\" has neither \"prompt\" nor \"query\""),
        (
            json!({"file_name": "a", "columns": {"prompt": "i", "system": "s"}}),
            "\"columns\" has no \"response\"; a text to learn as it stands has \"prompt\" alone",
        ),
        (
            json!({"file_name": "a", "columns": {"messages": "m"}}),
            "\"columns\" has \"messages\", which alpaca records lack; add \"formatting\": \"sharegpt\"",
        ),
        (
            json!({"file_name": "a", "columns": {"promt": "i"}}),
            "\"columns\" has the unknown key \"promt\"; known are prompt, query, response, history, messages, system, tools, images, videos, audios, chosen, rejected, kto_tag",
        ),
        (
            json!({"file_name": "a", "columns": {"prompt": "i", "response": "o", "images": "p"}}),
            "\"columns\" has \"images\", but only texts with one answer are trained",
        ),
        (
            json!({"file_name": "a", "columns": {"prompt": "i", "response": "o", "kto_tag": "k"}}),
            "\"columns\" has \"kto_tag\", but only texts with one answer are trained",
        ),
        (json!({"file_name": "a", "columns": {"prompt": ["i"]}}), "\"prompt\" must be a string, not a list"),
        (
            json!({"file_name": "a", "formatting": "sharegpt", "columns": {"system": "s"}}),
            "\"columns\" has no \"messages\"",
        ),
        (
            json!({"file_name": "a", "formatting": "sharegpt", "columns": {"messages": "m", "prompt": "p"}}),
            "\"columns\" has \"prompt\", which only alpaca records have",
        ),
        (
            json!({"file_name": "a", "formatting": "sharegpt", "tags": {"tool_tag": "t"}}),
            "\"tags\" has the unknown key \"tool_tag\"; known are role_tag, content_tag, user_tag, assistant_tag, observation_tag, function_tag, system_tag",
        ),
        (json!("a.json"), "it must be an object, not a string"),
    ];
    for (entry, problem) in table {
        let (_dir, registry) = registry(&json!({"set": entry}));
        let error = registry.source("set").unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("dataset_info.json: data set \"set\": {problem}")),
            "got      {error}\nexpected {problem}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let error = || Registry::open(dir.path()).unwrap_err().to_string();
    assert!(error().contains("dataset_info.json: reading failed"), "{}", error());
    fs::write(dir.path().join("dataset_info.json"), "[]").unwrap();
    assert!(error().ends_with("dataset_info.json: it must be an object of data sets, not a list"));
    fs::write(dir.path().join("dataset_info.json"), "{\n'a'}").unwrap();
    assert!(error().contains("dataset_info.json:2: not valid JSON: key must be a string"), "{}", error());
}
