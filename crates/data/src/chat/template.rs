//! A chat template: Jinja2 as transformers runs it, rendered to text and the places of its generation marks.

use super::date;
use super::python::{self, JsonStyle};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use std::collections::BTreeMap;
use std::ops::Range;

/// Written around the output of a generation block and taken out again: code points that Unicode keeps free of
/// characters. A conversation that holds one is refused where it would matter.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];
const MAIN: &str = "chat template";

/// A template that has been read and found free of mistakes of grammar.
pub(super) struct Template {
    env: Environment<'static>,
    /// The template as its file has it.
    pub source: String,
    /// Whether it has `{% generation %}` blocks.
    pub has_marks: bool,
    /// Whether it looks at `tools`.
    pub uses_tools: bool,
}

/// What a template made of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Rendered {
    /// The text.
    pub text: String,
    /// Bytes of `text` that came from generation blocks, in order.
    pub marks: Vec<Range<usize>>,
}

/// Why a template rendered nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RenderError {
    /// What is wrong, and where.
    pub problem: String,
    /// The template asks for what does not exist, whatever the conversation.
    pub is_mistake: bool,
}

impl std::fmt::Display for RenderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem)
    }
}

impl From<Error> for RenderError {
    fn from(error: Error) -> RenderError {
        let is_mistake = matches!(
            error.kind(),
            ErrorKind::UnknownFilter
                | ErrorKind::UnknownTest
                | ErrorKind::UnknownFunction
                | ErrorKind::TemplateNotFound
        );
        RenderError { problem: describe(&error), is_mistake }
    }
}

/// Everything that a template sees besides the messages, by name.
pub(super) type Variables = BTreeMap<String, Value>;

impl Template {
    /// Reads a template. `now` (seconds since 1970) is what `strftime_now` formats, in UTC. The error says what is wrong,
    /// in which line and column.
    pub fn new(source: &str, now: i64) -> Result<Template, String> {
        let (rewritten, has_marks) = rewrite_generation(source);
        let mut env = environment(now);
        env.set_debug(true);
        env.add_template_owned(MAIN, rewritten).map_err(|e| describe(&e))?;
        env.set_debug(false);
        let template = env.get_template(MAIN).map_err(|e| describe(&e))?;
        let uses_tools = template.undeclared_variables(false).contains("tools");
        Ok(Template { env, source: source.to_owned(), has_marks, uses_tools })
    }

    /// Renders messages. `variables` are special tokens and settings; `tools` and `documents` stay none where absent.
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Variables,
    ) -> Result<Rendered, RenderError> {
        let mut context: BTreeMap<&str, Value> = BTreeMap::from([("tools", Value::from(())), ("documents", ().into())]);
        context.extend(variables.iter().map(|(name, value)| (name.as_str(), value.clone())));
        context.insert("messages", Value::from(messages.to_vec()));
        context.insert("add_generation_prompt", Value::from(add_generation_prompt));
        let text = self.env.get_template(MAIN)?.render(Value::from_pairs(context))?;
        if !self.has_marks {
            return Ok(Rendered { text, marks: Vec::new() });
        }
        let problem = "the template cuts through the output of a generation block";
        take_marks(&text).ok_or_else(|| RenderError { problem: problem.to_owned(), is_mistake: false })
    }

    /// Whether the template's source has a word: a guess at what it makes use of.
    pub fn mentions(&self, word: &str) -> bool {
        self.source.contains(word)
    }

    /// The code points that a conversation must not hold where the template marks what is generated.
    pub fn reserved(&self) -> &'static [char] {
        if self.has_marks { &MARKS } else { &[] }
    }
}

/// A JSON value as templates see it: keys in order, whole numbers and others apart.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(yes) => Value::from(*yes),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), from_json(value)))),
    }
}

