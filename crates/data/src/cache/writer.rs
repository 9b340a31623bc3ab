//! [`TokenWriter`]: documents on their way into a file of the cache, or into memory where that cannot be.

use super::file::Writer;
use super::{CacheKey, TokenCache};
use crate::document::{Documents, Entry};
use crate::error::{self, Error};
use crate::words::Words;
use std::path::PathBuf;
use std::sync::Arc;

/// Collects documents, most of them in a file. Where the disk refuses, what it took is read back and the rest is collected in
/// memory: no document is lost.
pub struct TokenWriter {
    files: Arc<[PathBuf]>,
    entries: Vec<Entry>,
    words: u64,
    sink: Sink,
    /// Why they are in memory.
    problem: Option<Error>,
    cache: Option<TokenCache>,
}

enum Sink {
    Memory(Vec<i32>),
    File(Box<Writer>),
}

impl TokenWriter {
    /// Collects in memory only.
    pub fn in_memory(files: &[PathBuf]) -> TokenWriter {
        let sink = Sink::Memory(Vec::new());
        TokenWriter { files: files.into(), entries: Vec::new(), words: 0, sink, problem: None, cache: None }
    }

    pub(super) fn new(cache: TokenCache, files: &[PathBuf]) -> TokenWriter {
        let mut writer = TokenWriter::in_memory(files);
        match Writer::create(&cache.folder) {
            Ok(file) => writer.sink = Sink::File(Box::new(file)),
            Err(e) => writer.problem = Some(error::io(&cache.folder, "making a file in it")(e)),
        }
        TokenWriter { cache: Some(cache), ..writer }
    }

    /// Whether there are no documents yet.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends documents, whose files must be this writer's.
    ///
    /// # Errors
    /// The disk refuses, and does not give back what it took either.
    pub fn append(&mut self, documents: &Documents) -> Result<(), Error> {
        for doc in documents.iter() {
            let (start, len) = (self.words, doc.tokens.len() as u64);
            let entry = Entry { start, len, line: doc.line, file: doc.file, labelled: doc.labels.is_some() };
            self.words = entry.end().expect("words that are in memory can be counted");
            self.entries.push(entry);
            self.write(doc.tokens)?;
            self.write(doc.labels.unwrap_or_default())?;
        }
        Ok(())
    }

    fn write(&mut self, words: &[i32]) -> Result<(), Error> {
        match &mut self.sink {
            Sink::Memory(memory) => memory.extend_from_slice(words),
            Sink::File(file) => {
                if let Err(e) = file.append(words) {
                    self.fall_back(e)?;
                }
            }
        }
        Ok(())
    }

    /// Goes on in memory.
    fn fall_back(&mut self, why: std::io::Error) -> Result<(), Error> {
        if let Sink::File(file) = std::mem::replace(&mut self.sink, Sink::Memory(Vec::new())) {
            let path = file.path().to_owned();
            self.problem = Some(error::io(&path, "writing tokens")(why));
            self.sink = Sink::Memory(file.read_back().map_err(error::io(path, "reading tokens back"))?);
        }
        Ok(())
    }

    /// The documents, in memory or still in the file, which has no name any more and is gone when they are.
    ///
    /// # Errors
    /// As [`TokenWriter::append`].
    pub fn finish(self) -> Result<Documents, Error> {
        Ok(self.end(None)?.0)
    }

    /// The documents, and for the next time the file under this key with a note. Without a file, the reason is the second
    /// value: for a note, since the documents are there.
    ///
    /// # Errors
    /// As [`TokenWriter::append`].
    pub fn keep(self, key: CacheKey, note: &str) -> Result<(Documents, Option<Error>), Error> {
        self.end(Some((key, note)))
    }

