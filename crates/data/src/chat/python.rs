//! What Python makes of values: `str`, `repr`, `json.dumps` and methods of strings. Chat templates are written for
//! Jinja2, where these show in the text.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;
use std::fmt::Write;

/// Nesting beyond which a value is refused, rather than overflow the stack.
const MAX_DEPTH: usize = 128;

fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

/// Python's `str(value)`; nothing for an undefined value, as Jinja2 prints it.
pub(super) fn write_str(out: &mut impl Write, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value, 0),
    }
}

/// [`write_str`] into a string.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_str(&mut out, value)?;
    Ok(out)
}

/// Python's `repr(value)`.
fn write_repr(out: &mut impl Write, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("a value is nested too deeply to be printed"));
    }
    match value.kind() {
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default())?,
        ValueKind::None => out.write_str("None")?,
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" })?,
        ValueKind::Number => write_number(out, value)?,
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ")") } else { ('[', "]") };
            out.write_char(open)?;
            let mut count = 0;
            for item in value.try_iter()? {
                out.write_str(if count > 0 { ", " } else { "" })?;
                write_repr(out, &item, depth + 1)?;
                count += 1;
            }
            out.write_str(if value.is_tuple() && count == 1 { "," } else { "" })?;
            out.write_str(close)?;
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (i, key) in value.try_iter()?.enumerate() {
                out.write_str(if i > 0 { ", " } else { "" })?;
                write_repr(out, &key, depth + 1)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.write_char('}')?;
        }
        ValueKind::Undefined => out.write_str("Undefined")?,
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

/// A string between single quotes, or double ones where only single ones occur in it.
fn write_str_repr(out: &mut impl Write, text: &str) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if (c as u32) < 0x100 && (c.is_control() || matches!(c, '\u{a0}' | '\u{ad}')) => {
                write!(out, "\\x{:02x}", c as u32)?
            }
            '\u{1680}'
            | '\u{2000}'..='\u{200f}'
            | '\u{2028}'..='\u{202f}'
            | '\u{205f}'..='\u{206f}'
            | '\u{3000}'
            | '\u{feff}'
            | '\u{e000}'..='\u{f8ff}' => write!(out, "\\u{:04x}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)?;
    Ok(())
}

/// A number as Python prints it: floats with the fewest digits that read back equal, exponents from 1e16 on and below
/// 1e-4.
fn write_number(out: &mut impl Write, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        return write!(out, "{value}").map_err(Error::from);
    }
    let x = f64::try_from(value.clone())?;
    if x.is_nan() {
        out.write_str("nan")?;
    } else if x.is_infinite() {
        out.write_str(if x > 0.0 { "inf" } else { "-inf" })?;
    } else {
        let scientific = format!("{x:e}");
        let (digits, exponent) = scientific.split_once('e').expect("Rust writes an exponent");
        let exponent: i32 = exponent.parse().expect("an exponent is a number");
        if (-4..16).contains(&exponent) {
            write!(out, "{x:?}")?;
        } else {
            let sign = if exponent < 0 { '-' } else { '+' };
            write!(out, "{digits}e{sign}{:02}", exponent.abs())?;
        }
    }
    Ok(())
}

/// How `json.dumps` is to write.
pub(super) struct JsonStyle {
    /// Everything beyond ASCII as `\uXXXX`.
    pub ensure_ascii: bool,
    /// What one level is indented by; none: everything on one line.
    pub indent: Option<String>,
    /// Between items.
    pub item_separator: String,
    /// Between a key and its value.
    pub key_separator: String,
    /// Keys by code points instead of in order.
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        let (item_separator, key_separator) = (", ".to_owned(), ": ".to_owned());
        JsonStyle { ensure_ascii: false, indent: None, item_separator, key_separator, sort_keys: false }
    }
}

