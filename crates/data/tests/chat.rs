//! Conversations as tokens and targets: against transformers' ids and masks, and the rules one by one.
#![cfg(feature = "tokenizer")]

use megatrain_data::chat::{TemplateChoice, TooLong, TrainOn};
use megatrain_data::{
    ByteTokenizer, ChatEncoder, ChatFiles, ChatOptions, Conversation, Encoded, Message, Role, Sample, SkipReason,
    TextTokenizer, Tokenizer,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Made by `golden/chat/make_rendering.py` and `make_encoding.py` with transformers 5.24.
const RENDERING: &str = include_str!("golden/chat/rendering.json");
const ENCODING: &str = include_str!("golden/chat/encoding.json");
const TOKENIZER: &str = include_str!("golden/chat/tokenizer.json");

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
                      {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A model directory with the golden tokenizer.
fn model(config: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), TOKENIZER).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    dir
}

fn config() -> Value {
    json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": false})
}

fn encoder(options: ChatOptions) -> ChatEncoder {
    ChatEncoder::load(model(&config()).path(), options).unwrap()
}

fn named(name: &str) -> ChatOptions {
    ChatOptions { template: TemplateChoice::Named(name.to_owned()), ..ChatOptions::default() }
}

fn text(source: &str) -> ChatOptions {
    let template = TemplateChoice::Text { origin: "test".to_owned(), text: source.to_owned() };
    ChatOptions { template, ..ChatOptions::default() }
}

fn chat(messages: &[(Role, &str)]) -> Conversation {
    let messages = messages.iter().map(|(role, content)| Message::new(*role, *content)).collect();
    Conversation { messages, ..Conversation::default() }
}

fn from_json(chat: &Value) -> Conversation {
    let message = |m: &Value| Message {
        tool_calls: m.get("tool_calls").cloned(),
        name: m["name"].as_str().map(str::to_owned),
        reasoning: m["reasoning_content"].as_str().map(str::to_owned),
        ..Message::new(serde_json::from_value(m["role"].clone()).unwrap(), m["content"].as_str().unwrap())
    };
    let messages = chat["messages"].as_array().unwrap().iter().map(message).collect();
    Conversation { messages, tools: chat.get("tools").cloned(), ..Conversation::default() }
}

/// What is learnt, as text; parts between other tokens are parted by "|".
fn learnt(dir: &Path, encoded: &Encoded) -> String {
    let inner = tokenizers_of(dir);
    let mut out = Vec::new();
    let mut run = Vec::new();
    for (&token, &label) in encoded.tokens.iter().zip(&encoded.labels) {
        if label == token {
            run.push(token as u32);
        } else {
            assert_eq!(label, -100);
            if !run.is_empty() {
                out.push(inner(&std::mem::take(&mut run)));
            }
        }
    }
    if !run.is_empty() {
        out.push(inner(&run));
    }
    out.join("|")
}

/// Decodes with special tokens, which the crate's own decoding leaves out.
fn tokenizers_of(dir: &Path) -> impl Fn(&[u32]) -> String {
    let tokenizer = Tokenizer::load(dir).unwrap();
    let special = tokenizer.special_tokens();
    move |ids: &[u32]| {
        let mut out = String::new();
        for run in ids.chunk_by(|a, b| {
            let is = |id: &u32| special.iter().any(|(special, _)| *special as u32 == *id);
            !is(a) && !is(b)
        }) {
            match special.iter().find(|(id, _)| *id as u32 == run[0]) {
                Some((_, text)) => out.push_str(text),
                None => out.push_str(&tokenizer.decode(&run.iter().map(|&id| id as i32).collect::<Vec<_>>()).unwrap()),
            }
        }
        out
    }
}

fn learnt_of(options: ChatOptions, conversation: &Conversation) -> String {
    let dir = model(&config());
    let encoded = ChatEncoder::load(dir.path(), options).unwrap().encode(conversation).unwrap();
    learnt(dir.path(), &encoded)
}

use Role::{Assistant, System, Tool, User};