/// Replaces `{% generation %}`, which only transformers knows, by a filter that marks what it encloses; what is set inside
/// stays inside, as there.
fn rewrite_generation(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(length) = tag.find("%}") else { break };
        let inner = &tag[2..length];
        let (open, body) = match inner.strip_prefix(['-', '+']) {
            Some(body) => (&inner[..1], body),
            None => ("", inner),
        };
        let (body, close) = match body.strip_suffix(['-', '+']) {
            Some(short) => (short, &body[short.len()..]),
            None => (body, ""),
        };
        let replacement = match body.trim() {
            "generation" => Some(["filter _generation", "with"]),
            "endgeneration" => Some(["endwith", "endfilter"]),
            _ => None,
        };
        match replacement {
            Some([first, second]) => {
                found = true;
                out.push_str(&format!("{{%{open} {first} %}}{{% {second} {close}%}}"));
                rest = &tag[length + 2..];
            }
            // Only the opening is passed: a string inside the tag may hold another.
            None => {
                out.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    out.push_str(rest);
    (out, found)
}

/// Takes the marks out of a text. Blocks within blocks count as the outermost.
fn take_marks(marked: &str) -> Option<Rendered> {
    let mut rendered = Rendered::default();
    let (mut depth, mut start) = (0usize, 0);
    for c in marked.chars() {
        if c == MARKS[0] {
            if depth == 0 {
                start = rendered.text.len();
            }
            depth += 1;
        } else if c == MARKS[1] {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                rendered.marks.push(start..rendered.text.len());
            }
        } else {
            rendered.text.push(c);
        }
    }
    (depth == 0).then_some(rendered)
}

/// What is wrong, with line and column where the template's place is known.
fn describe(error: &Error) -> String {
    let mut text = match error.kind() {
        // Raised by the template itself: its own words are enough.
        ErrorKind::InvalidOperation if error.detail().is_some() => String::new(),
        kind => kind.to_string(),
    };
    if let Some(detail) = error.detail() {
        text = if text.is_empty() { detail.to_owned() } else { format!("{text}: {detail}") };
    }
    let Some(line) = error.line() else { return text };
    let column = error.template_source().zip(error.range()).and_then(|(source, range)| {
        let before = source.get(..range.start)?;
        Some(before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1)
    });
    match column {
        Some(column) => format!("line {line}, column {column}: {text}"),
        None => format!("line {line}: {text}"),
    }
}

/// Jinja2 with the settings, filters and functions that transformers gives to templates.
fn environment(now: i64) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().expect("the usual delimiters"),
    );
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(|out, _, value| python::write_str(out, value));
    env.set_unknown_method_callback(python::method);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", move |format: String| {
        date::strftime(now, &format)
            .map_err(|code| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: no code {code}")))
    });
    env.add_filter("_generation", |text: &Value| -> Result<String, Error> {
        Ok(format!("{}{}{}", MARKS[0], python::to_str(text)?, MARKS[1]))
    });
    env.add_filter("tojson", |value: &Value, args: Rest<Value>, kwargs: Kwargs| {
        JsonStyle::from_args(args, kwargs)?.dumps(value)
    });
    env.add_filter("string", |value: &Value| python::to_str(value));
    env.add_filter("trim", |value: &Value, chars: Option<&str>| -> Result<String, Error> {
        Ok(python::strip(&python::to_str(value)?, chars, (true, true)).to_owned())
    });
    env.add_filter("join", join);
    let holds_items = |value: &Value| {
        let kinds = [ValueKind::Seq, ValueKind::Iterable, ValueKind::Map, ValueKind::String, ValueKind::Undefined];
        kinds.contains(&value.kind())
    };
    env.add_test("sequence", holds_items);
    env.add_test("iterable", holds_items);
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain && value.as_object().is_some());
    env
}

/// Jinja2's `join(d="", attribute=None)`.
fn join(value: &Value, separator: Option<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let separator = match separator {
        Some(separator) => Some(separator),
        None => kwargs.get("d")?,
    };
    let separator = separator.map_or(Ok(String::new()), |value| python::to_str(&value))?;
    let attribute: Option<Value> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        let item = match &attribute {
            Some(attribute) => item.get_item(attribute)?,
            None => item,
        };
        python::write_str(&mut out, &item)?;
    }
    Ok(out)
}
