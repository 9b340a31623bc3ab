//! Reading files: what comes out of good ones, and what is said about bad ones.

use megatrain_data::{ByteTokenizer, Documents, IGNORE, ReadOptions, ReadReport, Skip, TextTokenizer, read};
use std::fs;
use std::path::PathBuf;

const OPTIONS: ReadOptions = ReadOptions { append_eos: true, vocab_size: Some(300) };
const EOS: i32 = ByteTokenizer::EOS_ID;

fn read_files(files: &[(&str, &[u8])], options: &ReadOptions) -> Result<(Documents, ReadReport), String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let tokenizer: &dyn TextTokenizer = &ByteTokenizer;
    let prefix = format!("{}/", dir.path().display());
    read(&[dir.path().to_owned()], Some(tokenizer), options).map_err(|e| e.to_string().replace(&prefix, ""))
}

fn tokens_of(files: &[(&str, &[u8])]) -> Vec<Vec<i32>> {
    read_files(files, &OPTIONS).unwrap().0.iter().map(|doc| doc.tokens.to_vec()).collect()
}

fn ended(text: &str) -> Vec<i32> {
    text.bytes().map(i32::from).chain([EOS]).collect()
}

#[test]
fn a_text_file_is_one_document_with_one_end() {
    assert_eq!(tokens_of(&[("a.txt", b"ab\n\ncd")]), [ended("ab\n\ncd")]);
    assert_eq!(tokens_of(&[("a.txt", b"\xef\xbb\xbfab\r\ncd\r\n")]), [ended("ab\ncd\n")]);
    assert_eq!(tokens_of(&[("a.txt", b"ab<|endoftext|>")]), [ended("ab")], "no second end");
    let plain = read_files(&[("a.txt", b"ab")], &ReadOptions { append_eos: false, ..OPTIONS }).unwrap();
    assert_eq!(plain.0.get(0).tokens, [97, 98]);
}

#[test]
fn json_lines_and_arrays_are_read_alike() {
    let expected = [ended("one"), ended("z\u{e9}ro\n")];
    let lines = "\u{feff}{\"text\": \"one\", \"meta\": 1}\r\n\n  \n{\"text\": \"z\u{e9}ro\\n\"}\n";
    assert_eq!(tokens_of(&[("a.jsonl", lines.as_bytes())]), expected);
    let array = "[\n{\"text\": \"one\"},\n{\"text\":\n\"z\u{e9}ro\\n\"}]";
    assert_eq!(tokens_of(&[("a.json", array.as_bytes())]), expected);
    let docs = read_files(&[("a.jsonl", lines.as_bytes()), ("b.json", array.as_bytes())], &OPTIONS).unwrap().0;
    assert_eq!(docs.iter().map(|d| (d.file, d.line)).collect::<Vec<_>>(), [(0, 1), (0, 4), (1, 2), (1, 3)]);
}

#[test]
fn pretokenized_lines_keep_their_labels() {
    let lines = b"{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, 7], \"attention_mask\": [1, 1, 1]}\n{\"input_ids\": [8, 9]}";
    let (docs, report) = read_files(&[("a.jsonl", lines)], &OPTIONS).unwrap();
    assert_eq!(docs.get(0).tokens, [5, 6, 7], "no end token is added to a line");
    assert_eq!(docs.get(0).labels, Some(&[IGNORE, IGNORE, 7][..]));
    assert_eq!(docs.get(1).labels, Some(&[8, 9][..]));
    assert_eq!(report, ReadReport { files: 1, texts: 0, lines: 2, tokens: 5, targets: 2, ..ReadReport::default() });
}

#[test]
fn directories_are_read_by_name_at_any_depth_and_empty_texts_skipped() {
    let files: &[(&str, &[u8])] = &[
        ("b.txt", b"b"),
        ("a/z.txt", b"z"),
        ("a/c.jsonl", b"{\"text\": \"\"}\n{\"text\": \"c\"}"),
        ("notes.md", b"not data"),
        (".hidden.txt", b"not data"),
        ("dataset_info.json", b"{\"not\": \"data\"}"),
    ];
    assert_eq!(tokens_of(files), [ended("c"), ended("z"), ended("b")]);
    let report = read_files(files, &OPTIONS).unwrap().1;
    let skips = report.skips.clone();
    assert_eq!(report, ReadReport { files: 3, texts: 3, lines: 0, tokens: 6, targets: 3, skips: skips.clone() });
    let skip = Skip { file: 0, line: 1, kind: "field empty".into(), reason: "\"text\" is empty".to_owned() };
    assert_eq!((skips.total(), skips.listed), (1, vec![skip]));
}