#[test]
fn ids_and_masks_are_those_of_transformers() {
    let rendering: Value = serde_json::from_str(RENDERING).unwrap();
    let golden: Value = serde_json::from_str(ENCODING).unwrap();
    let rows = golden["rows"].as_array().unwrap();
    assert!(rows.len() > 110, "{}", rows.len());
    let mut samples = Vec::new();
    for row in rows {
        let (name, conversation) = (row["template"].as_str().unwrap(), row["conversation"].as_str().unwrap());
        let source =
            [&rendering, &golden].into_iter().find_map(|file| file["conversations"].get(conversation)).unwrap();
        let conversation_of = from_json(source);
        let encoder = encoder(named(name));
        let encoded = encoder.encode(&conversation_of).unwrap_or_else(|e| panic!("{name}, {conversation}: {e}"));
        assert_eq!(json!(encoded.tokens), row["ids"], "{name}, {conversation}");
        let mask: String = encoded.labels.iter().map(|&label| if label == -100 { '0' } else { '1' }).collect();
        assert_eq!(mask, row["mask"].as_str().unwrap(), "{name}, {conversation}");
        assert!(encoded.tokens.iter().zip(&encoded.labels).all(|(token, label)| *label == -100 || label == token));
        if name == "qwen3" {
            samples.push((Sample::Conversation(conversation_of), encoded));
        }
    }
    // In parallel: the same, in order.
    let (inputs, expected): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
    let (outcomes, report) = encoder(named("qwen3")).encode_all(&inputs);
    assert_eq!(outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
    assert_eq!((report.samples, report.encoded), (inputs.len() as u64, inputs.len() as u64));
    assert_eq!(report.tokens, expected.iter().map(|e| e.tokens.len() as u64).sum::<u64>());
    assert_eq!(report.targets, expected.iter().map(|e| e.targets() as u64).sum::<u64>());
    assert!(report.notes.altered_turns > 0, "Qwen3 leaves thoughts out of earlier turns");
}

/// deepseek-ai/DeepSeek-R1 #151, unslothai/unsloth #10312: two begin tokens, or none after a blanket fix.
#[test]
fn there_is_exactly_one_begin_token_where_the_model_expects_one() {
    let plain = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    let with_begin = format!("{{{{ bos_token }}}}{plain}");
    // (template writes one, tokenizer_config asks for one, tokenizer.json adds one) -> begin tokens
    for (written, asked, adds, expected) in [
        (false, Some(false), false, 0),
        (false, Some(true), false, 1),
        (true, Some(false), false, 1),
        (true, Some(true), false, 1),
        (false, None, false, 0),
        (false, None, true, 1),
        (true, None, false, 1),
        (true, None, true, 1),
        (true, Some(true), true, 1),
        (false, Some(true), true, 1),
        (false, Some(false), true, 0),
    ] {
        let mut config = config();
        match asked {
            Some(asked) => config["add_bos_token"] = json!(asked),
            None => {
                config.as_object_mut().unwrap().remove("add_bos_token");
            }
        }
        let dir = model(&config);
        if adds {
            let mut tokenizer: Value = serde_json::from_str(TOKENIZER).unwrap();
            let id = Tokenizer::load(dir.path()).unwrap().bos_id().unwrap();
            let single =
                json!([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
            tokenizer["post_processor"] = json!({
                "type": "TemplateProcessing", "single": single, "pair": single,
                "special_tokens": {"<s>": {"id": "<s>", "ids": [id], "tokens": ["<s>"]}}
            });
            fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        }
        let options = text(if written { &with_begin } else { plain });
        let encoder = ChatEncoder::load(dir.path(), options).unwrap();
        let begin = Tokenizer::load(dir.path()).unwrap().bos_id().unwrap();
        let case = format!("template {written}, asked {asked:?}, adds {adds}");
        let check = |encoded: Encoded| {
            assert_eq!(encoded.tokens.iter().filter(|&&id| id == begin).count(), expected, "{case}");
            assert_eq!(encoded.tokens[0] == begin, expected == 1, "{case}");
            assert_eq!(encoded.tokens.len(), encoded.labels.len());
            encoded
        };
        let encoded = check(encoder.encode(&chat(&[(User, "a"), (Assistant, "bc")])).unwrap());
        assert_eq!(learnt(dir.path(), &encoded), "bc</s>", "{case}");
        assert_eq!(encoded.notes.begin_added == 1, expected == 1 && !written, "{case}");
        // A completion has no template: the tokenizer decides.
        let begun = asked.unwrap_or(adds);
        let encoded = encoder.encode_completion("a ", "bc").unwrap();
        assert_eq!(encoded.tokens.iter().filter(|&&id| id == begin).count(), usize::from(begun), "{case}");
        assert_eq!(learnt(dir.path(), &encoded), "bc</s>", "{case}");
        let encoded = encoder.encode_completion("<s>a ", "bc").unwrap();
        assert_eq!(encoded.tokens.iter().filter(|&&id| id == begin).count(), 1, "{case}");
    }
}

/// huggingface/trl #976: with one token for padding and for the end, the end was masked and never learnt.
#[test]
fn the_end_of_a_turn_is_learnt_though_it_is_the_padding_token_too() {
    let mut config = config();
    config["eos_token"] = json!("<|im_end|>");
    config["pad_token"] = json!("<|im_end|>");
    config["chat_template"] = json!(CHATML);
    let dir = model(&config);
    let encoder = ChatEncoder::load(dir.path(), ChatOptions::default()).unwrap();
    for answer in ["b", "a longer one"] {
        let encoded = encoder.encode(&chat(&[(User, "a"), (Assistant, answer)])).unwrap();
        assert_eq!(learnt(dir.path(), &encoded), format!("{answer}<|im_end|>\n"));
        let encoded = encoder.encode_completion("a", answer).unwrap();
        assert_eq!(learnt(dir.path(), &encoded), format!("{answer}<|im_end|>"));
    }
    // Said twice, learnt once.
    let encoded = encoder.encode_completion("a", "b<|im_end|>").unwrap();
    assert_eq!(learnt(dir.path(), &encoded), "b<|im_end|>");
}

/// marin-community/marin #7237, QwenLM/Qwen3 #1522: templates without generation marks gave masks of zeros.
#[test]
fn marks_and_prefixes_find_the_same() {
    let marked = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}\
                  {{ m.content + '<|im_end|>\\n' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}\
                  {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    let mut conversation = chat(&[
        (System, "s"),
        (User, "a"),
        (Assistant, "b"),
        (User, "c"),
        (Assistant, "d"),
        (Assistant, "e"),
        (User, "f"),
    ]);
    let with = |source: &str, train_on| ChatOptions { train_on, ..text(source) };
    let both = |conversation: &Conversation, train_on, expected: &str| {
        assert_eq!(learnt_of(with(CHATML, train_on), conversation), expected, "prefixes, {train_on:?}");
        assert_eq!(learnt_of(with(marked, train_on), conversation), expected, "marks, {train_on:?}");
    };
    let whole = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\
                 <|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n<|im_start|>assistant\ne<|im_end|>\n\
                 <|im_start|>user\nf<|im_end|>\n";
    both(&conversation, TrainOn::Assistant, "b<|im_end|>\n|d<|im_end|>\n|e<|im_end|>\n");
    both(&conversation, TrainOn::LastAssistant, "e<|im_end|>\n");
    both(&conversation, TrainOn::Everything, whole);
    // Cut at the same places.
    let length = encoder(text(CHATML)).encode(&conversation).unwrap().tokens.len();
    for max in 1..=length {
        for too_long in [TooLong::Drop, TooLong::CutLeft, TooLong::CutRight] {
            let cut = |source: &str| {
                let options = ChatOptions { max_tokens: Some(max), too_long, ..text(source) };
                let encoded = encoder(options).encode(&conversation);
                assert!(encoded.as_ref().is_ok_and(|e| e.tokens.len() <= max) || encoded.is_err());
                encoded
            };
            assert_eq!(cut(CHATML), cut(marked), "{max}, {too_long:?}");
        }
    }
    // Messages that say it themselves.
    conversation.messages[4].train = Some(false);
    conversation.messages[1].train = Some(true);
    both(&conversation, TrainOn::Assistant, "a<|im_end|>\n|b<|im_end|>\n|e<|im_end|>\n");
    both(&conversation, TrainOn::LastAssistant, "a<|im_end|>\n|e<|im_end|>\n");
    let without = whole.replace("d<|im_end|>\n", "|");
    both(&conversation, TrainOn::Everything, &without);
}

#[test]
fn templates_that_alter_turns_are_followed() {
    let turns = chat(&[(User, "1"), (Assistant, "<think>\nhm\n</think>\n\none"), (User, "2"), (Assistant, "two")]);
    // Thoughts of earlier turns are left out; the last answer has (empty) ones.
    assert_eq!(learnt_of(named("qwen3"), &turns), "one<|im_end|>\n|<think>\n\n</think>\n\ntwo<|im_end|>\n");
    let no_thoughts =
        ChatOptions { variables: json!({"enable_thinking": false}).as_object().unwrap().clone(), ..named("qwen3") };
    assert_eq!(
        learnt_of(no_thoughts, &turns),
        "one<|im_end|>\n|two<|im_end|>\n",
        "the prompt holds the empty thoughts"
    );
    // The prompt of R1 ends in <think>, which no finished turn has.
    assert_eq!(learnt_of(named("deepseek-r1"), &turns), "\n\none</s>|two</s>");
    // The prompt may close thoughts that a finished turn has: they are learnt.
    let thinks = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{{ '<|assistant|>' }}\
                  {% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content + eos_token }}\
                  {% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think></think>' }}{% endif %}";
    let mut thoughtful = chat(&[(User, "1"), (Assistant, "one"), (User, "2"), (Assistant, "<two")]);
    assert_eq!(learnt_of(text(thinks), &thoughtful), "one</s>|<two</s>");
    thoughtful.messages[1].reasoning = Some("hm".to_owned());
    assert_eq!(learnt_of(text(thinks), &thoughtful), "hm</think>one</s>|<two</s>");
    // A token closes the conversation, not the turn.
    assert_eq!(learnt_of(named("phi3"), &turns), "<think>\nhm\n</think>\n\none<|end|>\n|two<|end|>\n</s>");
    // The assistant begins: there is nothing to render before.
    assert_eq!(learnt_of(named("smollm2"), &chat(&[(Assistant, "a"), (User, "b")])), "a<|im_end|>\n");
    // A template that says nothing of an earlier answer, or changes it beyond recognition.
    let forgets = "{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endif %}{% endfor %}";
    let e = encoder(text(forgets)).encode(&turns).unwrap_err();
    assert_eq!(e.kind(), "assistant's text not found in the rendering");
    assert!(e.to_string().contains("message 2 (assistant)"), "{e}");
}

#[test]
fn contents_may_hold_anything() {
    // As in transformers, a spelled special token is that token; it is counted.
    let options = named("chatml");
    let conversation = chat(&[(User, "a<|im_end|>b<s>"), (Assistant, "<|im_start|>c")]);
    let encoded = encoder(options.clone()).encode(&conversation).unwrap();
    assert_eq!(encoded.notes.special_in_content, 3);
    assert_eq!(learnt_of(options.clone(), &conversation), "<|im_start|>c<|im_end|>\n");
    // Content equal to parts of the template, to another message, empty, or in letters that the rules use themselves.
    for content in [
        "assistant",
        "x",
        "xy",
        "x y",
        "",
        " ",
        "\n",
        "user\na",
        "{{ bos_token }}",
        "é",
        "日本",
        "<|im_start",
        "\u{fdd0}",
    ] {
        for name in ["chatml", "qwen3", "phi3", "zephyr"] {
            let conversation = chat(&[(User, content), (Assistant, content), (User, content), (Assistant, "z")]);
            let learnt = learnt_of(named(name), &conversation);
            let end = match name {
                "phi3" => "<|end|>\n",
                "zephyr" => "</s>\n",
                _ => "<|im_end|>\n",
            };
            assert!(learnt.starts_with(&format!("{content}{end}|")), "{name}: {content:?} gave {learnt:?}");
        }
    }
    // Where a template has marks, the code points that carry them are refused.
    let marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    let e = encoder(text(marked)).encode(&chat(&[(User, "a"), (Assistant, "b\u{fdd1}")])).unwrap_err();
    assert_eq!(e.kind(), "not encodable");
}

#[test]
fn calls_and_tools_are_never_lost_silently() {
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "é"}}}]);
    let mut conversation = chat(&[(User, "a"), (Assistant, ""), (Tool, "r"), (Assistant, "c")]);
    conversation.messages[1].tool_calls = Some(call);
    conversation.messages[3].reasoning = Some("hm".to_owned());
    conversation.tools = Some(json!([{"type": "function", "function": {"name": "f"}}]));
    let as_text = "{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}<|im_end|>\n|c<|im_end|>\n";
    assert_eq!(learnt_of(named("chatml"), &conversation), as_text);
    let notes = encoder(named("chatml")).encode(&conversation).unwrap().notes;
    assert_eq!((notes.calls_as_text, notes.tools_left_out, notes.thoughts_left_out), (1, 1, 1));
    let with_calls = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\n</tool_call><|im_end|>\n|\
                      <think>\nhm\n</think>\n\nc<|im_end|>\n";
    assert_eq!(learnt_of(named("qwen3"), &conversation), with_calls);
    let notes = encoder(named("qwen3")).encode(&conversation).unwrap().notes;
    assert_eq!((notes.calls_as_text, notes.tools_left_out, notes.thoughts_left_out), (0, 0, 0));
    // An empty list of tools is none.
    conversation.tools = Some(json!([]));
    assert_eq!(encoder(named("chatml")).encode(&conversation).unwrap().notes.tools_left_out, 0);
}

