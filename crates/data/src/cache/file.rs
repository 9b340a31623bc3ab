//! A token file: how it lies on disk, and how it is written and read. All numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 64 | format and version, as a line |
//! | 4 each | words: of each document its tokens and, if it has any, its labels |
//! | 32 each | entries: where a document's words begin and how many tokens it has, line (64 bits each), file, labelled or not (32 bits each) |
//! | | the caller's note |
//! | 48 | key (128 bits); how many words, entries, bytes of the note and files there are (64 bits each) |
//! | 16 | checksum of all that comes before |

use super::key::CacheKey;
use crate::document::{Documents, Entry};
use crate::words::{self, Words};
use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use twox_hash::XxHash3_128;

/// Format and version; raised when the layout changes, or what documents are made of.
pub(super) const MAGIC: &str = "megatrain-tokens 2";

const HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = 32;
const TAIL_BYTES: usize = 48 + 16;

/// What is written at a time, at the least.
const PIECE_BYTES: usize = 1 << 20;

/// What may wait to reach the disk. So the wait at the end is short, and a full disk is noticed in time.
const UNSYNCED_BYTES: usize = 256 << 20;

/// What is hashed between two reports of progress.
const HASHED_BYTES: usize = 16 << 20;

fn head() -> [u8; HEAD_BYTES] {
    let mut head = [b' '; HEAD_BYTES];
    head[..MAGIC.len()].copy_from_slice(MAGIC.as_bytes());
    head[HEAD_BYTES - 1] = b'\n';
    head
}

/// A file whose name is gone when this is dropped, unless it got another.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing is lost if it stays: old ones are removed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A token file that is being written, under a name that no other writer has.
pub(super) struct Writer {
    file: File,
    name: Temporary,
    hash: Box<XxHash3_128>,
    pending: Vec<u8>,
    /// Words in the file.
    words: u64,
    /// The hash before anything came behind them.
    words_sum: Option<u128>,
    unsynced_bytes: usize,
}

impl Writer {
    /// Begins a file in a folder.
    pub fn create(folder: &Path) -> io::Result<Writer> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        std::fs::create_dir_all(folder)?;
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        // The data may lie where nobody else can read it.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let (file, name) = loop {
            // Another machine that shares the folder may have the same process id.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{}-{number}.new", std::process::id()));
            match options.open(&path) {
                Ok(file) => break (file, Temporary(path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        };
        // So that others see that it is being written. Where that cannot be, they see it by its age.
        let _ = file.try_lock();
        let hash = Box::new(XxHash3_128::new());
        let mut writer = Writer { file, name, hash, pending: Vec::new(), words: 0, words_sum: None, unsynced_bytes: 0 };
        writer.pending.extend(head());
        writer.flush()?;
        Ok(writer)
    }

    pub fn path(&self) -> &Path {
        &self.name.0
    }

    /// Appends words. After an error, all of them can be had by [`Writer::read_back`].
    pub fn append(&mut self, words: &[i32]) -> io::Result<()> {
        self.pending.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        if self.pending.len() >= PIECE_BYTES { self.flush_words() } else { Ok(()) }
    }

    fn flush_words(&mut self) -> io::Result<()> {
        let words = self.pending.len() as u64 / 4;
        self.flush()?;
        self.words += words;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.pending)?;
        self.unsynced_bytes += self.pending.len();
        if self.unsynced_bytes >= UNSYNCED_BYTES {
            self.file.sync_data()?;
            self.unsynced_bytes = 0;
        }
        self.hash.write(&self.pending);
        self.pending.clear();
        Ok(())
    }

    /// All words so far. What a disk took and then failed to keep is noticed.
    pub fn read_back(mut self) -> io::Result<Vec<i32>> {
        let mut words = Vec::with_capacity(self.words as usize + self.pending.len() / 4);
        let mut hash = XxHash3_128::new();
        let mut bytes = vec![0; HEAD_BYTES];
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_exact(&mut bytes)?;
        hash.write(&bytes);
        while words.len() < self.words as usize {
            bytes.resize(PIECE_BYTES.min(4 * (self.words as usize - words.len())), 0);
            self.file.read_exact(&mut bytes)?;
            hash.write(&bytes);
            words.extend(numbers(&bytes));
        }
        if hash.finish_128() != self.words_sum.unwrap_or_else(|| self.hash.finish_128()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not hold what was written"));
        }
        words.extend(numbers(&self.pending));
        Ok(words)
    }

