//! Bytes to text: UTF-8 with or without a byte order mark, and nothing else.

use crate::error::{self, Error};
use std::path::Path;

/// The text of a file; bytes that are not UTF-8 are an error with line and byte offset.
pub(super) fn decode<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, Error> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(error::file(path, "this is UTF-16; convert it to UTF-8"));
    }
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let body = bytes.strip_prefix(MARK).unwrap_or(bytes);
    std::str::from_utf8(body).map_err(|e| {
        let good = &body[..e.valid_up_to()];
        let line = 1 + good.iter().filter(|&&b| b == b'\n').count() as u64;
        let offset = bytes.len() - body.len() + good.len();
        let problem = format!(
            "byte {offset} of the file ({:#04x}) is not UTF-8; convert the file to UTF-8",
            body.get(good.len()).copied().unwrap_or_default()
        );
        error::line(path, line, problem)
    })
}
