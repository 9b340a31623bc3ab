//! [`TokenCache`]: documents once tokenized, kept on disk under a key of everything they depend on.
//!
//! A file holds a line with the format's version, the key, the counts and a note of the caller's (what was skipped, say), then
//! the documents as little-endian 32-bit numbers, then a checksum of all of that. What cannot be read, or is damaged, or
//! belongs to another key is not there: the documents are made again.

use crate::document::{Documents, DocumentsBuilder};
use crate::error::{self, Error};
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use twox_hash::XxHash3_128;

/// The version comes first in a file and into every key.
const MAGIC: &str = "megatrain-tokens 1";

/// Files together take this much at most; the ones that were not used for longest go first.
const MAX_BYTES: u64 = 32 << 30;

/// Numbers that are turned into bytes at a time.
const PIECE: usize = 1 << 16;

/// What the tokens of a data set depend on, as a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheKey(u128);

/// Collects what the tokens of a data set depend on.
pub struct KeyBuilder(Box<XxHash3_128>);

impl KeyBuilder {
    /// Nothing yet.
    #[expect(clippy::new_without_default, reason = "an empty key is no sensible default")]
    pub fn new() -> Self {
        let mut key = KeyBuilder(Box::new(XxHash3_128::new()));
        key.text(MAGIC);
        key
    }

    /// A setting: template, policy, length. The order counts.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.0.write(&(text.len() as u64).to_le_bytes());
        self.0.write(text.as_bytes());
        self
    }

    /// A file's content; not its name, nor when it was written.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn file(&mut self, path: &Path) -> Result<&mut Self, Error> {
        let mut file = File::open(path).map_err(error::io(path, "opening"))?;
        let (mut buffer, mut len) = (vec![0; 1 << 20], 0u64);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    self.0.write(&buffer[..n]);
                    len += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(error::io(path, "reading")(e)),
            }
        }
        self.0.write(&len.to_le_bytes());
        Ok(self)
    }

    /// The key.
    pub fn finish(&self) -> CacheKey {
        CacheKey(self.0.finish_128())
    }
}

/// A folder of tokenized documents.
#[derive(Clone, Debug)]
pub struct TokenCache {
    folder: PathBuf,
    max_bytes: u64,
}

impl TokenCache {
    /// The folder `tokens` of what MEGATRAIN_CACHE names, of `megatrain` in XDG_CACHE_HOME, or of `~/.cache/megatrain`. None if
    /// MEGATRAIN_CACHE is `off`, or there is no home.
    pub fn from_env() -> Option<TokenCache> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = match set("MEGATRAIN_CACHE") {
            Some(off) if off.as_os_str() == "off" => return None,
            Some(folder) => folder,
            None => set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?.join("megatrain"),
        };
        Some(TokenCache::at(base.join("tokens")))
    }

    /// This folder, made when something is stored.
    pub fn at(folder: impl Into<PathBuf>) -> TokenCache {
        TokenCache { folder: folder.into(), max_bytes: MAX_BYTES }
    }

    /// With another limit on what its files take together.
    pub fn limited_to(self, max_bytes: u64) -> TokenCache {
        TokenCache { max_bytes, ..self }
    }

    fn path(&self, key: CacheKey) -> PathBuf {
        self.folder.join(format!("{:032x}.tokens", key.0))
    }

    /// The documents stored under a key, for these files, and the note that was stored with them.
    pub fn load(&self, key: CacheKey, files: &[PathBuf]) -> Option<(Documents, String)> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        let len = file.metadata().ok()?.len();
        let found = read(&mut Checked::new(BufReader::with_capacity(1 << 20, &file)), len, key, files)?;
        // So that what is used is not what goes first. A folder that cannot be written keeps its order.
        let _ = file.set_modified(SystemTime::now());
        Some(found)
    }

    /// Stores documents. A run does not depend on it: what goes wrong is for a note.
    ///
    /// # Errors
    /// What the system says.
    pub fn store(&self, key: CacheKey, documents: &Documents, note: &str) -> Result<(), Error> {
        let path = self.path(key);
        std::fs::create_dir_all(&self.folder).map_err(error::io(&self.folder, "making"))?;
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let written = File::create(&temporary).and_then(|file| write(file, key, documents, note));
        let placed = written.and_then(|()| std::fs::rename(&temporary, &path));
        if placed.is_err() {
            // Nothing is lost if it stays.
            let _ = std::fs::remove_file(&temporary);
        }
        placed.map_err(error::io(&path, "storing tokens in"))?;
        self.shrink(&path);
        Ok(())
    }

    /// Removes what was not used for longest until the rest is within the limit. `kept` stays in any case.
    fn shrink(&self, kept: &Path) {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter(|e| e.path().extension().is_some_and(|x| x == "tokens"))
            .filter_map(|e| {
                let meta = e.metadata().ok()?;
                Some((meta.modified().ok()?, meta.len(), e.path()))
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if total > self.max_bytes && path != kept && std::fs::remove_file(&path).is_ok() {
                total -= len;
            }
        }
    }
}