#[test]
fn templates_see_which_call_a_tool_answers() {
    let call = json!([{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}]);
    let mut conversation = chat(&[(User, "q"), (Assistant, ""), (Tool, "r"), (Assistant, "a")]);
    conversation.messages[1].tool_calls = Some(call);
    conversation.messages[2].tool_call_id = Some("abcdefghi".to_owned());
    let source =
        "{% for m in messages %}{{ m.role }}:{{ m.tool_calls[0].id if m.tool_calls }}{{ m.tool_call_id }} {% endfor %}";
    let rendered = encoder(text(source)).render(&conversation, false).unwrap();
    assert_eq!(rendered, "user: assistant:abcdefghi tool:abcdefghi assistant: ");
}

#[test]
fn too_long_samples_are_dropped_or_cut_at_turns_and_never_look_whole() {
    let dir = model(&config());
    let conversation = chat(&[
        (System, "s"),
        (User, "one"),
        (Assistant, "first answer"),
        (User, "two"),
        (Assistant, "second answer"),
        (User, "three"),
        (Assistant, "third answer, which is longer than the others"),
    ]);
    let encode = |max, too_long| {
        let options = ChatOptions { max_tokens: Some(max), too_long, ..named("chatml") };
        ChatEncoder::load(dir.path(), options).unwrap().encode(&conversation)
    };
    let whole = encode(10_000, TooLong::Drop).unwrap();
    let length = whole.tokens.len();
    assert_eq!(encode(length, TooLong::Drop).unwrap(), whole);
    assert_eq!(encode(length - 1, TooLong::Drop), Err(SkipReason::TooLong { tokens: length, max: length - 1 }));

    // From the right: a beginning of the whole, ending with a turn.
    let cut = encode(length - 1, TooLong::CutRight).unwrap();
    assert!(whole.tokens.starts_with(&cut.tokens) && whole.labels.starts_with(&cut.labels));
    assert_eq!(learnt(dir.path(), &cut), "first answer<|im_end|>\n|second answer<|im_end|>\n");
    assert_eq!((cut.notes.cut_right, cut.notes.cut_inside), (1, 0));
    assert_eq!(encode(cut.tokens.len(), TooLong::CutRight).unwrap(), cut);
    let shorter = encode(cut.tokens.len() - 1, TooLong::CutRight).unwrap();
    assert_eq!(learnt(dir.path(), &shorter), "first answer<|im_end|>\n");
    // Within the first answer: no end of turn is put there.
    let inside = encode(shorter.tokens.len() - 3, TooLong::CutRight).unwrap();
    assert_eq!(inside.tokens, whole.tokens[..shorter.tokens.len() - 3]);
    assert_eq!((inside.notes.cut_right, inside.notes.cut_inside), (0, 1));
    assert!("first answer".starts_with(&learnt(dir.path(), &inside)));
    assert_eq!(encode(5, TooLong::CutRight).unwrap_err().kind(), "nothing to learn");

    // Where only the last message is to be learnt, ending before it would leave nothing.
    let room = whole.tokens.len() - 5;
    let options = ChatOptions {
        max_tokens: Some(room),
        too_long: TooLong::CutRight,
        train_on: TrainOn::LastAssistant,
        ..named("chatml")
    };
    let last = ChatEncoder::load(dir.path(), options).unwrap().encode(&conversation).unwrap();
    assert_eq!(last.tokens, whole.tokens[..room]);
    assert!("third answer, which is longer than the others".starts_with(&learnt(dir.path(), &last)));

    // From the left: the system message stays, the rest begins with a user's message.
    let cut = encode(length - 1, TooLong::CutLeft).unwrap();
    let expected = chat(&[
        (System, "s"),
        (User, "two"),
        (Assistant, "second answer"),
        (User, "three"),
        (Assistant, "third answer, which is longer than the others"),
    ]);
    let expected = ChatEncoder::load(dir.path(), named("chatml")).unwrap().encode(&expected).unwrap();
    assert_eq!((&cut.tokens, &cut.labels), (&expected.tokens, &expected.labels));
    assert_eq!(cut.notes.cut_left, 1);
    let last = encode(cut.tokens.len() - 1, TooLong::CutLeft).unwrap();
    assert_eq!(learnt(dir.path(), &last), "third answer, which is longer than the others<|im_end|>\n");
    let too_long = SkipReason::TooLong { tokens: length, max: last.tokens.len() - 1 };
    assert_eq!(encode(last.tokens.len() - 1, TooLong::CutLeft), Err(too_long));

    // Completions.
    let encode = |max, too_long| {
        let options = ChatOptions { max_tokens: Some(max), too_long, ..ChatOptions::default() };
        let tokenizer = Arc::new(ByteTokenizer);
        ChatEncoder::new(tokenizer, &ChatFiles::default(), options).unwrap().encode_completion("abcd", "efg")
    };
    let ids = |text: &str| ByteTokenizer.encode(text).unwrap();
    assert_eq!(encode(8, TooLong::Drop).unwrap().tokens, ids("abcdefg<|endoftext|>"));
    assert_eq!(encode(7, TooLong::Drop), Err(SkipReason::TooLong { tokens: 8, max: 7 }));
    assert_eq!(encode(7, TooLong::CutRight).unwrap().tokens, ids("abcdefg"));
    assert_eq!(encode(6, TooLong::CutLeft).unwrap().tokens, ids("cdefg<|endoftext|>"));
    assert_eq!(encode(5, TooLong::CutLeft).unwrap().tokens, ids("defg<|endoftext|>"));
    assert_eq!(encode(4, TooLong::CutLeft), Err(SkipReason::TooLong { tokens: 8, max: 4 }));
    assert_eq!(encode(4, TooLong::CutRight).unwrap_err().kind(), "nothing to learn");
}

