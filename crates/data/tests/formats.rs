//! Formats of records: what each becomes as a sample, and what is said about those that are no good.

use megatrain_data::{
    Conversation, DataSource, Format, Message, Role, Sample, SampleOptions, Samples, Skips, SourceReport,
};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;

/// What comes of some files of one directory, read in order of their names.
struct Read {
    samples: Vec<Sample>,
    skips: Skips,
    reports: Vec<SourceReport>,
}

impl Read {
    fn conversations(&self) -> Vec<&Conversation> {
        fn one(sample: &Sample) -> &Conversation {
            match sample {
                Sample::Conversation(conversation) => conversation,
                other => panic!("no conversation: {other:?}"),
            }
        }
        self.samples.iter().map(one).collect()
    }

    fn skipped(&self) -> Vec<(u64, &str)> {
        self.skips.listed.iter().map(|skip| (skip.line, skip.reason.as_str())).collect()
    }
}

fn try_read(files: &[(&str, &[u8])], options: &SampleOptions) -> Result<Read, String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let prefix = format!("{}/", dir.path().display());
    let clean = |e: megatrain_data::Error| e.to_string().replace(&prefix, "");
    let mut samples = Samples::new(&[DataSource::new(dir.path())], options).map_err(clean)?;
    let read: Result<Vec<Sample>, _> = samples.by_ref().collect();
    Ok(Read {
        samples: read.map_err(clean)?,
        skips: samples.skips().clone(),
        reports: samples.reports().cloned().collect(),
    })
}

fn read(name: &str, content: &str) -> Read {
    try_read(&[(name, content.as_bytes())], &SampleOptions::default()).unwrap()
}

/// Reads lines of JSON.
fn lines(lines: &[Value]) -> Read {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    read("a.jsonl", &text)
}

/// A conversation in short: `role: content` of each message.
fn short(conversation: &Conversation) -> Vec<String> {
    conversation.messages.iter().map(|message| format!("{}: {}", message.role, message.content)).collect()
}

/// The only conversation of a record.
fn one(record: Value) -> Conversation {
    let read = lines(&[record]);
    let conversations = read.conversations();
    assert_eq!(conversations.len(), 1);
    conversations[0].clone()
}

#[test]
fn alpaca_records_are_an_instruction_an_input_and_an_output() {
    let read = lines(&[
        json!({"instruction": "Add.", "input": "1 2", "output": "3"}),
        json!({"instruction": "Add.", "input": "", "output": "3"}),
        json!({"instruction": "Add.", "input": null, "output": "3"}),
        json!({"instruction": "Add.", "output": "3", "text": "rendered: it does not count"}),
        json!({"instruction": "", "input": "1 2", "output": "3"}),
        json!({"instruction": "c", "output": "d", "history": [["a", "b"]], "system": "Be brief."}),
        json!({"instruction": "c", "output": "d", "history": null, "system": "", "tools": "[]"}),
    ]);
    let short: Vec<_> = read.conversations().into_iter().map(short).collect();
    assert_eq!(short[0], ["user: Add.\n1 2", "assistant: 3"]);
    assert_eq!(short[1], ["user: Add.", "assistant: 3"]);
    assert_eq!((&short[2], &short[3]), (&short[1], &short[1]), "null, absent and empty are the same");
    assert_eq!(short[4], ["user: 1 2", "assistant: 3"]);
    assert_eq!(short[5], ["system: Be brief.", "user: a", "assistant: b", "user: c", "assistant: d"]);
    assert_eq!(short[6], ["user: c", "assistant: d"]);
    assert_eq!(read.conversations().iter().map(|c| c.line).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(read.conversations()[6].tools, None);
    assert_eq!((read.reports[0].format.as_deref(), read.skips.total()), (Some("alpaca"), 0));
}

#[test]
fn sharegpt_records_have_tools_calls_and_observations() {
    let tool = json!({"name": "f", "description": "d", "parameters": {"type": "object", "b": 1, "a": 2.0}});
    let conversation = one(json!({
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"z\": 1, \"y\": \"\"}}"},
            {"from": "observation", "value": "{\"r\": 1}"},
            {"from": "gpt", "value": "a"}
        ],
        "system": "s",
        "tools": json!([tool]).to_string(),
    }));
    assert_eq!(short(&conversation), ["system: s", "user: q", "assistant: ", "tool: {\"r\": 1}", "assistant: a"]);
    let calls = json!([{"type": "function", "function": {"name": "f", "arguments": {"z": 1, "y": ""}}}]);
    // Compared as text: the order of keys is the file's.
    assert_eq!(conversation.messages[2].tool_calls.as_ref().unwrap().to_string(), calls.to_string());
    let tools = json!([{"type": "function", "function": tool}]);
    assert_eq!(conversation.tools.as_ref().unwrap().to_string(), tools.to_string());
}

