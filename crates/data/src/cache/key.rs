//! [`CacheKey`]: what the tokens of a data set depend on, as a hash.

use super::file::MAGIC;
use crate::error::{self, Error};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use twox_hash::XxHash3_128;

/// What the tokens of a data set depend on, as a hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CacheKey(pub(super) u128);

/// Collects what the tokens of a data set depend on.
pub struct KeyBuilder(Box<XxHash3_128>);

impl KeyBuilder {
    /// Nothing yet but this version of this crate, which makes the tokens.
    #[expect(clippy::new_without_default, reason = "an empty key is no sensible default")]
    pub fn new() -> Self {
        let mut key = KeyBuilder(Box::new(XxHash3_128::new()));
        key.text(MAGIC).text(env!("CARGO_PKG_VERSION"));
        key
    }

    /// A setting: template, policy, length. The order counts.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.0.write(&(text.len() as u64).to_le_bytes());
        self.0.write(text.as_bytes());
        self
    }

    /// A file's content; not its name, nor when it was written. `progress` hears how many more bytes are done.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn file(&mut self, path: &Path, mut progress: impl FnMut(u64)) -> Result<&mut Self, Error> {
        let mut file = File::open(path).map_err(error::io(path, "opening"))?;
        let (mut buffer, mut len) = (vec![0; 1 << 20], 0u64);
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    self.0.write(&buffer[..n]);
                    len += n as u64;
                    progress(n as u64);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_contents_and_settings_and_on_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let key = |path: &Path, settings: &[&str]| {
            let (mut key, mut bytes) = (KeyBuilder::new(), 0);
            key.file(path, |more| bytes += more).unwrap();
            assert_eq!(bytes, 3);
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
        assert!(KeyBuilder::new().file(&dir.path().join("none"), |_| {}).is_err());
    }
}