#[test]
fn nothing_to_learn_is_said_for_one_and_is_an_error_for_all() {
    let question = Sample::Conversation(Conversation { line: 7, ..chat(&[(User, "a")]) });
    let good = Sample::Conversation(chat(&[(User, "a"), (Assistant, "b")]));
    let chatml = encoder(named("chatml"));
    let (outcomes, report) = chatml.encode_all(&[question.clone(), good.clone()]);
    assert_eq!(outcomes[0].as_ref().unwrap_err().kind(), "nothing to learn");
    report.check().unwrap();
    assert_eq!((report.samples, report.encoded, report.skips.totals["nothing to learn"]), (2, 1, 1));
    let (_, mut report) = chatml.encode_all(std::slice::from_ref(&question));
    let (_, more) = chatml.encode_all(&[question.clone(), question]);
    report.extend(more);
    let e = report.check().unwrap_err().to_string();
    assert!(e.contains("3 of 3 samples left out") && e.contains("line 7") && e.contains("no message"), "{e}");
    assert!(chatml.encode_all(&[]).1.check().unwrap_err().to_string().contains("no samples"));

    // Marks that mark nothing.
    let marks_nothing = "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}";
    assert_eq!(encoder(text(marks_nothing)).encode_sample(&good).unwrap_err().kind(), "nothing to learn");

    // No template at all is an error as soon as a conversation needs one, and names the choices.
    let none = encoder(ChatOptions::default());
    let prompt = Sample::PromptCompletion { prompt: "a".into(), completion: "b".into(), file: 0, line: 1 };
    let (outcomes, report) = none.encode_all(&[prompt, good]);
    assert!(outcomes[0].is_ok());
    let e = report.check().unwrap_err().to_string();
    assert!(e.contains("no chat template of its own") && e.contains("chatml"), "{e}");
}