impl JsonStyle {
    /// From the keywords of the `tojson` filter that transformers defines: `ensure_ascii=False, indent=None,
    /// separators=None, sort_keys=False`, also by place.
    pub fn from_args(args: Rest<Value>, kwargs: Kwargs) -> Result<JsonStyle, Error> {
        let (ascii, indent, separators, sort) = from_args(&args)?;
        let or = |place: Option<Value>, name: &str| -> Result<Value, Error> {
            Ok(match place {
                Some(value) => value,
                None => kwargs.get::<Option<Value>>(name)?.unwrap_or_default(),
            })
        };
        let set = |value: Value| !value.is_undefined() && !value.is_none();
        let ensure_ascii = or(ascii, "ensure_ascii")?.is_true();
        let indent = match or(indent, "indent")? {
            value if !set(value.clone()) => None,
            value => match value.as_str() {
                Some(text) => Some(text.to_owned()),
                None => Some(" ".repeat(i64::try_from(value)?.clamp(0, 64) as usize)),
            },
        };
        let separators = or(separators, "separators")?;
        let (item_separator, key_separator) = if set(separators.clone()) {
            let pair: Vec<Value> = separators.try_iter()?.collect();
            let [item, key] = &pair[..] else { return Err(invalid("tojson: separators are two texts")) };
            (to_str(item)?, to_str(key)?)
        } else {
            (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
        };
        let sort_keys = or(sort, "sort_keys")?.is_true();
        kwargs.assert_all_used()?;
        Ok(JsonStyle { ensure_ascii, indent, item_separator, key_separator, sort_keys })
    }

    /// Python's `json.dumps(value)`.
    pub fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(&mut out, value, 0)?;
        Ok(out)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("a value is nested too deeply to be printed"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Number => {
                let mut number = String::new();
                write_number(&mut number, value)?;
                out.push_str(match &number[..] {
                    "nan" => "NaN",
                    "inf" => "Infinity",
                    "-inf" => "-Infinity",
                    number => number,
                });
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items(out, depth, ['[', ']'], &items, |out, item| self.write(out, item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(out, depth, ['{', '}'], &keys, |out, key| {
                    match key.kind() {
                        ValueKind::String => self.write_text(out, key.as_str().unwrap_or_default()),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                            out.push('"');
                            self.write(out, key, depth + 1)?;
                            out.push('"');
                        }
                        kind => return Err(invalid(format!("tojson: a key of type {kind}"))),
                    }
                    out.push_str(&self.key_separator);
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("tojson: a value of type {kind} has no JSON"))),
        }
        Ok(())
    }

    fn write_items(
        &self,
        out: &mut String,
        depth: usize,
        brackets: [char; 2],
        items: &[Value],
        mut item: impl FnMut(&mut String, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |out: &mut String, depth: usize| {
            if let Some(indent) = self.indent.as_ref().filter(|_| !items.is_empty()) {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(brackets[0]);
        for (i, value) in items.iter().enumerate() {
            out.push_str(if i > 0 { &self.item_separator } else { "" });
            line(out, depth + 1);
            item(out, value)?;
        }
        line(out, depth);
        out.push(brackets[1]);
        Ok(())
    }

    fn write_text(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// What `str.strip()` takes off: Unicode's white space and the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip`, `lstrip` and `rstrip` by `(left, right)`.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, (left, right): (bool, bool)) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right { text.trim_end_matches(drop) } else { text }
}

/// `str.split` and `rsplit`: at a separator, or without one at runs of white space, at most `limit` times.
fn split(text: &str, separator: Option<&str>, limit: usize, from_right: bool) -> Result<Vec<Value>, Error> {
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        Some("") => return Err(invalid("split: the separator is empty")),
        Some(separator) if from_right => parts.extend(text.rsplitn(limit.saturating_add(1), separator)),
        Some(separator) => parts.extend(text.splitn(limit.saturating_add(1), separator)),
        None => {
            // White space is taken off on the side where the next part is looked for, so the remainder keeps the other's.
            let mut rest = strip(text, None, (!from_right, from_right));
            while !rest.is_empty() {
                let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
                let (part, left) = match cut.filter(|_| parts.len() < limit) {
                    None => (rest, ""),
                    Some(at) if from_right => {
                        let width = rest[at..].chars().next().map_or(0, char::len_utf8);
                        (&rest[at + width..], strip(&rest[..at], None, (false, true)))
                    }
                    Some(at) => (&rest[..at], strip(&rest[at..], None, (true, false))),
                };
                parts.push(part);
                rest = left;
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `str.splitlines`.
fn split_lines(text: &str, keep_ends: bool) -> Vec<Value> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest.find(is_end);
        let width = end.map_or(0, |end| match rest[end..].starts_with("\r\n") {
            true => 2,
            false => rest[end..].chars().next().map_or(0, char::len_utf8),
        });
        let end = end.unwrap_or(rest.len());
        lines.push(Value::from(&rest[..if keep_ends { end + width } else { end }]));
        rest = &rest[end + width..];
    }
    lines
}

/// Methods of Python's `str` that minijinja's own set lacks or does differently; all others are left to that set.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else { return pycompat::unknown_method_callback(state, value, name, args) };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(Value::from(strip(text, chars, (name != "rstrip", name != "lstrip"))))
        }
        "split" | "rsplit" => {
            let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = match separator {
                Some(value) => Some(value),
                None => kwargs.get("sep")?,
            };
            let limit = match limit {
                Some(limit) => Some(limit),
                None => kwargs.get("maxsplit")?,
            };
            kwargs.assert_all_used()?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
            let separator = separator.filter(|value| !value.is_none());
            let separator = separator.as_ref().map(|value| value.as_str().ok_or_else(|| invalid("split: not a text")));
            split(text, separator.transpose()?, limit, name == "rsplit").map(Value::from)
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            Ok(Value::from(split_lines(text, keep_ends.unwrap_or(false))))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let right = name == "rpartition";
            let cut = if right { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match cut {
                Some((before, after)) => [before, separator, after],
                None if right => ["", "", text],
                None => [text, "", ""],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from))))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "isspace" => {
            let () = from_args(args)?;
            Ok(Value::from(!text.is_empty() && text.chars().all(is_space)))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}
