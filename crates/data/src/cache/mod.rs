//! [`TokenCache`]: documents once tokenized, kept on disk under a key of everything they depend on.
//!
//! A [`TokenWriter`] writes them to a file while they are made, so that memory holds none of them; later they are used where
//! they lie. What cannot be read, or is damaged, or belongs to another key is not there: the documents are made again.
//!
//! Runs side by side do not disturb each other: each writes under a name of its own, a finished file takes the key's name
//! whole, by a rename, and one that is removed or replaced stays as it is for who has it open.

mod file;
mod key;
mod writer;

pub use key::{CacheKey, KeyBuilder};
pub use writer::TokenWriter;

use crate::document::Documents;
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Files together take this much at most; the ones that were not used for longest go first.
const MAX_BYTES: u64 = 32 << 30;

/// A file that nobody has locked and that is younger than this may be about to be locked.
const UNLOCKED: Duration = Duration::from_secs(60);

/// Where files cannot be locked, one that was written to within this time may still be finished.
const UNFINISHED: Duration = Duration::from_secs(24 * 60 * 60);

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
        TokenCache::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Option<TokenCache> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = match set("MEGATRAIN_CACHE") {
            Some(off) if off.as_os_str() == "off" => return None,
            Some(folder) => folder,
            // The XDG specification has relative paths ignored.
            None => set("XDG_CACHE_HOME")
                .filter(|path| path.is_absolute())
                .or_else(|| Some(set("HOME")?.join(".cache")))?
                .join("megatrain"),
        };
        Some(TokenCache::at(base.join("tokens")))
    }

    /// This folder, made when something is written.
    pub fn at(folder: impl Into<PathBuf>) -> TokenCache {
        TokenCache { folder: folder.into(), max_bytes: MAX_BYTES }
    }

    /// With another limit on what its files take together.
    pub fn limited_to(self, max_bytes: u64) -> TokenCache {
        TokenCache { max_bytes, ..self }
    }

    /// The file of a key, whether it is there or not.
    pub fn path(&self, key: CacheKey) -> PathBuf {
        self.folder.join(format!("{:032x}.tokens", key.0))
    }

    /// The documents kept under a key, for these files, and the note that was kept with them. All of the file is checked;
    /// `progress` hears how many of its bytes, of how many, are done.
    pub fn load(
        &self,
        key: CacheKey,
        files: &[PathBuf],
        progress: impl FnMut(u64, u64),
    ) -> Option<(Documents, String)> {
        let file = File::open(self.path(key)).ok()?;
        let found = file::read(crate::words::map(&file).ok()?, key, files, progress)?;
        // So that what is used is not what goes first. A folder that cannot be written keeps its order.
        let _ = file.set_modified(SystemTime::now());
        Some(found)
    }

    /// Begins to write documents of these files. Where the folder cannot be written, they are collected in memory, and
    /// [`TokenWriter::keep`] says why.
    pub fn writer(&self, files: &[PathBuf]) -> TokenWriter {
        self.remove_unfinished();
        TokenWriter::new(self.clone(), files)
    }

    /// The folder's files with this extension, those written longest ago first, and their sizes.
    fn files(&self, extension: &str) -> Vec<(SystemTime, u64, PathBuf)> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries
            .filter(|e| e.path().extension().is_some_and(|x| x == extension))
            .filter_map(|e| {
                let meta = e.metadata().ok()?;
                Some((meta.modified().ok()?, meta.len(), e.path()))
            })
            .collect();
        files.sort();
        files
    }

    /// Removes what was not used for longest until the rest is within the limit. `kept` stays in any case.
    fn shrink(&self, kept: &Path) {
        let files = self.files("tokens");
        let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if total > self.max_bytes && path != kept && std::fs::remove_file(&path).is_ok() {
                total -= len;
            }
        }
    }

    /// Removes what runs left behind that were killed while they wrote: who writes a file has it locked.
    fn remove_unfinished(&self) {
        let now = SystemTime::now();
        for (written, _, path) in self.files("new") {
            let allowed = match File::open(&path).map(|file| file.try_lock()) {
                Ok(Ok(())) => UNLOCKED,
                Ok(Err(TryLockError::WouldBlock)) => continue,
                Ok(Err(TryLockError::Error(_))) | Err(_) => UNFINISHED,
            };
            if now.duration_since(written).is_ok_and(|age| age > allowed) {
                // Another run may have removed it.
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::DocumentsBuilder;

    fn documents() -> Documents {
        let mut builder = DocumentsBuilder::in_memory(vec!["a".into(), "b".into()]);
        for i in 0..4 {
            let tokens: Vec<i32> = (0..3 + i * 40_000).collect();
            let labels: Vec<i32> = tokens.iter().map(|&t| if t % 3 == 0 { -100 } else { t }).collect();
            builder.push(&tokens, (i % 2 == 0).then_some(&labels), i as u32 % 2, i as u64).unwrap();
        }
        builder.finish()
    }

    fn store(cache: &TokenCache, name: &str, documents: &Documents, note: &str) -> Documents {
        let mut writer = cache.writer(documents.files());
        writer.append(documents).unwrap();
        let (stored, problem) = writer.keep(key(name), note).unwrap();
        assert!(problem.is_none(), "{problem:?}");
        assert_eq!(&stored, documents);
        stored
    }

    fn load(cache: &TokenCache, name: &str, files: &[PathBuf]) -> Option<(Documents, String)> {
        cache.load(key(name), files, |_, _| {})
    }

    fn key(text: &str) -> CacheKey {
        KeyBuilder::new().text(text).finish()
    }

    #[test]
    fn the_environment_names_the_folder() {
        let folder = |variables: &[(&str, &str)]| {
            let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
            TokenCache::from_variables(variable).map(|cache| cache.folder.display().to_string())
        };
        let home = ("HOME", "/me");
        for (variables, expected) in [
            (&[("MEGATRAIN_CACHE", "/x"), home][..], Some("/x/tokens")),
            (&[("MEGATRAIN_CACHE", "off"), home], None),
            (&[("MEGATRAIN_CACHE", ""), home], Some("/me/.cache/megatrain/tokens")),
            (&[("XDG_CACHE_HOME", "/cache"), home], Some("/cache/megatrain/tokens")),
            (&[("XDG_CACHE_HOME", "relative"), home], Some("/me/.cache/megatrain/tokens")),
            (&[], None),
        ] {
            assert_eq!(folder(variables).as_deref(), expected, "{variables:?}");
        }
    }

    #[test]
    fn documents_come_back_with_their_note_under_their_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path().join("tokens"));
        let files = documents().files().to_vec();
        assert!(load(&cache, "x", &files).is_none());
        let stored = store(&cache, "x", &documents(), "two were skipped");
        assert!(std::fs::read_dir(&cache.folder).unwrap().count() == 1, "nothing else is left in the folder");
        assert_eq!(load(&cache, "x", &files), Some((documents(), "two were skipped".into())));
        assert!(load(&cache, "y", &files).is_none());
        assert!(load(&cache, "x", &files[..1]).is_none(), "as many files as there were");
        std::fs::copy(cache.path(key("x")), cache.path(key("y"))).unwrap();
        assert!(load(&cache, "y", &files).is_none(), "a file under another name");
        std::fs::remove_file(cache.path(key("x"))).unwrap();
        assert_eq!(stored, documents(), "what was removed stays for who has it open");
    }

    #[test]
    fn damage_anywhere_is_noticed_and_asks_for_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path());
        let small = Documents::from_lines("a", [(vec![1, 2, 3], vec![-100, 2, 3])]).unwrap();
        store(&cache, "x", &small, "n");
        let path = cache.path(key("x"));
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for bit in [0x01, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bit;
                std::fs::write(&path, &bytes).unwrap();
                assert!(load(&cache, "x", small.files()).is_none(), "byte {at}, bit {bit:#x}");
            }
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(load(&cache, "x", small.files()).is_none(), "cut at {at}");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(load(&cache, "x", small.files()).is_none(), "something behind the end");
        std::fs::write(&path, &whole).unwrap();
        assert!(load(&cache, "x", small.files()).is_some());
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
            store(&cache, name, &docs, "");
            age(name, seconds);
        }
        assert!(load(&cache, "old", docs.files()).is_some(), "used, so it is the newest now");
        let size = std::fs::metadata(cache.path(key("new"))).unwrap().len();
        store(&cache.clone().limited_to(3 * size), "last", &docs, "");
        let there = ["old", "older", "new", "last"].map(|name| load(&cache, name, docs.files()).is_some());
        assert_eq!(there, [true, false, true, true]);
        store(&cache.clone().limited_to(0), "alone", &docs, "");
        assert!(load(&cache, "alone", docs.files()).is_some());
        assert!(load(&cache, "last", docs.files()).is_none());
    }

    #[test]
    fn leftovers_go_and_what_is_being_written_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path());
        let made = [("1-0.new", UNLOCKED * 2), ("2-0.new", UNLOCKED / 2), ("3-0.new", UNFINISHED * 2)];
        let files = made.map(|(name, age)| {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            file
        });
        files[2].lock().unwrap();
        let mut slow = cache.writer(documents().files());
        // The writer's, which is the only one that is not empty, has been waiting for long.
        for (_, _, path) in cache.files("new").into_iter().filter(|(_, len, _)| *len > 0) {
            File::open(path).unwrap().set_modified(SystemTime::now() - UNFINISHED * 2).unwrap();
        }
        store(&cache, "x", &documents(), "");
        assert_eq!(made.map(|(name, _)| dir.path().join(name).exists()), [false, true, true]);
        slow.append(&documents()).unwrap();
        assert!(slow.keep(key("y"), "").unwrap().1.is_none(), "its file is still there");
    }

    #[test]
    fn runs_side_by_side_do_not_disturb_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path());
        let mut writers = [cache.writer(documents().files()), cache.writer(documents().files())];
        for writer in &mut writers {
            writer.append(&documents()).unwrap();
        }
        let kept: Vec<_> = writers.map(|writer| writer.keep(key("x"), "n").unwrap()).into();
        for (stored, problem) in &kept {
            assert!(problem.is_none() && *stored == documents());
        }
        assert_eq!(load(&cache, "x", documents().files()), Some((documents(), "n".into())));
    }

    #[test]
    fn progress_reaches_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path());
        store(&cache, "x", &documents(), "");
        let mut seen = Vec::new();
        cache.load(key("x"), documents().files(), |done, of| seen.push((done, of))).unwrap();
        let len = std::fs::metadata(cache.path(key("x"))).unwrap().len();
        assert_eq!(seen.last(), Some(&(len - 16, len - 16)));
    }
}