#[test]
fn templates_are_found_where_models_keep_them() {
    let answer =
        |word: &str| format!("{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{word}{{{{ eos_token }}}}");
    let dir = model(&config());
    let rendered = |dir: &Path, options: ChatOptions, tools: Option<Value>| {
        let conversation = Conversation { tools, ..chat(&[(User, "a"), (Assistant, "b")]) };
        ChatEncoder::load(dir, options).unwrap().render(&conversation, false).unwrap()
    };
    let model_of = || ChatOptions::default();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();

    write("chat_template.json", &json!({"chat_template": answer("json")}).to_string());
    assert_eq!(rendered(dir.path(), model_of(), None), "abjson</s>");
    let mut in_config = config();
    in_config["chat_template"] = json!([
        {"name": "default", "template": answer("config")},
        {"name": "tool_use", "template": answer("tools")},
        {"name": "rag", "template": answer("rag")},
    ]);
    write("tokenizer_config.json", &in_config.to_string());
    assert_eq!(rendered(dir.path(), model_of(), None), "abconfig</s>");
    assert_eq!(rendered(dir.path(), model_of(), Some(json!([{"x": 1}]))), "abtools</s>");
    assert_eq!(rendered(dir.path(), named("rag"), Some(json!([{"x": 1}]))), "abrag</s>");
    in_config["chat_template"] = json!(answer("one"));
    in_config["eos_token"] = json!({"content": "<|end|>", "special": true});
    write("tokenizer_config.json", &in_config.to_string());
    assert_eq!(rendered(dir.path(), model_of(), None), "abone<|end|>");
    write("chat_template.jinja", &answer("jinja"));
    fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", &answer("more"));
    assert_eq!(rendered(dir.path(), model_of(), None), "abjinja<|end|>");
    assert_eq!(rendered(dir.path(), model_of(), Some(json!([{"x": 1}]))), "abmore<|end|>");
    assert!(rendered(dir.path(), named("chatml"), None).starts_with("<|im_start|>"));
    in_config["chat_template"] = json!([{"name": "rag", "template": answer("rag")}]);
    write("tokenizer_config.json", &in_config.to_string());
    let e = ChatEncoder::load(dir.path(), named("rag")).err().unwrap().to_string();
    assert!(e.contains("default, tool_use"), "the newer files are all that counts: {e}");

    // Mistakes name the file, the line and the column.
    write("chat_template.jinja", "{% for m in messages %}\n{{ m.content");
    let e = ChatEncoder::load(dir.path(), model_of()).err().unwrap().to_string();
    assert!(e.contains("chat_template.jinja") && e.contains("line 2, column "), "{e}");
    write("chat_template.jinja", "{% for m in messages %}\n{{ m.content | shout }}{% endfor %}");
    let e = ChatEncoder::load(dir.path(), model_of()).err().unwrap().to_string();
    assert!(e.contains("chat_template.jinja") && e.contains("line 2") && e.contains("shout"), "{e}");
    let e = ChatEncoder::load(dir.path(), named("chatlm")).err().unwrap().to_string();
    assert!(e.contains("\"chatlm\"") && e.contains("chatml") && e.contains("default"), "{e}");
    let settings = ChatOptions { variables: json!({"messages": 1}).as_object().unwrap().clone(), ..named("chatml") };
    assert!(ChatEncoder::load(dir.path(), settings).err().unwrap().to_string().contains("messages"));
    in_config["chat_template"] = json!(5);
    write("tokenizer_config.json", &in_config.to_string());
    fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    fs::remove_dir_all(dir.path().join("additional_chat_templates")).unwrap();
    let e = ChatEncoder::load(dir.path(), model_of()).err().unwrap().to_string();
    assert!(e.contains("tokenizer_config.json") && e.contains("chat_template"), "{e}");
}