#[test]
fn every_wrong_file_is_named_with_its_line_and_reason() {
    let table: &[(&str, &[u8], &str)] = &[
        ("a.txt", b"", "a.txt: the file is empty; remove it or leave it out"),
        ("a.txt", b" \n\r\n", "a.txt: the file is empty; remove it or leave it out"),
        ("a.jsonl", b"\n\n", "a.jsonl: the file is empty; remove it or leave it out"),
        ("a.json", b"[ ]", "a.json: the array has no records; remove the file or leave it out"),
        ("a.txt", b"one\ntw\xffo", "a.txt:2: byte 6 of the file (0xff) is not UTF-8; convert the file to UTF-8"),
        ("a.txt", b"\xef\xbb\xbfab\xc3", "a.txt:1: byte 5 of the file (0xc3) is not UTF-8; convert the file to UTF-8"),
        ("a.txt", b"\xff\xfea\0", "a.txt: this is UTF-16; convert it to UTF-8"),
        (
            "a.jsonl",
            b"{\"text\": \"a\"}\n{\"text\": \"b\"",
            "a.jsonl:2: not valid JSON: EOF while parsing an object (column 12); a record must be whole on its line, \
             unless the file is one array; is it cut off?",
        ),
        (
            "a.jsonl",
            b"{\"text\": 'a'}",
            "a.jsonl:1: not valid JSON: expected value (column 10); JSON has double quotes",
        ),
        ("a.jsonl", b"\n[1]", "a.jsonl:2: a record must be an object, not a number"),
        ("a.jsonl", b"7", "a.jsonl:1: a record must be an object, not a number"),
        ("a.jsonl", b"{\"text\": null}", "its only record cannot be used: a.jsonl:1: \"text\" is null"),
        (
            "a.jsonl",
            b"{\"prompt\": \"a\", \"completion\": \"b\"}",
            "a.jsonl:1: this is a conversation or a prompt with its completion; here only \"text\" and \"input_ids\" are \
             read: render it with the model's chat template first",
        ),
        (
            "a.jsonl",
            b"{\"text\": \"a\", \"input_ids\": [1]}",
            "a.jsonl:1: the record has both \"text\" and \"input_ids\"; keep one",
        ),
        (
            "a.jsonl",
            b"{\"text\": \"a\"}\n\n{\"input_ids\": [1, 2]}",
            "a.jsonl:3: this record is of the form \"tokens\", but line 1 is \"text\"; put the two kinds in separate files",
        ),
        ("a.jsonl", b"{\"input_ids\": []}", "a.jsonl:1: \"input_ids\" is empty; remove the record"),
        ("a.jsonl", b"{\"input_ids\": 3}", "a.jsonl:1: \"input_ids\" must be a list of ids, not a number"),
        ("a.jsonl", b"{\"input_ids\": [1, 2.5]}", "a.jsonl:1: place 1 of \"input_ids\" is 2.5, not a token id"),
        ("a.jsonl", b"{\"input_ids\": [1, \"2\"]}", "a.jsonl:1: place 1 of \"input_ids\" is a string, not a token id"),
        (
            "a.jsonl",
            b"{\"input_ids\": [4294967296]}",
            "a.jsonl:1: place 0 of \"input_ids\" is 4294967296, not a token id",
        ),
        (
            "a.jsonl",
            b"{\"input_ids\": [1, 300]}",
            "a.jsonl:1: place 1 of input_ids is 300; ids must lie between 0 and 299, the model's vocabulary; was the \
             data made with another tokenizer?",
        ),
        (
            "a.jsonl",
            b"{\"input_ids\": [-100]}",
            "a.jsonl:1: place 0 of input_ids is -100; ids must lie between 0 and 299, the model's vocabulary; was the \
             data made with another tokenizer?",
        ),
        (
            "a.jsonl",
            b"{\"input_ids\": [1, 2], \"labels\": [-100, -1]}",
            "a.jsonl:1: place 1 of labels is -1; ids must lie between 0 and 299, the model's vocabulary, or -100 where \
             nothing is trained; was the data made with another tokenizer?",
        ),
        (
            "a.jsonl",
            b"{\"input_ids\": [1, 2], \"labels\": [2]}",
            "a.jsonl:1: \"labels\" has 1 places, \"input_ids\" 2; each token needs its own label (unshifted), -100 \
             where nothing is trained",
        ),
        (
            "a.jsonl",
            b"{\"input_ids\": [1, 2], \"attention_mask\": [1, 0]}",
            "a.jsonl:1: \"attention_mask\" has zeros; remove the padding from the record",
        ),
        (
            "a.jsonl",
            b"{\"input_ids\": [1, 2], \"attention_mask\": [true, false]}",
            "a.jsonl:1: \"attention_mask\" has zeros; remove the padding from the record",
        ),
        (
            "a.jsonl",
            b"{\"input_ids\": [1, 2], \"attention_mask\": [1, 1], \"completion_mask\": [0, 1]}",
            "a.jsonl:1: \"completion_mask\" says what is learnt, which is read from \"labels\" alone; give those, -100 \
             where nothing is trained",
        ),
        (
            "a.jsonl",
            b"\x28\xb5\x2f\xfd\x04\x00",
            "a.jsonl: this is packed with Zstandard; name it .jsonl.zst, .json.zst or .txt.zst",
        ),
        ("a.json", b"[\n{\"text\": \"a\"},\n\n 7]", "a.json:4: a record must be an object, not a number"),
        (
            "a.json",
            b"[\n{\"text\": \"a\"},",
            "a.json:2: not valid JSON: the file ends inside the array; is it cut off?",
        ),
        (
            "a.csv",
            b"x",
            "the directory holds no data files (.txt, .jsonl, .json (each also .gz or .zst), .parquet or .arrow)",
        ),
        ("a.jsonl", b"{\"text\": \"\"}", "its only record cannot be used: a.jsonl:1: \"text\" is empty"),
    ];
    for (name, bytes, expected) in table {
        let error = read_files(&[(name, bytes)], &OPTIONS).expect_err(expected);
        assert!(error.ends_with(expected), "got      {error}\nexpected {expected}");
    }
}