/// Bytes on their way, and their hash.
struct Checked<S> {
    stream: S,
    hash: Box<XxHash3_128>,
}

impl<S> Checked<S> {
    fn new(stream: S) -> Self {
        Checked { stream, hash: Box::new(XxHash3_128::new()) }
    }
}

impl<R: Read> Checked<R> {
    fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).ok()?;
        self.hash.write(&bytes);
        Some(bytes)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn ids(&mut self, count: usize) -> Option<Vec<i32>> {
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            let bytes = self.bytes(4 * PIECE.min(count - ids.len()))?;
            ids.extend(bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes"))));
        }
        Some(ids)
    }
}

impl<W: Write> Checked<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.write(bytes);
        self.stream.write_all(bytes)
    }

    fn put_ids(&mut self, ids: &[i32]) -> std::io::Result<()> {
        for piece in ids.chunks(PIECE) {
            let bytes: Vec<u8> = piece.iter().flat_map(|id| id.to_le_bytes()).collect();
            self.put(&bytes)?;
        }
        Ok(())
    }
}

fn head(key: CacheKey) -> Vec<u8> {
    format!("{MAGIC} {:032x}\n", key.0).into_bytes()
}

fn write(file: File, key: CacheKey, documents: &Documents, note: &str) -> std::io::Result<()> {
    let mut out = Checked::new(BufWriter::with_capacity(1 << 20, file));
    out.put(&head(key))?;
    for number in [documents.files().len(), documents.len(), note.len()] {
        out.put(&(number as u64).to_le_bytes())?;
    }
    out.put(note.as_bytes())?;
    for doc in documents.iter() {
        let labelled = u64::from(doc.labels.is_some());
        for number in [u64::from(doc.file), doc.line, doc.tokens.len() as u64, labelled] {
            out.put(&number.to_le_bytes())?;
        }
        out.put_ids(doc.tokens)?;
        out.put_ids(doc.labels.unwrap_or_default())?;
    }
    let sum = out.hash.finish_128();
    out.stream.write_all(&sum.to_le_bytes())?;
    out.stream.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
}