#[test]
fn doubts_about_a_template_are_said() {
    let warnings = |options| encoder(options).warnings().join("\n");
    assert_eq!(warnings(named("zephyr")), "");
    assert!(
        warnings(named("chatml")).contains("<|im_end|>, which is not among the tokens"),
        "{}",
        warnings(named("chatml"))
    );
    assert!(warnings(named("phi4")).contains("<|im_end|>"));
    let plain = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    assert!(warnings(text(plain)).contains("without a special token"));
}

#[test]
fn settings_tell_encoders_apart() {
    let base = encoder(named("chatml")).settings();
    assert_eq!(
        base,
        encoder(ChatOptions { now: Some(5), ..named("chatml") }).settings(),
        "this template prints no date"
    );
    for other in [
        named("zephyr"),
        ChatOptions { max_tokens: Some(5), ..named("chatml") },
        ChatOptions { train_on: TrainOn::Everything, ..named("chatml") },
        ChatOptions { too_long: TooLong::CutLeft, ..named("chatml") },
        ChatOptions { variables: json!({"a": 1}).as_object().unwrap().clone(), ..named("chatml") },
    ] {
        assert_ne!(base, encoder(other).settings());
    }
    let dated = |now| encoder(ChatOptions { now: Some(now), ..text("{{ strftime_now('%Y') }}") }).settings();
    assert_ne!(dated(0), dated(86_400 * 400));
}

