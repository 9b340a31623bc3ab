//! Malformed data through the command, each with the whole message that a person reads: what is wrong, where, and what to
//! do. `bad_data.rs` and `bad_input.rs` have more, by what their messages must contain.

mod common;

use common::Scene;
use common::messages::{GOOD, Row, chat, check, jsonl};
use common::rows::AS_IS;
use serde_json::json;

/// `gzip.compress(b'{"text": "a"}\\n' * 9, mtime=0)` of Python.
const GZIP: &[u8] =
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabV*I\xad(Q\xb2RPJT\xaa\xe5\xaa\xa63\x0f\x00\xc1\x83-F~\x00\x00\x00";

/// A Zstandard frame (RFC 8878) of one raw block of less than 32 bytes, without a checksum.
fn zstd(text: &str) -> Vec<u8> {
    let len = text.len() as u8;
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x20, len, len << 3 | 1, 0, 0], text.as_bytes()].concat()
}

/// Bytes that are no text, or text that is no JSON.
const FILES: &[Row] = &[
    ("empty", |s| jsonl(s, ""), "{see}", "@/data.jsonl: the file is empty; remove it or leave it out"),
    (
        "nothing but a byte order mark",
        |s| jsonl(s, "\u{feff}"),
        "{see}",
        "@/data.jsonl: the file is empty; remove it or leave it out",
    ),
    (
        "nothing but line breaks",
        |s| jsonl(s, "\r\n\n \r\n"),
        "{see}",
        "@/data.jsonl: the file is empty; remove it or leave it out",
    ),
    (
        "an array of nothing",
        |s| jsonl(s, "[\n]"),
        "{see}",
        "@/data.jsonl: the array has no records; remove the file or leave it out",
    ),
    (
        "UTF-16, as PowerShell writes",
        |s| jsonl(s, b"\xff\xfe{\0}\0"),
        "{see}",
        "@/data.jsonl: this is UTF-16; convert it to UTF-8",
    ),
    (
        "Latin-1, with a mark and CRLF before",
        |s| jsonl(s, b"\xef\xbb\xbf{\"text\": \"a\"}\r\n{\"text\": \"caf\xe9\"}\r\n"),
        "{see}",
        "@/data.jsonl:2: byte 31 of the file (0xe9) is not UTF-8; convert the file to UTF-8",
    ),
    (
        "Latin-1 in a text",
        |s| s.write("data.txt", b"one\r\ncaf\xe9"),
        "data preview --model @/model --data @/data.txt",
        "@/data.txt:2: byte 8 of the file (0xe9) is not UTF-8; convert the file to UTF-8",
    ),
    (
        "NUL bytes",
        |s| jsonl(s, b"{\"text\": \"a\0b\"}"),
        "{see}",
        "@/data.jsonl:1: not valid JSON: control character (\\u0000-\\u001F) found while parsing a string (column 12); JSON writes it as \\n, \\t or \\u0000",
    ),
    (
        "a disk's hole",
        |s| jsonl(s, [0; 600]),
        "{see}",
        "@/data.jsonl: the file begins with zeros, as after a copy that failed; copy or download it again",
    ),
    (
        "cut off in a record",
        |s| jsonl(s, "{\"text\": \"a\"}\n{\"text\": \"b"),
        "{see}",
        "@/data.jsonl:2: not valid JSON: EOF while parsing a string (column 11); a record must be whole on its line, unless the file is one array; is it cut off?",
    ),
    (
        "an array cut off in a record",
        |s| jsonl(s, "[\n{\"text\": \"a\"},\n{\"text\": \"b"),
        "{see}",
        "@/data.jsonl:3: not valid JSON: the file ends inside this record; is it cut off?",
    ),
    (
        "an array cut off between records",
        |s| jsonl(s, "[\n{\"text\": \"a\"},\n"),
        "{see}",
        "@/data.jsonl:3: not valid JSON: the file ends inside the array; is it cut off?",
    ),
    (
        "a comma too few",
        |s| jsonl(s, "[{\"text\": \"a\"}\n{\"text\": \"b\"}]"),
        "{see}",
        "@/data.jsonl:2: not valid JSON: a comma is missing between records",
    ),
    (
        "a comma too many",
        |s| jsonl(s, "[{\"text\": \"a\"},\n]"),
        "{see}",
        "@/data.jsonl:2: not valid JSON: a comma before the array's end",
    ),
    (
        "something behind the array",
        |s| jsonl(s, "[{\"text\": \"a\"}]\n{\"text\": \"b\"}"),
        "{see}",
        "@/data.jsonl:2: not valid JSON: something follows the array's end",
    ),
    (
        "Python for JSON",
        |s| jsonl(s, "{'text': 'a'}"),
        "{see}",
        "@/data.jsonl:1: not valid JSON: key must be a string (column 2); JSON has double quotes",
    ),
    (
        "no number",
        |s| jsonl(s, "{\"text\": \"a\", \"score\": NaN}"),
        "{see}",
        "@/data.jsonl:1: not valid JSON: expected value (column 24); JSON has no NaN, Infinity or None: write null",
    ),
    (
        "a number too large",
        |s| jsonl(s, "{\"text\": \"a\", \"score\": 1e999}"),
        "{see}",
        "@/data.jsonl:1: not valid JSON: number out of range (column 28)",
    ),
    (
        "half a character",
        |s| jsonl(s, "{\"text\": \"\\ud83d\"}"),
        "{see}",
        "@/data.jsonl:1: not valid JSON: unexpected end of hex escape (column 17)",
    ),
    (
        "lists in lists without end",
        |s| jsonl(s, format!("{{\"text\": {}", "[".repeat(9999))),
        "{see}",
        "@/data.jsonl:1: not valid JSON: recursion limit exceeded (column 136)",
    ),
    (
        "a record over several lines",
        |s| jsonl(s, "{\n  \"text\": \"a\"\n}\n"),
        "{see}",
        "@/data.jsonl:1: not valid JSON: EOF while parsing an object (column 1); a record must be whole on its line, unless the file is one array",
    ),
    (
        "two records on a line",
        |s| jsonl(s, "{\"text\": \"a\"} {\"text\": \"b\"}"),
        "{see}",
        "@/data.jsonl:1: not valid JSON: trailing characters (column 15); a line holds one record",
    ),
    (
        "a web page",
        |s| jsonl(s, "<!DOCTYPE html>\n<html>"),
        "{see}",
        "@/data.jsonl: this is a web page, not data; download the file itself",
    ),
    (
        "a pointer to the file",
        |s| jsonl(s, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
        "{see}",
        "@/data.jsonl: this is a Git LFS pointer, not the file itself; run `git lfs pull` to fetch that",
    ),
    (
        "gzip that ends early",
        |s| s.write("data.jsonl.gz", &GZIP[..GZIP.len() - 9]),
        "data preview --model @/model --data @/data.jsonl.gz",
        "@/data.jsonl.gz: reading failed: this is no gzip file, or it is damaged or cut off (incomplete deflate stream); copy or download it again",
    ),
    (
        "no gzip",
        |s| s.write("data.jsonl.gz", "{\"text\": \"a\"}"),
        "data preview --model @/model --data @/data.jsonl.gz",
        "@/data.jsonl.gz: reading failed: this is no gzip file, or it is damaged or cut off (invalid gzip header); copy or download it again",
    ),
    (
        "zstd that ends early",
        |s| {
            let whole = zstd("{\"text\": \"a\"}");
            s.write("data.jsonl.zst", &whole[..whole.len() - 9]);
        },
        "data preview --model @/model --data @/data.jsonl.zst",
        "@/data.jsonl.zst: reading failed: this is no Zstandard file, or it is damaged or cut off (Failed to parse block header: Error while reading bytes for Raw: failed to fill whole buffer); copy or download it again",
    ),
    (
        "zstd --long=31",
        |s| s.write("data.jsonl.zst", b"\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00x"),
        "data preview --model @/model --data @/data.jsonl.zst",
        "@/data.jsonl.zst: reading failed: it is packed with a window of 2048 MiB, more than the 128 MiB read here; pack it again without --long",
    ),
    (
        "no zstd",
        |s| s.write("data.jsonl.zst", "{\"text\": \"a\"}"),
        "data preview --model @/model --data @/data.jsonl.zst",
        "@/data.jsonl.zst: reading failed: this is no Zstandard file, or it is damaged or cut off (BadMagicNumber(1702109819)); copy or download it again",
    ),
];

/// JSON that is no record, or one with nothing in it.
const RECORDS: &[Row] = &[
    (
        "a number for a record",
        |s| jsonl(s, "{\"text\": \"a\"}\n\n7"),
        "{see}",
        "@/data.jsonl:3: a record must be an object, not a number",
    ),
    (
        "a list for a record",
        |s| jsonl(s, "[[\"a\"]]"),
        "{see}",
        "@/data.jsonl:1: a record must be an object, not a list",
    ),
    (
        "null for a record",
        |s| jsonl(s, "{\"text\": \"a\"}\r\nnull\r\n"),
        "{see}",
        "@/data.jsonl:2: a record must be an object, not null",
    ),
    (
        "an empty record",
        |s| jsonl(s, "{}"),
        "{see}",
        "@/data.jsonl:1: the record is empty; needed are \"messages\", \"conversations\", \"instruction\" and \"output\", \"prompt\" and \"completion\", \"text\" or \"input_ids\"; other keys can be mapped in a dataset_info.json",
    ),
    (
        "an unknown shape",
        |s| jsonl(s, "{\"question\": \"q\", \"answer\": \"a\"}"),
        "{see}",
        "@/data.jsonl:1: the record has only \"question\", \"answer\"; needed are \"messages\", \"conversations\", \"instruction\" and \"output\", \"prompt\" and \"completion\", \"text\" or \"input_ids\"; other keys can be mapped in a dataset_info.json",
    ),
    (
        "another form in the middle",
        |s| jsonl(s, "{\"text\": \"a\"}\n{\"input_ids\": [1]}"),
        "{see}",
        "@/data.jsonl:2: this record is of the form \"tokens\", but line 1 is \"text\"; put the two kinds in separate files",
    ),
    (
        "a table's columns",
        |s| jsonl(s, "{\"text\": [\"a\", \"b\"]}"),
        "{see}",
        "@/data.jsonl: its only record cannot be used: @/data.jsonl:1: \"text\" must be a string, not a list",
    ),
    (
        "no answer",
        |s| chat(s, "{\"instruction\": \"Say it.\", \"output\": null}"),
        "{chat}",
        "@/data.jsonl: its only record cannot be used: @/data.jsonl:1: \"output\" is null",
    ),
    (
        "preferences",
        |s| jsonl(s, "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}"),
        "{see}",
        "@/data.jsonl:1: this is preference data (\"chosen\", \"rejected\"), which is for DPO and reward models; fine-tuning needs one answer, in \"output\" or a last message",
    ),
    (
        "no messages",
        |s| chat(s, "{\"messages\": []}"),
        "{chat}",
        "@/data.jsonl: its only record cannot be used: @/data.jsonl:1: \"messages\" is empty",
    ),
    (
        "messages that are null",
        |s| chat(s, "{\"messages\": null}\n{\"messages\": null}"),
        "{chat}",
        "@/data.jsonl: none of its 2 records can be used; the first is @/data.jsonl:1: \"messages\" is null",
    ),
    (
        "an unknown role",
        |s| {
            chat(
                s,
                "{\"conversations\": [{\"from\": \"hummany\", \"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}",
            )
        },
        "{chat}",
        "@/data.jsonl: its only record cannot be used: @/data.jsonl:1: message 1: its role is \"hummany\"; known are system, human, user, gpt, assistant, chatgpt, model, function_call, observation, tool",
    ),
    (
        "tools that are no JSON",
        |s| chat(s, &GOOD.replace("{\"messages\"", "{\"tools\": \"get_weather(city)\", \"messages\"")),
        "{chat}",
        "@/data.jsonl: its only record cannot be used: @/data.jsonl:1: \"tools\" is a string but not JSON: expected value at line 1 column 1",
    ),
    (
        "a message's weight between",
        |s| chat(s, &GOOD.replace("\"Hello\"", "\"Hello\", \"weight\": 0.5")),
        "{chat}",
        "@/data.jsonl: its only record cannot be used: @/data.jsonl:1: message 2: \"weight\" is 0.5; it can be 0 or 1",
    ),
    (
        "all masked",
        |s| chat(s, &GOOD.replace("\"Hello\"", "\"Hello\", \"train\": false")),
        "{chat}",
        "nothing would be learnt: 1 record skipped\n           1 x nothing to learn, first @/data.jsonl:1: nothing to learn: no message of the conversation is to be learnt; roles, \"train\" and \"weight\" decide",
    ),
    (
        "all too long",
        |s| chat(s, GOOD),
        "{chat} --seq-len 8",
        "nothing would be learnt: 1 record skipped\n           1 x too long, first @/data.jsonl:1: too long: 16 tokens, at most 8 are allowed\n           (a larger --seq-len keeps what is too long; --truncation right or left cuts it)",
    ),
    (
        "labels of another length",
        |s| jsonl(s, "{\"input_ids\": [1, 2, 3], \"labels\": [1, 2]}"),
        "{see}",
        "@/data.jsonl:1: \"labels\" has 2 places, \"input_ids\" 3; each token needs its own label (unshifted), -100 where nothing is trained",
    ),
    (
        "labels that were shifted",
        |s| jsonl(s, "{\"input_ids\": [1, 2, 3], \"labels\": [2, 3, -100]}"),
        "{see}",
        "@/data.jsonl:1: \"labels\" are shifted: each is the next token. Give those of the tokens themselves, -100 where nothing is trained; the shift is made here",
    ),
    (
        "labels that are words",
        |s| jsonl(s, "{\"input_ids\": [1, 2], \"labels\": \"none\"}"),
        "{see}",
        "@/data.jsonl:1: \"labels\" must be a list of ids, not a string",
    ),
    (
        "an id of 64 bits",
        |s| jsonl(s, "{\"input_ids\": [1, 99999999999]}"),
        "{see}",
        "@/data.jsonl:1: place 1 of \"input_ids\" is 99999999999, not a token id",
    ),
    (
        "an id of 80 bits",
        |s| jsonl(s, "{\"input_ids\": [1, 999999999999999999999999]}"),
        "{see}",
        "@/data.jsonl:1: place 1 of \"input_ids\" is 1e+24, not a token id",
    ),
    (
        "an id beyond the vocabulary",
        |s| jsonl(s, "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3, 257]}"),
        "{see}",
        "@/data.jsonl:2: place 1 of input_ids is 257; ids must lie between 0 and 256, the model's vocabulary; was the data made with another tokenizer?",
    ),
    (
        "a negative id",
        |s| jsonl(s, "{\"input_ids\": [1, -100]}"),
        "{see}",
        "@/data.jsonl:1: place 1 of input_ids is -100; ids must lie between 0 and 256, the model's vocabulary; was the data made with another tokenizer?",
    ),
    (
        "half an id",
        |s| jsonl(s, "{\"input_ids\": [1, 2.5]}"),
        "{see}",
        "@/data.jsonl:1: place 1 of \"input_ids\" is 2.5, not a token id",
    ),
    (
        "padding",
        |s| jsonl(s, "{\"input_ids\": [1, 2, 0], \"attention_mask\": [1, 1, 0]}"),
        "{see}",
        "@/data.jsonl:1: \"attention_mask\" has zeros; remove the padding from the record",
    ),
    (
        "ids beyond the sequence",
        |s| jsonl(s, format!("{{\"input_ids\": {:?}}}", [7; 40])),
        "{see}",
        "@/data.jsonl:1: this pre-tokenized line has 40 tokens, more than --seq-len 32; raise --seq-len or shorten the line (lines are not cut, since their labels belong together)",
    ),
    (
        "labels of nothing",
        |s| jsonl(s, "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}"),
        "{see}",
        "the data has no target to learn in 1 documents: texts need two tokens, pre-tokenized lines a label other than -100 after the first place",
    ),
];

/// Sources, registries, templates and tokenizers.
const SOURCES: &[Row] = &[
    (
        "a folder without data",
        AS_IS,
        "data preview --model @/model --data @/model",
        "@/model/config.json:1: the record has only \"architectures\", \"model_type\", \"hidden_size\", \"intermediate_size\", \"num_hidden_layers\", \"num_attention_heads\"; needed are \"messages\", \"conversations\", \"instruction\" and \"output\", \"prompt\" and \"completion\", \"text\" or \"input_ids\"; other keys can be mapped in a dataset_info.json",
    ),
    (
        "a folder of other files",
        |s| s.write("sheets/a.xlsx", "PK"),
        "data preview --model @/model --data @/sheets",
        "@/sheets: the directory holds no data files (.txt, .jsonl, .json (each also .gz or .zst), .parquet or .arrow)",
    ),
    (
        "a weight of 0",
        |s| jsonl(s, "{\"text\": \"a\"}"),
        "data preview --model @/model --data @/data.txt:0",
        "the weight of @/data.txt must be a number above 0, not 0",
    ),
    (
        "a weight below 0",
        AS_IS,
        "data preview --model @/model --data @/data.txt:-0.5",
        "the weight of @/data.txt must be a number above 0, not -0.5",
    ),
    (
        "a weight that is no number",
        AS_IS,
        "data preview --model @/model --data @/data.txt:NaN",
        "the weight of @/data.txt must be a number above 0, not NaN",
    ),
    (
        "a weight that is a word",
        AS_IS,
        "data preview --model @/model --data @/data.txt:half",
        "@/data.txt:half: no such file or directory; check the path",
    ),
    (
        "a weight for one",
        |s| jsonl(s, "{\"text\": \"a\"}"),
        "{see} @/data.txt:2",
        "@/data.jsonl has no weight, but others have; give all or none",
    ),
    (
        "the same twice",
        AS_IS,
        "data preview --model @/model --data @/data.txt @/data.txt",
        "@/data.txt: given twice in --data; name it once",
    ),
    (
        "no registry",
        AS_IS,
        "data preview --model @/model --dataset mine --dataset-dir @",
        "--dataset looks for dataset_info.json in @, where it is not; --dataset-dir names another folder, and --data takes files without it",
    ),
    (
        "a registry that is no JSON",
        |s| s.write("dataset_info.json", "{\n  \"mine\": {\"file_name\": \"data.txt\",}\n}"),
        "data preview --model @/model --dataset mine --dataset-dir @",
        "--dataset: @/dataset_info.json:2: not valid JSON: trailing comma (column 36)",
    ),
    (
        "a registry of a list",
        |s| s.write("dataset_info.json", "[]"),
        "data preview --model @/model --dataset mine --dataset-dir @",
        "--dataset: @/dataset_info.json: it must be an object of data sets, not a list",
    ),
    (
        "an unlisted name",
        |s| s.write("dataset_info.json", r#"{"mine": {"file_name": "data.txt"}}"#),
        "data preview --model @/model --dataset yours --dataset-dir @",
        "--dataset: @/dataset_info.json: there is no data set \"yours\"; there are mine",
    ),
    (
        "a registered file that is not there",
        |s| s.write("dataset_info.json", r#"{"mine": {"file_name": "no.json"}}"#),
        "data preview --model @/model --dataset mine --dataset-dir @",
        "--dataset: @/dataset_info.json: data set \"mine\": no.json is not in this file's folder; mend its \"file_name\"",
    ),
    (
        "a hub's name in the registry",
        |s| s.write("dataset_info.json", r#"{"mine": {"hf_hub_url": "someone/something"}}"#),
        "data preview --model @/model --dataset mine --dataset-dir @",
        "--dataset: @/dataset_info.json: data set \"mine\": \"hf_hub_url\" names no local file; download the data and name it by \"file_name\" alone",
    ),
    (
        "a subset",
        |s| s.write("dataset_info.json", r#"{"mine": {"file_name": "data.txt", "subset": "en"}}"#),
        "data preview --model @/model --dataset mine --dataset-dir @",
        "--dataset: @/dataset_info.json: data set \"mine\": \"subset\" is a choice on a hub, and this is a local file; leave it out, or name the file that is meant",
    ),
    (
        "a misspelt key",
        |s| s.write("dataset_info.json", r#"{"mine": {"file_name": "data.txt", "formating": "sharegpt"}}"#),
        "data preview --model @/model --dataset mine --dataset-dir @",
        "--dataset: @/dataset_info.json: data set \"mine\": \"formating\" is no known key; there are file_name, formatting, columns, tags and num_samples",
    ),
    (
        "a template with a mistake",
        |s| {
            chat(s, GOOD);
            s.write("my.jinja", "{% for m in messages %}\n{{ m.content }\n{% endfor %}");
        },
        "data preview --model @/model --data @/data.jsonl --template @/my.jinja",
        "--template: @/my.jinja: chat template: line 2, column 14: syntax error: unexpected `}`, expected end of variable block",
    ),
    (
        "a template with an unknown filter",
        |s| {
            chat(s, GOOD);
            s.write("my.jinja", "{% for m in messages %}\n{{ m.content | shout }}{% endfor %}");
        },
        "data preview --model @/model --data @/data.jsonl --template @/my.jinja",
        "--template: @/my.jinja: chat template: line 2: unknown filter: filter shout is unknown",
    ),
    (
        "a template that refuses all",
        |s| {
            chat(s, GOOD);
            s.write("my.jinja", "{{ raise_exception('a system message is needed') }}");
        },
        "data preview --model @/model --data @/data.jsonl --template @/my.jinja",
        "nothing would be learnt: 1 record skipped\n           1 x refused by the chat template, first @/data.jsonl:1: refused by the chat template: line 1: a system message is needed",
    ),
    (
        "a template that marks nothing",
        |s| {
            chat(s, GOOD);
            s.write(
                "my.jinja",
                "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}",
            );
        },
        "data preview --model @/model --data @/data.jsonl --template @/my.jinja",
        "nothing would be learnt: 1 record skipped\n           1 x nothing to learn, first @/data.jsonl:1: nothing to learn: none of its 6 tokens is learnt",
    ),
    (
        "no template",
        |s| chat(s, GOOD),
        "{see}",
        "@/data.jsonl:1: the model has no chat template of its own (chat_template.jinja, or \"chat_template\" in tokenizer_config.json); name one. built in: alpaca, chatml, deepseek, deepseek-r1, gemma, llama2, llama3, llama3.1, mistral, phi3, phi4, qwen2.5, qwen3, smollm2, vicuna, zephyr (--template NAME or --template FILE.jinja)",
    ),
    (
        "a template that does not exist",
        |s| chat(s, GOOD),
        "{see} --template lama3",
        "--template: there is no chat template \"lama3\"; built in: alpaca, chatml, deepseek, deepseek-r1, gemma, llama2, llama3, llama3.1, mistral, phi3, phi4, qwen2.5, qwen3, smollm2, vicuna, zephyr",
    ),
    (
        "a tokenizer without an end",
        |s| {
            chat(s, "{\"text\": \"a\"}");
            s.write("model/tokenizer_config.json", "{}");
        },
        "{see}",
        "@/data.jsonl:1: the tokenizer names no end token to append to texts; add \"eos_token\" to its tokenizer_config.json",
    ),
    (
        "a template that needs the end",
        |s| {
            chat(s, GOOD);
            s.write("model/tokenizer_config.json", "{}");
        },
        "{see} --template zephyr",
        "nothing would be learnt: 1 record skipped\n           1 x refused by the chat template, first @/data.jsonl:1: refused by the chat template: line 3: tried to use + operator on unsupported types string and undefined (tokenizer_config.json names no bos_token and no eos_token)",
    ),
    (
        "a tokenizer of a larger model",
        |s| {
            chat(s, GOOD);
            s.model(|config| config["vocab_size"] = json!(100));
        },
        "{chat}",
        "@/data.jsonl:1: place 0 of what is encoded is 387; ids must lie between 0 and 99, the model's vocabulary; tokenizer.json and config.json must come from the same model",
    ),
    (
        "an unknown format",
        |s| jsonl(s, "{\"text\": \"a\"}"),
        "{see} --format csv",
        "--format: \"csv\" is no data format; formats are alpaca, sharegpt, openai, prompt-completion, text or tokens",
    ),
    (
        "another format than named",
        |s| jsonl(s, "{\"text\": \"a\"}"),
        "{see} --format sharegpt",
        "@/data.jsonl: its only record cannot be used: @/data.jsonl:1: \"conversations\" is missing",
    ),
];

#[test]
fn malformed_files() {
    check(FILES);
}

/// By the binary, since a file this large would be looked for in the cache of whoever runs the tests.
#[test]
fn a_file_without_a_line_break() {
    let scene = Scene::new();
    jsonl(&scene, "{\"text\": \"");
    std::fs::File::options().write(true).open(scene.path("data.jsonl")).unwrap().set_len(300 << 20).unwrap();
    let output = scene.output("data preview --model @/model --data @/data.jsonl");
    let wanted = "error: @/data.jsonl:1: this record is longer than 256 MiB; are line breaks missing?\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), scene.fill(wanted));
}

#[test]
fn malformed_records() {
    check(RECORDS);
}

#[test]
fn malformed_sources() {
    check(SOURCES);
}
