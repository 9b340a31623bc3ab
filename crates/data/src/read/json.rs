//! JSON values of a file one by one, each with the line it begins on: of an array or a value a line, in bounded memory.

use super::bytes::{self, Bytes};
use crate::error::{self, Error};
use serde_json::Value;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

/// A record longer than this is taken for a file without line breaks.
const MAX_RECORD_BYTES: usize = 256 << 20;

/// A value and the line it begins on, counted from 1.
pub(super) type Row = (u64, Value);

/// Why a value could not be had.
#[derive(Debug)]
pub(super) enum Broken {
    /// This value is no good, what follows may be.
    Value { line: u64, kind: &'static str, problem: String },
    /// Nothing can be read from here on.
    File(Error),
}

/// The values of a JSON file.
pub(super) struct JsonRows {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    shape: Shape,
    /// Bytes of the file consumed, the byte order mark among them.
    offset: u64,
    /// The line that the next byte is on.
    line: u64,
    /// The text of one value.
    text: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Lines,
    /// In an array: whether any element was read, so that a comma comes before the next.
    Array {
        begun: bool,
    },
    /// Behind the end of an array.
    End,
}

impl JsonRows {
    /// Looks at the first byte that is no space: a bracket begins an array, anything else lines.
    pub(super) fn new(path: &Path, bytes: Bytes) -> Result<JsonRows, Error> {
        let Bytes { reader, mark_bytes } = bytes;
        let text = Vec::new();
        let mut rows =
            JsonRows { path: path.to_owned(), reader, shape: Shape::Lines, offset: mark_bytes, line: 1, text };
        match rows.skip_space().map_err(error::io(path, "reading"))? {
            None => return Err(error::file(path, "the file is empty; remove it or leave it out")),
            Some(b'<') => return Err(error::file(path, "this is a web page, not data; download the file itself")),
            Some(b'[') => {
                rows.consume(1);
                rows.shape = Shape::Array { begun: false };
                if rows.skip_space().map_err(error::io(path, "reading"))? == Some(b']') {
                    return Err(error::file(path, "the array has no records; remove the file or leave it out"));
                }
            }
            Some(_) => {}
        }
        Ok(rows)
    }

    /// The next value.
    pub(super) fn next_row(&mut self) -> Option<Result<Row, Broken>> {
        match self.shape {
            Shape::Lines => self.next_line(),
            Shape::Array { begun } => self.next_element(begun),
            Shape::End => None,
        }
    }

    fn next_line(&mut self) -> Option<Result<Row, Broken>> {
        loop {
            let (line, offset) = (self.line, self.offset);
            self.text.clear();
            let mut limited = (&mut self.reader).take(MAX_RECORD_BYTES as u64 + 1);
            let count = match limited.read_until(b'\n', &mut self.text) {
                Ok(count) => count,
                Err(e) => return Some(Err(Broken::File(error::io(&self.path, "reading")(e)))),
            };
            if count == 0 {
                return None;
            }
            self.offset += count as u64;
            let ended = self.text.last() == Some(&b'\n');
            if !ended && count > MAX_RECORD_BYTES {
                return Some(Err(self.too_long(line)));
            }
            self.line += 1;
            self.text.truncate(self.text.trim_ascii_end().len());
            if !self.text.is_empty() {
                let cut = if ended { "" } else { "; is it cut off?" };
                let hint = format!("; a record must be whole on its line, unless the file is one array{cut}");
                return Some(self.parse(line, offset, &hint));
            }
        }
    }

    fn next_element(&mut self, begun: bool) -> Option<Result<Row, Broken>> {
        match self.element_text(begun) {
            Ok(Some((line, offset))) => Some(self.parse(line, offset, "")),
            Ok(None) => None,
            Err(broken) => Some(Err(broken)),
        }
    }

    /// Puts the next element's text into `self.text`: its line and offset, or None behind the last one.
    fn element_text(&mut self, begun: bool) -> Result<Option<(u64, u64)>, Broken> {
        self.text.clear();
        let mut next = self.space()?;
        if begun {
            match next {
                Some(b',') => {
                    self.consume(1);
                    next = self.space()?;
                    if next == Some(b']') {
                        return Err(self.fault(self.line, "not valid JSON: a comma before the array's end"));
                    }
                }
                Some(b']') => {
                    self.consume(1);
                    self.shape = Shape::End;
                    return match self.space()? {
                        None => Ok(None),
                        Some(_) => Err(self.fault(self.line, "not valid JSON: something follows the array's end")),
                    };
                }
                Some(_) => return Err(self.fault(self.line, "not valid JSON: a comma is missing between records")),
                None => {}
            }
        }
        if next.is_none() {
            let problem = "not valid JSON: the file ends inside the array; is it cut off?";
            return Err(self.fault(self.line, problem));
        }
        self.shape = Shape::Array { begun: true };
        let (line, offset) = (self.line, self.offset);
        let mut extent = Extent::default();
        while !extent.ended {
            let buffer = self.reader.fill_buf().map_err(|e| Broken::File(error::io(&self.path, "reading")(e)))?;
            if buffer.is_empty() {
                let problem = "not valid JSON: the file ends inside this record; is it cut off?";
                return Err(self.fault(line, problem));
            }
            let count = extent.advance(buffer);
            self.text.extend_from_slice(&buffer[..count]);
            self.consume(count);
            if self.text.len() > MAX_RECORD_BYTES {
                return Err(self.too_long(line));
            }
        }
        Ok(Some((line, offset)))
    }