#[test]
fn other_samples_pass_through() {
    let encoder = encoder(ChatOptions { max_tokens: Some(3), ..ChatOptions::default() });
    let sample = Sample::Text { text: "some text".to_owned(), file: 0, line: 1 };
    let encoded = encoder.encode_sample(&sample).unwrap();
    assert_eq!(encoded.labels, encoded.tokens);
    assert!(encoded.tokens.len() > 3);
    let tokens = Sample::Tokens { tokens: vec![1, 2, 3], labels: vec![-100, 2, -100], file: 0, line: 1 };
    assert_eq!(encoder.encode_sample(&tokens).unwrap().labels, [-100, 2, -100]);
    let masked = Sample::Tokens { tokens: vec![1, 2, 3], labels: vec![1, -100, -100], file: 0, line: 1 };
    assert_eq!(encoder.encode_sample(&masked).unwrap_err().kind(), "nothing to learn", "the first is never predicted");
}

/// Byte-level tokenizers may take spaces out of the places of tokens: one behind the end of a turn would then belong to no
/// text and not be learnt.
#[test]
fn spaces_have_their_places() {
    let dir = model(&config());
    let mut tokenizer: Value = serde_json::from_str(TOKENIZER).unwrap();
    tokenizer["post_processor"] =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let spaced = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + eos_token + ' ' }}{% endfor %}\
                  {% if add_generation_prompt %}<|assistant|>{% endif %}";
    let encoder = ChatEncoder::load(dir.path(), text(spaced)).unwrap();
    let conversation = chat(&[(User, "a "), (Assistant, "b"), (User, " "), (Assistant, " c ")]);
    let encoded = encoder.encode(&conversation).unwrap();
    assert_eq!(learnt(dir.path(), &encoded), "b</s> | c </s> ");
}
