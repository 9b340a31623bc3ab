//! Rows of things that are wrong, each with the whole message that a person reads.

use super::Scene;
use super::rows::FORBIDDEN;

/// What is wrong, how it comes about, the arguments, and the message after `error: ` (`@`: the scene's directory).
pub type Row = (&'static str, fn(&Scene), &'static str, &'static str);

/// `{see}` in arguments: records in `data.jsonl`.
const SEE: &str = "data preview --model @/model --data @/data.jsonl";

/// `{chat}` in arguments: the same for a model with 256 positions and a tokenizer that has the tokens of ChatML.
const CHAT: &str = "data preview --model @/model --data @/data.jsonl --template chatml";

/// A conversation that is good.
pub const GOOD: &str =
    r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}"#;

/// Runs every row inside this process and reports all whose message is another.
pub fn check(rows: &[Row]) {
    let mut failures = String::new();
    for (what, spoil, args, message) in rows {
        let scene = Scene::new();
        spoil(&scene);
        let error = scene.run(&args.replace("{see}", SEE).replace("{chat}", CHAT)).err();
        let error = error.unwrap_or_else(|| "it succeeded".into());
        if error != scene.fill(&format!("error: {message}")) || FORBIDDEN.iter().any(|f| error.contains(f)) {
            let here = scene.fill("@");
            failures +=
                &format!("\n{what} ({args})\n    got    {}\n    wanted error: {message}\n", error.replace(&here, "@"));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

pub fn jsonl(scene: &Scene, bytes: impl AsRef<[u8]>) {
    scene.write("data.jsonl", bytes);
}

/// The record in a model that chats.
pub fn chat(scene: &Scene, record: &str) {
    scene.chat_model();
    jsonl(scene, record);
}
