//! Parquet and Arrow files that pyarrow wrote: `golden/tables/make.py`.
#![cfg(feature = "arrow")]

use megatrain_data::{DataSource, Sample, SampleOptions, Samples};
use serde_json::json;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tables").join(name)
}

/// Lines of skipped rows, with reasons.
type Skipped = Vec<(u64, String)>;

fn read(path: &Path) -> Result<(Vec<Sample>, Skipped), String> {
    let mut samples = Samples::new(&[DataSource::new(path)], &SampleOptions::default()).map_err(|e| e.to_string())?;
    let read = samples.by_ref().collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let skips = samples.skips().listed.iter().map(|skip| (skip.line, skip.reason.clone()));
    Ok((read, skips.collect()))
}

#[test]
fn conversations_are_read_from_every_kind_of_table() {
    for name in ["chat.parquet", "chat_gzip.parquet", "chat.arrow", "chat_file.arrow"] {
        let (samples, skips) = read(&golden(name)).unwrap();
        let [Sample::Conversation(first), Sample::Conversation(second)] = &samples[..] else { panic!("{samples:?}") };
        assert_eq!((first.line, second.line, first.messages.len()), (1, 4, 4), "{name}");
        assert_eq!((first.messages[0].content.as_str(), &first.messages[0].tool_calls), ("\u{e9}?", &None));
        let calls = json!([{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]);
        assert_eq!((first.messages[1].content.as_str(), &first.messages[1].tool_calls), ("", &Some(calls)));
        assert_eq!(second.messages[1].tool_calls, None);
        let expected = [
            (2, "the last message is the user's; the assistant must have answered it".to_owned()),
            (3, "\"messages\" is null".to_owned()),
        ];
        assert_eq!(skips, expected, "{name}");
    }
}

/// axolotl-ai-cloud/axolotl#879: a column that is null, empty or not there is as a key that is absent.
#[test]
fn optional_columns_may_be_null_empty_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("a.jsonl");
    std::fs::write(&plain, "{\"instruction\": \"Add 1 and 2.\", \"output\": \"3\"}").unwrap();
    let [Sample::Conversation(expected)] = &read(&plain).unwrap().0[..] else { panic!("no conversation") };
    for name in ["alpaca.parquet", "alpaca_without_input.parquet"] {
        let (samples, skips) = read(&golden(name)).unwrap();
        assert_eq!(samples.len(), 2, "{name}");
        for sample in samples {
            let Sample::Conversation(conversation) = sample else { panic!("{name}: {sample:?}") };
            assert_eq!((&conversation.messages, &conversation.tools), (&expected.messages, &expected.tools), "{name}");
        }
        assert_eq!(skips, [(3, "\"output\" is null".to_owned())], "{name}");
    }
}

#[test]
fn progress_reaches_the_end() {
    for name in ["chat.parquet", "chat.arrow", "chat_file.arrow"] {
        let mut samples = Samples::new(&[DataSource::new(golden(name))], &SampleOptions::default()).unwrap();
        assert_eq!(samples.by_ref().count(), 2);
        let (done, total) = samples.progress();
        assert!(done > total * 9 / 10, "{name}: {done} of {total}");
    }
}

#[test]
fn every_kind_of_string_and_of_list_is_read() {
    for name in ["text_large.arrow", "text_view.arrow", "text_dictionary.arrow"] {
        let (samples, skips) = read(&golden(name)).unwrap();
        let text = |line, text: &str| Sample::Text { text: text.into(), file: 0, line };
        assert_eq!(samples, [text(1, "a"), text(2, "b"), text(4, "a")], "{name}");
        assert_eq!(skips, [(3, "\"text\" is null".to_owned())]);
    }
    let (samples, _) = read(&golden("tokens.parquet")).unwrap();
    let tokens = |tokens: &[i32], labels: &[i32], line| Sample::Tokens {
        tokens: tokens.to_vec(),
        labels: labels.to_vec(),
        file: 0,
        line,
    };
    assert_eq!(samples, [tokens(&[1, 2, 3], &[-100, 2, 3], 1), tokens(&[4, 5], &[4, 5], 2)]);
}

#[test]
fn tables_that_cannot_be_read_are_named() {
    let error = read(&golden("empty.parquet")).unwrap_err();
    assert!(error.ends_with("empty.parquet: the table has no rows; remove the file or leave it out"), "{error}");
    let error = read(&golden("chat_zstd.parquet")).unwrap_err();
    assert!(
        error.ends_with("chat_zstd.parquet: it is packed with ZSTD, which is not read; write it with Snappy"),
        "{error}"
    );
    let error = read(&golden("chat_lz4.arrow")).unwrap_err();
    assert!(error.contains("chat_lz4.arrow:1: ") && error.contains("lz4 IPC decompression"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    for (name, says) in [("a.parquet", "not a readable Parquet file"), ("a.arrow", "not a readable Arrow file")] {
        std::fs::write(dir.path().join(name), "no table").unwrap();
        let error = read(&dir.path().join(name)).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_cut_or_damaged_table_is_an_error_and_no_panic() {
    std::panic::set_hook(Box::new(|_| {})); // The libraries' own, which are caught.
    let dir = tempfile::tempdir().unwrap();
    for name in ["chat.parquet", "chat.arrow", "chat_file.arrow", "text_view.arrow", "text_dictionary.arrow"] {
        let good = std::fs::read(golden(name)).unwrap();
        let path = dir.path().join(name);
        for end in (0..good.len()).step_by(31) {
            std::fs::write(&path, &good[..end]).unwrap();
            let _ = read(&path);
            let mut damaged = good.clone();
            damaged[end] ^= 0xff;
            std::fs::write(&path, damaged).unwrap();
            let _ = read(&path);
        }
    }
}