    fn parse(&self, line: u64, offset: u64, hint: &str) -> Result<Row, Broken> {
        let text = bytes::utf8(&self.text, line, offset).map_err(|e| Broken::Value {
            line: e.line,
            kind: "not UTF-8",
            problem: e.problem,
        })?;
        serde_json::from_str(text).map(|value| (line, value)).map_err(|e| Broken::Value {
            line: line + (e.line() as u64).saturating_sub(1),
            kind: "invalid JSON",
            problem: format!("not valid JSON: {}{}", reason(&e), if e.is_eof() { hint } else { advice(text, &e) }),
        })
    }

    /// Consumes white space; the byte behind it, unconsumed.
    fn skip_space(&mut self) -> io::Result<Option<u8>> {
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let spaces = buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
            let next = buffer.get(spaces).copied();
            self.consume(spaces);
            if next.is_some() {
                return Ok(next);
            }
        }
    }

    fn space(&mut self) -> Result<Option<u8>, Broken> {
        self.skip_space().map_err(|e| Broken::File(error::io(&self.path, "reading")(e)))
    }

    /// Consumes bytes of the reader's buffer.
    fn consume(&mut self, count: usize) {
        if count > 0 {
            let buffer = self.reader.fill_buf().unwrap_or_default();
            self.line += buffer[..count].iter().filter(|&&b| b == b'\n').count() as u64;
            self.offset += count as u64;
            self.reader.consume(count);
        }
    }

    fn fault(&self, line: u64, problem: &str) -> Broken {
        Broken::File(error::line(&self.path, line, problem))
    }

    fn too_long(&self, line: u64) -> Broken {
        let problem = format!("this record is longer than {} MiB; are line breaks missing?", MAX_RECORD_BYTES >> 20);
        self.fault(line, &problem)
    }
}

/// Finds the end of a JSON value byte by byte, with no more understanding than that takes.
#[derive(Default, Debug)]
struct Extent {
    depth: u32,
    in_string: bool,
    escaped: bool,
    started: bool,
    ended: bool,
}

impl Extent {
    /// How many of these bytes belong to the value; sets `ended` if it ends among them or just before the next.
    fn advance(&mut self, bytes: &[u8]) -> usize {
        for (i, &byte) in bytes.iter().enumerate() {
            if self.escaped {
                self.escaped = false;
            } else if self.in_string {
                match byte {
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            self.ended = true;
                            return i + 1;
                        }
                    }
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    // Unbalanced ones at the outermost level end a bare word or number.
                    b'}' | b']' if self.depth > 0 => {
                        self.depth -= 1;
                        if self.depth == 0 {
                            self.ended = true;
                            return i + 1;
                        }
                    }
                    b']' | b',' | b' ' | b'\n' | b'\r' | b'\t' if self.depth == 0 && self.started => {
                        self.ended = true;
                        return i;
                    }
                    _ => {}
                }
            }
            self.started = true;
        }
        bytes.len()
    }
}

/// What to do about frequent mistakes, by what stands where the parser stopped.
fn advice(text: &str, error: &serde_json::Error) -> &'static str {
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
    let rest = line.get(error.column().saturating_sub(1)..).unwrap_or_default();
    let begins = |words: &[&str]| words.iter().any(|word| rest.starts_with(word));
    if begins(&["'"]) {
        "; JSON has double quotes"
    } else if begins(&["NaN", "Infinity", "None"]) {
        "; JSON has no NaN, Infinity or None: write null"
    } else if begins(&["True", "False"]) {
        "; JSON writes true and false"
    } else if error.to_string().starts_with("trailing characters") {
        "; a line holds one record"
    } else if error.to_string().starts_with("control character") {
        "; JSON writes it as \\n, \\t or \\u0000"
    } else {
        ""
    }
}

/// The parser's reason without its position, which is relative to the record.
pub(super) fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    format!("{} (column {})", &text[..end], error.column())
}

/// What a JSON value is, for messages.
pub(super) fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