#[test]
fn a_system_message_of_the_list_comes_before_that_of_the_record() {
    let list = |first: &str| json!([{"from": first, "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]);
    let both = one(json!({"conversations": list("system"), "system": "other"}));
    assert_eq!(short(&both), ["system: s", "user: q", "assistant: a"]);
    let read = lines(&[json!({"conversations": list("hummany")}), json!({"conversations": list("system")})]);
    assert_eq!(read.samples.len(), 1);
    assert!(read.skips.listed[0].reason.starts_with("message 1: its role is \"hummany\"; known are system, human"));
}

#[test]
fn openai_messages_have_parts_calls_names_and_weights() {
    let conversation = one(json!({
        "messages": [
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}
            ], "weight": 0, "loss": false},
            {"role": "tool", "tool_call_id": "1", "name": "f", "content": "one"},
            {"role": "tool", "tool_call_id": "2", "content": "two"},
            {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [], "train": true},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}, {"name": "g"}],
    }));
    assert_eq!(
        short(&conversation),
        ["system: s", "user: ab", "assistant: ", "tool: one", "tool: two", "assistant: c"]
    );
    let message = |i: usize| &conversation.messages[i];
    assert_eq!((message(1).name.as_deref(), message(3).name.as_deref()), (Some("Ann"), Some("f")));
    assert_eq!((message(1).train, message(2).train, message(5).train), (None, Some(false), Some(true)));
    let ids: Vec<_> = conversation.messages.iter().map(|message| message.tool_call_id.as_deref()).collect();
    assert_eq!(ids, [None, None, None, Some("1"), Some("2"), None]);
    assert_eq!((message(5).reasoning.as_deref(), &message(5).tool_calls), (Some("hm"), &None));
    let calls = message(2).tool_calls.as_ref().unwrap();
    assert_eq!(calls[0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!((&calls[1]["id"], &calls[1]["function"]["arguments"]), (&json!("2"), &json!({})));
    assert_eq!(conversation.tools.as_ref().unwrap()[1], json!({"type": "function", "function": {"name": "g"}}));
    let legacy = one(json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "content": "a"},
    ]}));
    assert_eq!(
        legacy.messages[1].tool_calls,
        Some(json!([{"type": "function", "function": {"name": "f", "arguments": {}}}]))
    );
    assert_eq!(legacy.messages[2].role, Role::Tool);
}

#[test]
fn keys_of_messages_are_seen_in_the_first_whatever_the_list_is_called() {
    let conversation =
        one(json!({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}));
    assert_eq!(short(&conversation), ["user: q", "assistant: a"]);
    let conversation = one(json!({"messages": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]}));
    assert_eq!(short(&conversation), ["user: q", "assistant: a"]);
}

#[test]
fn prompts_with_completions_are_texts_or_messages() {
    let read =
        lines(&[json!({"prompt": "The sky is", "completion": " blue."}), json!({"prompt": "", "completion": "x"})]);
    let pair = |prompt: &str, completion: &str, line| Sample::PromptCompletion {
        prompt: prompt.into(),
        completion: completion.into(),
        file: 0,
        line,
    };
    assert_eq!(read.samples, [pair("The sky is", " blue.", 1), pair("", "x", 2)]);
    let conversation = one(json!({
        "prompt": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}
        ],
        "completion": [{"role": "assistant", "content": "d"}],
    }));
    let learnt: Vec<_> = conversation.messages.iter().map(|message| message.train).collect();
    assert_eq!(learnt, [Some(false), Some(false), Some(false), None], "only the completion is learnt");
    assert_eq!(short(&conversation), ["user: a", "assistant: b", "user: c", "assistant: d"]);
}