    /// Writes all that comes behind the words, and waits until it is on disk.
    pub fn complete(&mut self, key: CacheKey, files: usize, entries: &[Entry], note: &str) -> io::Result<()> {
        self.flush_words()?;
        self.words_sum = Some(self.hash.finish_128());
        for piece in entries.chunks(PIECE_BYTES / ENTRY_BYTES) {
            for entry in piece {
                for number in [entry.start, entry.len, entry.line] {
                    self.pending.extend(number.to_le_bytes());
                }
                self.pending.extend(entry.file.to_le_bytes());
                self.pending.extend(u32::from(entry.labelled).to_le_bytes());
            }
            self.flush_rest()?;
        }
        self.pending.extend(note.as_bytes());
        self.pending.extend(key.0.to_le_bytes());
        for count in [self.words, entries.len() as u64, note.len() as u64, files as u64] {
            self.pending.extend(count.to_le_bytes());
        }
        self.flush_rest()?;
        self.pending.extend(self.hash.finish_128().to_le_bytes());
        self.flush_rest()?;
        self.file.sync_all()
    }

    /// As [`Writer::flush`], for what is no word and need not be read back.
    fn flush_rest(&mut self) -> io::Result<()> {
        let result = self.flush();
        self.pending.clear();
        result
    }

    /// The words of a complete file, where they lie.
    pub fn map(&self) -> io::Result<Words> {
        let words = Words::mapped(words::map(&self.file)?, HEAD_BYTES, self.words as usize);
        words.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than what was written"))
    }

    /// From now on nothing can be written.
    #[cfg(test)]
    pub fn refuse(&mut self) {
        self.file = File::open(self.path()).unwrap();
    }

    /// Gives the file the name under which it is found.
    pub fn place(self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.name.0, path)?;
        std::mem::forget(self.name);
        Ok(())
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")))
}

/// The documents and the note of a whole and undamaged token file of this key. `progress` hears how many bytes of how many
/// were checked.
pub(super) fn read(
    map: Mmap,
    key: CacheKey,
    files: &[PathBuf],
    mut progress: impl FnMut(u64, u64),
) -> Option<(Documents, String)> {
    let (rest, sum) = map.split_last_chunk::<16>()?;
    let (body, tail) = rest.split_last_chunk::<{ TAIL_BYTES - 16 }>()?;
    let (stored_key, counts) = tail.split_first_chunk::<16>()?;
    let counts: Vec<usize> =
        counts.chunks_exact(8).map(|c| number(c).and_then(|n| n.try_into().ok())).collect::<Option<_>>()?;
    let &[words, entries, note, file_count] = &counts[..] else { return None };
    if u128::from_le_bytes(*stored_key) != key.0 || file_count != files.len() || !body.starts_with(&head()) {
        return None;
    }
    let entries_at = words.checked_mul(4)?.checked_add(HEAD_BYTES)?;
    let note_at = entries.checked_mul(ENTRY_BYTES)?.checked_add(entries_at)?;
    if note_at.checked_add(note)? != body.len() {
        return None;
    }
    let mut hash = XxHash3_128::new();
    for (i, piece) in rest.chunks(HASHED_BYTES).enumerate() {
        hash.write(piece);
        progress((i * HASHED_BYTES + piece.len()) as u64, rest.len() as u64);
    }
    if u128::from_le_bytes(*sum) != hash.finish_128() {
        return None;
    }
    let mut end = 0;
    let entry = |bytes: &[u8]| {
        let entry = Entry {
            start: number(&bytes[..8])?,
            len: number(&bytes[8..16])?,
            line: number(&bytes[16..24])?,
            file: u32::from_le_bytes(bytes[24..28].try_into().ok()?),
            labelled: u32::from_le_bytes(bytes[28..].try_into().ok()?) == 1,
        };
        let fits = entry.start == end && entry.len > 0 && (entry.file as usize) < files.len();
        end = entry.end().filter(|&end| fits && end <= words as u64)?;
        Some(entry)
    };
    let list: Vec<Entry> = body[entries_at..note_at].chunks_exact(ENTRY_BYTES).map(entry).collect::<Option<_>>()?;
    let note = String::from_utf8(body[note_at..].to_vec()).ok()?;
    let words = Words::mapped(map, HEAD_BYTES, words)?;
    Some((Documents::from_parts(Arc::from(files), list, words), note))
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