fn read<R: Read>(
    from: &mut Checked<R>,
    file_len: u64,
    key: CacheKey,
    files: &[PathBuf],
) -> Option<(Documents, String)> {
    let head = head(key);
    if from.bytes(head.len())? != head || from.number()? != files.len() as u64 {
        return None;
    }
    // Lengths are believed only as far as the file goes: a damaged one must not ask for all memory.
    let within =
        |count: u64, size: u64| count.checked_mul(size).filter(|bytes| *bytes <= file_len).map(|_| count as usize);
    let (docs, note) = (within(from.number()?, 32)?, within(from.number()?, 1)?);
    let note = String::from_utf8(from.bytes(note)?).ok()?;
    let mut documents = DocumentsBuilder::in_memory(files.to_vec());
    for _ in 0..docs {
        let file = u32::try_from(from.number()?).ok()?;
        let line = from.number()?;
        let count = within(from.number()?, 4)?;
        let labelled = from.number()? == 1;
        let tokens = from.ids(count)?;
        let labels = if labelled { Some(from.ids(count)?) } else { None };
        documents.push(&tokens, labels.as_deref(), file, line).ok()?;
    }
    let sum = from.hash.finish_128();
    let mut end = [0; 16];
    from.stream.read_exact(&mut end).ok()?;
    (u128::from_le_bytes(end) == sum && from.stream.read(&mut [0]).ok()? == 0).then(|| (documents.finish(), note))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents() -> Documents {
        let mut builder = DocumentsBuilder::in_memory(vec!["a".into(), "b".into()]);
        for i in 0..4 {
            let tokens: Vec<i32> = (0..3 + i * 40_000).collect();
            let labels: Vec<i32> = tokens.iter().map(|&t| if t % 3 == 0 { -100 } else { t }).collect();
            builder.push(&tokens, (i % 2 == 0).then_some(&labels), i as u32 % 2, i as u64).unwrap();
        }
        builder.finish()
    }

    fn key(text: &str) -> CacheKey {
        KeyBuilder::new().text(text).finish()
    }

    #[test]
    fn documents_come_back_with_their_note_under_their_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path().join("tokens"));
        let files = documents().files().to_vec();
        assert!(cache.load(key("x"), &files).is_none());
        cache.store(key("x"), &documents(), "two were skipped").unwrap();
        assert_eq!(cache.load(key("x"), &files), Some((documents(), "two were skipped".into())));
        assert!(cache.load(key("y"), &files).is_none());
        assert!(cache.load(key("x"), &files[..1]).is_none(), "as many files as there were");
        std::fs::copy(cache.path(key("x")), cache.path(key("y"))).unwrap();
        assert!(cache.load(key("y"), &files).is_none(), "a file under another name");
    }

    #[test]
    fn keys_depend_on_contents_and_settings_and_on_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let key = |path: &Path, settings: &[&str]| {
            let mut key = KeyBuilder::new();
            key.file(path).unwrap();
            settings.iter().for_each(|text| {
                key.text(text);
            });
            key.finish()
        };
        let (a, same, other) = (file("a", "one"), file("b", "one"), file("c", "two"));
        assert_eq!(key(&a, &["m", "n"]), key(&same, &["m", "n"]));
        assert_ne!(key(&a, &["m", "n"]), key(&other, &["m", "n"]));
        assert_ne!(key(&a, &["m", "n"]), key(&a, &["mn"]));
        assert_ne!(key(&a, &["m", "n"]), key(&a, &["n", "m"]));
        assert!(KeyBuilder::new().file(&dir.path().join("none")).is_err());
    }

    #[test]
    fn damage_anywhere_is_noticed_and_asks_for_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path());
        let small = Documents::from_lines("a", [(vec![1, 2, 3], vec![-100, 2, 3])]).unwrap();
        cache.store(key("x"), &small, "n").unwrap();
        let path = cache.path(key("x"));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for bit in [0x01, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bit;
                std::fs::write(&path, &bytes).unwrap();
                assert!(cache.load(key("x"), small.files()).is_none(), "byte {at}, bit {bit:#x}");
            }
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(cache.load(key("x"), small.files()).is_none(), "cut at {at}");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(cache.load(key("x"), small.files()).is_none(), "something behind the end");
        std::fs::write(&path, &whole).unwrap();
        assert!(cache.load(key("x"), small.files()).is_some());
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path());
        let docs = Documents::from_tokens(vec![vec![1; 1000]]);
        let age = |name: &str, seconds: u64| {
            let file = File::options().append(true).open(cache.path(key(name))).unwrap();
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(seconds)).unwrap();
        };
        for (name, seconds) in [("old", 300), ("older", 200), ("new", 100)] {
            cache.store(key(name), &docs, "").unwrap();
            age(name, seconds);
        }
        assert!(cache.load(key("old"), docs.files()).is_some(), "used, so it is the newest now");
        let size = std::fs::metadata(cache.path(key("new"))).unwrap().len();
        cache.clone().limited_to(3 * size).store(key("last"), &docs, "").unwrap();
        let there = ["old", "older", "new", "last"].map(|name| cache.load(key(name), docs.files()).is_some());
        assert_eq!(there, [true, false, true, true]);
        cache.clone().limited_to(0).store(key("alone"), &docs, "").unwrap();
        assert!(cache.load(key("alone"), docs.files()).is_some());
        assert!(cache.load(key("last"), docs.files()).is_none());
    }
}