#[test]
fn arrays_and_lines_are_told_apart_by_their_content() {
    let records = [json!({"text": "a \"[{,]\" \\"}), json!({"text": "b\u{e9}\u{1f600}", "more": [[1, {"x": "}"}]]})];
    let array = format!("\u{feff} [\r\n{} ,\n\n{}\n]\n", records[0], records[1]);
    let lined = format!("\u{feff}{}\r\n \n{}", records[0], records[1]);
    let text = |line, text: &str| Sample::Text { text: text.into(), file: 0, line };
    let expected = [text(2, "a \"[{,]\" \\"), text(4, "b\u{e9}\u{1f600}")];
    assert_eq!(read("a.json", &array).samples, expected);
    assert_eq!(read("a.jsonl", &array).samples, expected);
    let expected = [text(1, "a \"[{,]\" \\"), text(3, "b\u{e9}\u{1f600}")];
    assert_eq!(read("a.jsonl", &lined).samples, expected);
    assert_eq!(read("a.json", &lined).samples, expected);
}

#[test]
fn packed_files_are_unpacked() {
    let content = "{\"text\": \"a\"}\n".repeat(50_000) + "{\"text\": \"end\"}";
    let half = content.len() / 2;
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let zstd =
        |text: &str| ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    // Several members, as parallel packers write them, and a skippable frame between.
    let gz = [gzip(&content[..half]), gzip(&content[half..])].concat();
    let skippable = [&0x184d_2a50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let zst = [zstd(&content[..half]), skippable, zstd(&content[half..])].concat();
    for (name, bytes) in [("a.jsonl.gz", &gz), ("a.json.zst", &zst)] {
        let read = try_read(&[(name, bytes)], &SampleOptions::default()).unwrap();
        assert_eq!(read.samples.len(), 50_001, "{name}");
        let cut = try_read(&[(name, &bytes[..bytes.len() - 2])], &SampleOptions::default()).err().unwrap();
        assert!(cut.starts_with(&format!("{name}: reading failed: ")), "{cut}");
    }
    let text = try_read(&[("a.txt.gz", &gzip("a\r\nb"))], &SampleOptions::default()).unwrap();
    assert_eq!(text.samples, [Sample::Text { text: "a\nb".into(), file: 0, line: 0 }]);
}

/// A good record of each form, to stand beside a bad one.
fn good(record: &str) -> &'static str {
    match record {
        text if text.contains("conversations") => {
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}"#
        }
        text if text.contains("messages") => {
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}"#
        }
        text if text.contains("prompt") || text.contains("completion") => r#"{"prompt": "p", "completion": "c"}"#,
        text if text.contains("\"text\"") => r#"{"text": "t"}"#,
        _ => r#"{"instruction": "i", "output": "o"}"#,
    }
}

const TURNS: &str = "turns out of order";
const KIND: &str = "wrong kind of field";