    fn end(mut self, kept: Option<(CacheKey, &str)>) -> Result<(Documents, Option<Error>), Error> {
        self.entries.shrink_to_fit();
        if let Sink::File(file) = &mut self.sink {
            let (key, note) = kept.unwrap_or((CacheKey(0), ""));
            let written = file.complete(key, self.files.len(), &self.entries, note);
            match written.and_then(|()| file.map()) {
                Err(e) => self.fall_back(e)?,
                Ok(words) => {
                    let documents = Documents::from_parts(self.files, self.entries, words);
                    let (Some((key, _)), Some(cache), Sink::File(file)) = (kept, self.cache, self.sink) else {
                        return Ok((documents, None));
                    };
                    let path = cache.path(key);
                    let placed = file.place(&path).map_err(error::io(&path, "naming a finished file"));
                    if placed.is_ok() {
                        cache.shrink(&path);
                    }
                    return Ok((documents, placed.err()));
                }
            }
        }
        let Sink::Memory(mut words) = self.sink else { unreachable!("a file has returned or was left for memory") };
        words.shrink_to_fit();
        Ok((Documents::from_parts(self.files, self.entries, Words::Owned(words)), self.problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::KeyBuilder;
    use crate::document::DocumentsBuilder;
    use std::fs;

    /// More than is written at a time.
    fn documents() -> Documents {
        let mut builder = DocumentsBuilder::in_memory(vec!["a".into()]);
        for i in 0..40 {
            let tokens: Vec<i32> = (i * 20_000..(i + 1) * 20_000).collect();
            builder.push(&tokens, (i % 2 == 0).then_some(&tokens[..]), 0, i as u64).unwrap();
        }
        builder.finish()
    }

    fn kept(writer: TokenWriter) -> (Documents, Option<String>) {
        let (documents, problem) = writer.keep(KeyBuilder::new().finish(), "").unwrap();
        (documents, problem.map(|problem| problem.to_string()))
    }

    #[test]
    fn a_disk_that_refuses_loses_no_document() {
        let all = documents();
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::at(dir.path());
        // As on a full disk: what was written can be read, but nothing more can be written.
        let refuse = |writer: &mut TokenWriter| match &mut writer.sink {
            Sink::File(file) => file.refuse(),
            Sink::Memory(_) => panic!("it has fallen back"),
        };
        for refused_after in [0, 1, 2] {
            let mut writer = cache.writer(all.files());
            for part in 0..2 {
                if part == refused_after {
                    refuse(&mut writer);
                }
                writer.append(&all).unwrap();
            }
            if refused_after == 2 {
                refuse(&mut writer);
            }
            let (both, problem) = kept(writer);
            assert!(both.iter().eq(all.iter().chain(all.iter())), "refused after part {refused_after}");
            assert!(problem.unwrap().contains("writing tokens failed"));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        }
    }

    #[test]
    fn what_a_disk_has_lost_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TokenCache::at(dir.path()).writer(documents().files());
        writer.append(&documents()).unwrap();
        let Sink::File(file) = &mut writer.sink else { panic!("the folder can be written") };
        let whole = fs::read(file.path()).unwrap();
        fs::write(file.path(), [&whole[..1000], &[7], &whole[1001..]].concat()).unwrap();
        file.refuse();
        let error = writer.append(&documents()).unwrap_err().to_string();
        assert!(error.contains("reading tokens back failed: it does not hold what was written"), "{error}");
    }

    #[test]
    fn without_a_folder_documents_are_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a file");
        fs::write(&file, "x").unwrap();
        let mut writer = TokenCache::at(file.join("tokens")).writer(documents().files());
        writer.append(&documents()).unwrap();
        let (all, problem) = kept(writer);
        assert_eq!(all, documents());
        assert!(problem.unwrap().contains("a file/tokens: making a file in it failed"));
    }

    #[test]
    fn what_is_not_kept_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TokenCache::at(dir.path()).writer(documents().files());
        assert!(writer.is_empty());
        writer.append(&documents()).unwrap();
        assert_eq!(writer.finish().unwrap(), documents());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut memory = TokenWriter::in_memory(documents().files());
        memory.append(&documents()).unwrap();
        assert_eq!(kept(memory), (documents(), None));
    }
}
