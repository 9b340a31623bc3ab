//! The bytes of a file: unpacked, counted, without a byte order mark, and text as UTF-8 or an error that says where not.

use super::files::Packing;
use super::zstd::Zstd;
use crate::error::{self, Error};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BUFFER_BYTES: usize = 256 << 10;

/// Bytes of files read so far, as they lie on disk: for progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Counter(Arc<AtomicU64>);

impl Counter {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A file whose reading is counted.
pub(super) struct Counted {
    file: File,
    counter: Counter,
}

impl Counted {
    pub(super) fn open(path: &Path, counter: &Counter) -> Result<Counted, Error> {
        let file = File::open(path).map_err(error::io(path, "opening"))?;
        Ok(Counted { file, counter: counter.clone() })
    }
}

#[cfg(feature = "arrow")]
impl io::Seek for Counted {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.counter.add(count as u64);
        Ok(count)
    }
}

/// An open text file.
pub(super) struct Bytes {
    pub reader: Box<dyn BufRead + Send>,
    /// Bytes of the byte order mark that was passed over.
    pub mark_bytes: u64,
}

/// Opens a text file behind its byte order mark.
pub(super) fn open(path: &Path, packing: Packing, counter: &Counter) -> Result<Bytes, Error> {
    let file = BufReader::with_capacity(BUFFER_BYTES, Counted::open(path, counter)?);
    let unpacked: Box<dyn Read + Send> = match packing {
        Packing::None => Box::new(file),
        Packing::Gzip => Box::new(Unpacked { reader: flate2::bufread::MultiGzDecoder::new(file), kind: "gzip" }),
        Packing::Zstd => Box::new(Unpacked { reader: Zstd::new(file), kind: "Zstandard" }),
    };
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, unpacked);
    // Whole marks come in the first read, unless a packed file begins with a block of one or two bytes.
    let start = reader.fill_buf().map_err(error::io(path, "reading"))?;
    if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
        return Err(error::file(path, "this is UTF-16; convert it to UTF-8"));
    }
    if let Some(problem) = no_text(start) {
        return Err(error::file(path, problem));
    }
    let mark_bytes = if start.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    reader.consume(mark_bytes);
    Ok(Bytes { reader: Box::new(reader), mark_bytes: mark_bytes as u64 })
}

/// What a file is that begins like this, if it is no text and it shows.
fn no_text(start: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 6] = [
        (
            b"version https://git-lfs",
            "this is a Git LFS pointer, not the file itself; run `git lfs pull` to fetch that",
        ),
        (b"\x1f\x8b", "this is packed with gzip; name it .jsonl.gz, .json.gz or .txt.gz"),
        (b"\x28\xb5\x2f\xfd", "this is packed with Zstandard; name it .jsonl.zst, .json.zst or .txt.zst"),
        (b"PK\x03\x04", "this is a ZIP archive; unpack it"),
        (b"PAR1", "this is a Parquet table; name it .parquet"),
        (b"\0\0\0\0", "the file begins with zeros, as after a copy that failed; copy or download it again"),
    ];
    known.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, problem)| *problem)
}

/// A decoder whose failures are those of the file, and say so.
struct Unpacked<R> {
    reader: R,
    kind: &'static str,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer).map_err(|e| match e.raw_os_error() {
            Some(_) => e,
            None if e.kind() == io::ErrorKind::Unsupported => e,
            None => {
                let kind = self.kind;
                let problem =
                    format!("this is no {kind} file, or it is damaged or cut off ({e}); copy or download it again");
                io::Error::new(e.kind(), problem)
            }
        })
    }
}

/// Bytes that are not UTF-8.
#[derive(Debug)]
pub(super) struct NotUtf8 {
    /// Line of the file, counted from 1.
    pub line: u64,
    pub problem: String,
}

/// Text, or where it is not: `line` and `offset` are those of its first byte in the file.
pub(super) fn utf8(bytes: &[u8], line: u64, offset: u64) -> Result<&str, NotUtf8> {
    std::str::from_utf8(bytes).map_err(|e| {
        let good = &bytes[..e.valid_up_to()];
        let problem = format!(
            "byte {} of the file ({:#04x}) is not UTF-8; convert the file to UTF-8",
            offset + good.len() as u64,
            bytes.get(good.len()).copied().unwrap_or_default()
        );
        NotUtf8 { line: line + good.iter().filter(|&&b| b == b'\n').count() as u64, problem }
    })
}