#[test]
fn a_bad_record_is_skipped_with_its_line_and_reason() {
    let table: &[(&str, &str, &str)] = &[
        (r#"{"instruction": "i", "output": null}"#, "field null", r#""output" is null"#),
        (r#"{"instruction": "i"}"#, "field missing", r#""output" is missing"#),
        (r#"{"instruction": "i", "output": ""}"#, "field empty", r#""output" is empty"#),
        (r#"{"output": "o"}"#, "field empty", r#""instruction" and "input" are absent or empty: nothing is asked"#),
        (
            r#"{"instruction": "", "input": null, "output": "o"}"#,
            "field empty",
            r#""instruction" and "input" are absent or empty: nothing is asked"#,
        ),
        (r#"{"instruction": 7, "output": "o"}"#, KIND, r#""instruction" must be a string, not a number"#),
        (r#"{"instruction": "i", "input": ["x"], "output": "o"}"#, KIND, r#""input" must be a string, not a list"#),
        (r#"{"instruction": "i", "output": {"a": 1}}"#, KIND, r#""output" must be a string, not an object"#),
        (r#"{"instruction": "i", "output": "o", "history": "h"}"#, KIND, r#""history" must be a list, not a string"#),
        (
            r#"{"instruction": "i", "output": "o", "history": [["a"]]}"#,
            KIND,
            r#""history[0]" must be two strings: what was asked and answered"#,
        ),
        (
            r#"{"instruction": "i", "output": "o", "history": [["a", ""]]}"#,
            "field empty",
            r#""history[0]" has an empty answer"#,
        ),
        (
            r#"{"instruction": "i", "output": "o", "tools": "{"}"#,
            "bad tools",
            "\"tools\" is a string but not JSON: EOF while parsing an object at line 1 column 1",
        ),
        (
            r#"{"instruction": "i", "output": "o", "tools": [{"type": "function"}]}"#,
            "bad tools",
            r#"tools[0] has neither "function" nor "name""#,
        ),
        (r#"{"conversations": []}"#, "field empty", r#""conversations" is empty"#),
        (r#"{"conversations": null}"#, "field null", r#""conversations" is null"#),
        (r#"{"conversations": "q"}"#, KIND, r#""conversations" must be a list of messages, not a string"#),
        (r#"{"conversations": ["q"]}"#, KIND, "message 1: it must be an object, not a string"),
        (r#"{"conversations": [{"value": "q"}]}"#, "field missing", r#"message 1: "from" is missing"#),
        (r#"{"conversations": [{"from": "human"}]}"#, "field null", r#"message 1: "value" is null or missing"#),
        (
            r#"{"conversations": [{"from": "human", "value": 3}]}"#,
            KIND,
            r#"message 1: "value" must be a string or a list of parts, not a number"#,
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": ""}]}"#,
            "field empty",
            r#"message 2: "value" is empty: nothing is answered"#,
        ),
        (
            r#"{"conversations": [{"from": "hummany", "value": "q"}]}"#,
            "unknown role",
            r#"message 1: its role is "hummany"; known are system, human, user, gpt, assistant, chatgpt, model, function_call, observation, tool"#,
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}"#,
            TURNS,
            "messages 1 and 2 are both the user's; join them",
        ),
        (
            r#"{"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}"#,
            TURNS,
            "message 1, the first, is the assistant's; the user must begin",
        ),
        (
            r#"{"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, {"from": "human", "value": "q"}]}"#,
            "no answer",
            "the last message is the user's; the assistant must have answered it",
        ),
        (
            r#"{"conversations": [{"from": "system", "value": "s"}]}"#,
            "no answer",
            "there is no assistant message to learn",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "observation", "value": "o"}, {"from": "gpt", "value": "a"}]}"#,
            TURNS,
            "message 2 is the tool's, after the user's; the assistant must come between",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "system", "value": "s"}, {"from": "gpt", "value": "a"}]}"#,
            TURNS,
            "message 2 is a system message, but not the first",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "f(1)"}]}"#,
            "bad tool call",
            "message 2: the call is not JSON: expected ident at line 1 column 2",
        ),
        (
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\"arguments\": {}}"}]}"#,
            "bad tool call",
            r#"message 2: a call has no "name""#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": null}]}"#,
            "field null",
            r#"message 1: "content" is null or missing"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}"#,
            "not text",
            r#"message 1: "content" has a part of type "image_url"; only text is trained"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#,
            KIND,
            r#"message 1: "content" has a part without a "text""#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": {}}]}"#,
            KIND,
            r#"message 2: "tool_calls" must be a list, not an object"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]}]}"#,
            "bad tool call",
            r#"message 2: the arguments of "f" are not JSON: key must be a string at line 1 column 2"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]}"#,
            "bad tool call",
            r#"message 2: the arguments of "f" must be an object, not a list"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q", "tool_calls": [{"name": "f"}]}]}"#,
            "bad tool call",
            "message 1: it is the user's, but only an assistant calls tools",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0.5}]}"#,
            KIND,
            r#"message 2: "weight" is 0.5; it can be 0 or 1"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": "no"}]}"#,
            KIND,
            r#"message 2: "train" must be true or false, not a string"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": false, "weight": 1}]}"#,
            KIND,
            r#"message 2: "train" and "weight" disagree"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": true, "loss": false}]}"#,
            "wrong kind of field",
            r#"message 2: "train" and "loss" disagree"#,
        ),
        (
            r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train_detail": []}]}"#,
            "unsupported field",
            r#"message 2: "train_detail" is not supported; split the message or use "train""#,
        ),
        (r#"{"prompt": "p", "completion": null}"#, "field null", r#""completion" is null"#),
        (r#"{"prompt": null, "completion": "c"}"#, "field null", r#""prompt" is null; make it "" if there is none"#),
        (r#"{"prompt": "p", "completion": ""}"#, "field empty", r#""completion" is empty"#),
        (
            r#"{"prompt": "p", "completion": [{"role": "assistant", "content": "a"}]}"#,
            KIND,
            r#""prompt" must be a list of messages, as "completion" is, not a string"#,
        ),
        (r#"{"prompt": [], "completion": "c"}"#, KIND, r#""prompt" must be a string, as "completion" is, not a list"#),
        (r#"{"completion": "c"}"#, "field missing", r#""prompt" is missing"#),
        (r#"{"text": 7}"#, KIND, r#""text" must be a string, not a number"#),
        (r#"{"text": ""}"#, "field empty", r#""text" is empty"#),
    ];
    for (record, kind, reason) in table {
        let read = read("a.jsonl", &format!("{}\n{record}\n", good(record)));
        assert_eq!((read.skipped(), read.samples.len()), (vec![(2, *reason)], 1), "{record}");
        assert_eq!((&*read.skips.listed[0].kind, read.reports[0].skipped), (*kind, 1), "{record}");
        // Alone, it leaves nothing to train on.
        let mapped = [("a.json", format!("[{record}\n,{record}]").into_bytes())];
        let alone = try_read(&[(mapped[0].0, &mapped[0].1)], &SampleOptions::default()).err().unwrap();
        if !alone.contains("needed are") {
            assert!(
                alone.ends_with(&format!("none of its 2 records can be used; the first is a.json:1: {reason}")),
                "{alone}"
            );
        }
    }
}

#[test]
fn what_is_no_record_is_an_error_with_its_line_and_skipped_where_that_is_wished() {
    let table: &[(&[u8], &str, &str)] = &[
        (
            b"{\"text\": \"a\"",
            "invalid JSON",
            "a.jsonl:2: not valid JSON: EOF while parsing an object (column 12); a record must be whole on its line, unless the file is one array",
        ),
        (
            b"{'text': 'a'}",
            "invalid JSON",
            "a.jsonl:2: not valid JSON: key must be a string (column 2); JSON has double quotes",
        ),
        (
            b"{\"text\": NaN}",
            "invalid JSON",
            "a.jsonl:2: not valid JSON: expected value (column 10); JSON has no NaN, Infinity or None: write null",
        ),
        (
            b"{\"text\": \"\\ud83d\"}",
            "invalid JSON",
            "a.jsonl:2: not valid JSON: unexpected end of hex escape (column 17)",
        ),
        (b"text", "invalid JSON", "a.jsonl:2: not valid JSON: expected ident (column 2)"),
        (
            b"{\"text\": \"a\xff\"}",
            "not UTF-8",
            "a.jsonl:2: byte 25 of the file (0xff) is not UTF-8; convert the file to UTF-8",
        ),
        (b"[\"a\"]", "not an object", "a.jsonl:2: a record must be an object, not a list"),
        (b"null", "not an object", "a.jsonl:2: a record must be an object, not null"),
        (
            b"{\"input_ids\": [1]}",
            "another format",
            "a.jsonl:2: this record is of the form \"tokens\", but line 1 is \"text\"; put the two kinds in separate files",
        ),
    ];
    for (bytes, kind, message) in table {
        let file = [b"{\"text\": \"t\"}\n", *bytes, b"\n{\"text\": \"u\"}\n"].concat();
        let error = try_read(&[("a.jsonl", &file)], &SampleOptions::default()).err().unwrap();
        assert_eq!(&error, message);
        let lenient = SampleOptions { strict: false, ..SampleOptions::default() };
        let read = try_read(&[("a.jsonl", &file)], &lenient).unwrap();
        assert_eq!(read.samples.len(), 2);
        assert_eq!((read.skips.listed[0].line, &*read.skips.listed[0].kind), (2, *kind));
    }
    let table = [
        ("[{\"text\": \"a\"} {\"text\": \"b\"}]", "a.json:1: not valid JSON: a comma is missing between records"),
        ("[{\"text\": \"a\"},\n]", "a.json:2: not valid JSON: a comma before the array's end"),
        ("[{\"text\": \"a\"}]\n{}", "a.json:2: not valid JSON: something follows the array's end"),
        (
            "[\n{\"text\": \"a\"},\n{\"text\": \"b",
            "a.json:3: not valid JSON: the file ends inside this record; is it cut off?",
        ),
        ("[{\"text\": \"a\"},\n{\"text\":\n\n x}]", "a.json:4: not valid JSON: expected value (column 2)"),
        (
            "{\"data\": [{\"text\": \"a\"}]}",
            "a.json:1: the record has only \"data\"; needed are \"messages\", \"conversations\", \"instruction\" and \"output\", \"prompt\" and \"completion\", \"text\" or \"input_ids\"; other keys can be mapped in a dataset_info.json; if the list in \"data\" holds the records, give a file of that list alone",
        ),
        (
            "{\"data\": [1], \"n\": 2}",
            "a.json:1: the record has only \"data\", \"n\"; needed are \"messages\", \"conversations\", \"instruction\" and \"output\", \"prompt\" and \"completion\", \"text\" or \"input_ids\"; other keys can be mapped in a dataset_info.json",
        ),
        (
            "{}",
            "a.json:1: the record is empty; needed are \"messages\", \"conversations\", \"instruction\" and \"output\", \"prompt\" and \"completion\", \"text\" or \"input_ids\"; other keys can be mapped in a dataset_info.json",
        ),
        (
            "{\"instruction\": \"i\", \"chosen\": \"c\", \"rejected\": \"r\"}",
            "a.json:1: this is preference data (\"chosen\", \"rejected\"), which is for DPO and reward models; fine-tuning needs one answer, in \"output\" or a last message",
        ),
    ];
    for (text, message) in table {
        let error = try_read(&[("a.json", text.as_bytes())], &SampleOptions::default()).err().unwrap();
        assert_eq!(error, message);
    }
    let deep = format!("{{\"text\": {}", "[".repeat(100_000));
    let error = try_read(&[("a.jsonl", deep.as_bytes())], &SampleOptions::default()).err().unwrap();
    assert!(error.contains("recursion limit exceeded"), "{error}");
}

#[test]
fn no_prefix_of_a_file_and_no_wrong_byte_in_it_makes_the_reader_panic() {
    let records = [
        good("conversations"),
        r#"{"conversations": [{"from": "human", "value": "é"}, {"from": "function_call", "value": "{\"name\": \"f\"}"}]}"#,
    ];
    for (name, text) in [("a.json", format!("[{},\n {}]", records[0], records[1])), ("a.jsonl", records.join("\n"))] {
        for end in 0..text.len() {
            let _ = try_read(&[(name, &text.as_bytes()[..end])], &SampleOptions::default());
            let mut bytes = text.clone().into_bytes();
            for wrong in [0, b'"', b'}', 0xff] {
                bytes[end] = wrong;
                let _ = try_read(&[(name, &bytes)], &SampleOptions { strict: false, ..SampleOptions::default() });
            }
        }
    }
}

#[test]
fn a_named_format_is_not_second_guessed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jsonl");
    fs::write(&path, "{\"text\": \"rendered\", \"instruction\": \"i\", \"output\": \"o\"}\n{\"messages\": []}\n")
        .unwrap();
    let read = |format: Format| {
        let source = DataSource { format: Some(format), ..DataSource::new(&path) };
        let mut samples = Samples::new(&[source], &SampleOptions::default()).unwrap();
        let read: Result<Vec<_>, _> = samples.by_ref().collect();
        (read, samples.skips().listed.clone())
    };
    let (samples, skips) = read(Format::named("text").unwrap());
    assert_eq!(samples.unwrap(), [Sample::Text { text: "rendered".into(), file: 0, line: 1 }]);
    assert_eq!((skips[0].line, skips[0].reason.as_str()), (2, "\"text\" is missing"));
    let (samples, _) = read(Format::named("sharegpt").unwrap());
    assert!(samples.unwrap_err().to_string().contains("none of its 2 records can be used; the first is "));
    assert!(Format::named("chatml").unwrap_err().contains("formats are alpaca, sharegpt, openai"));
    fs::write(dir.path().join("b.txt"), "x").unwrap();
    let source = DataSource { format: Some(Format::Tokens), ..DataSource::new(dir.path().join("b.txt")) };
    let error = Samples::new(&[source], &SampleOptions::default()).unwrap().next().unwrap().unwrap_err();
    assert!(error.to_string().ends_with("a .txt file is one text; it cannot be read as tokens"), "{error}");
}

/// Who speaks in a ShareGPT message, and a content that suits.
const SPEAKERS: [(&str, &str); 5] =
    [("human", "q"), ("gpt", "a"), ("observation", "o"), ("function_call", "{\"name\": \"f\"}"), ("system", "s")];

/// LLaMA-Factory's rule: behind a system message, `human` and `observation` have the odd places, `gpt` and
/// `function_call` the even ones, and there are as many of both.
fn llama_factory_takes(speakers: &[&str]) -> bool {
    let turns = if speakers[0] == "system" { &speakers[1..] } else { speakers };
    let places: [&[&str]; 2] = [&["human", "observation"], &["gpt", "function_call"]];
    let placed = turns.iter().enumerate().all(|(i, speaker)| places[i % 2].contains(speaker));
    placed && turns.len() % 2 == 0 && !turns.is_empty()
}

#[test]
fn turns_are_taken_as_llama_factory_takes_them() {
    let mut longest = vec![vec![]];
    let (mut taken, mut all) = (0, 0);
    for _ in 0..5 {
        let longer = |s: &Vec<usize>| (0..SPEAKERS.len()).map(|next| [&s[..], &[next]].concat()).collect::<Vec<_>>();
        longest = longest.iter().flat_map(longer).collect();
        let record = |speakers: &Vec<usize>| {
            let messages = speakers.iter().map(|&i| json!({"from": SPEAKERS[i].0, "value": SPEAKERS[i].1}));
            json!({"conversations": messages.collect::<Vec<_>>()})
        };
        let mut records: Vec<Value> = longest.iter().map(record).collect();
        records.push(record(&vec![0, 1])); // so that some record is good
        let read = lines(&records);
        let read: Vec<u64> = read.samples.iter().map(|sample| sample.place().1).collect();
        for (i, speakers) in longest.iter().enumerate() {
            let names: Vec<&str> = speakers.iter().map(|&i| SPEAKERS[i].0).collect();
            let turns = if names[0] == "system" { &names[1..] } else { &names[..] };
            // The two documented differences: several tools may answer in a row, and none answers before it is asked.
            let mut once = names.clone();
            once.dedup_by(|a, b| *a == "observation" && a == b);
            let expected = turns.first() != Some(&"observation") && llama_factory_takes(&once);
            assert_eq!(read.contains(&(i as u64 + 1)), expected, "{names:?}");
            (taken, all) = (taken + usize::from(expected), all + 1);
        }
    }
    assert!(taken > 20 && all == 5 + 25 + 125 + 625 + 3125, "{taken} of {all}");
}

#[test]
fn samples_come_one_by_one_and_progress_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    // 16 MB, and a broken end that must not be met before it is reached.
    let record = format!("{{\"text\": \"{}\"}},\n", "x".repeat(1000));
    fs::write(&path, format!("[{}", record.repeat(16_000))).unwrap();
    fn can_be_sent<T: Send>(value: T) -> T {
        value
    }
    let mut samples = can_be_sent(Samples::new(&[DataSource::new(&path)], &SampleOptions::default()).unwrap());
    let total = samples.progress().1;
    assert_eq!(total, fs::metadata(&path).unwrap().len());
    assert_eq!(samples.next().unwrap().unwrap().place(), (0, 1));
    assert!(samples.progress().0 < total / 10, "the file is not read as a whole");
    let rest: Vec<_> = samples.by_ref().collect();
    assert_eq!(rest.len(), 16_000, "15,999 samples and an error");
    assert!(rest.last().unwrap().is_err() && samples.next().is_none());
    assert_eq!(samples.progress(), (total, total));
    let message = Message::new(Role::User, "q");
    assert_eq!((message.train, message.tool_calls), (None, None));
}

#[cfg(not(feature = "arrow"))]
#[test]
fn without_the_feature_tables_are_refused() {
    let error = try_read(&[("a.parquet", b"PAR1")], &SampleOptions::default()).err().unwrap();
    assert!(
        error.starts_with("a.parquet: this build reads no Parquet and no Arrow; add `--features arrow`"),
        "{error}"
    );
}