#[test]
fn paths_that_are_not_data_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["a.csv", "a.jsonl.bz2", "a.txt", "noextension"] {
        fs::write(path(name), "x").unwrap();
    }
    let error = |paths: &[PathBuf]| read(paths, Some(&ByteTokenizer), &OPTIONS).unwrap_err().to_string();
    assert!(error(&[]).starts_with("no data: give --data"));
    assert!(error(&[path("none.txt")]).ends_with("none.txt: no such file or directory; check the path"));
    assert!(
        error(&[path("a.csv")])
            .contains("convert it to .jsonl, an object a line, for example in Python: pandas.read_csv(\"a.csv\")")
    );
    assert!(error(&[path("a.jsonl.bz2")]).ends_with("unpack it first"));
    assert!(error(&[path("noextension")]).ends_with("; rename or convert it"));
    for other in [path("a.txt"), dir.path().join(".").join("a.txt")] {
        assert!(error(&[path("a.txt"), other]).ends_with("given twice in --data; name it once"));
    }
    let link = path("link.txt");
    std::os::unix::fs::symlink(path("a.txt"), &link).unwrap();
    assert!(error(&[path("a.txt"), link]).ends_with("link.txt: given twice in --data; name it once"));
    let no_tokenizer = read(&[path("a.txt")], None, &OPTIONS).unwrap_err().to_string();
    assert!(no_tokenizer.contains("there is no tokenizer to encode it"), "{no_tokenizer}");
}

#[test]
fn an_encoded_text_beyond_the_models_vocabulary_is_refused() {
    let options = ReadOptions { vocab_size: Some(256), ..OPTIONS };
    let error = read_files(&[("a.txt", b"ab")], &options).unwrap_err();
    assert!(error.starts_with("a.txt: place 2 of an encoded text is 256; ids must lie between 0 and 255"), "{error}");
}
