//! The CUDA sources and their hashes, which the crate `kernels` computes in the same way when it checks a manifest.

use std::path::{Path, PathBuf};

/// One `.cu` file.
pub struct Source {
    /// File name.
    pub name: String,
    pub path: PathBuf,
    pub text: String,
    /// Of all headers and the text.
    pub hash: u64,
}

impl Source {
    /// The name without `.cu`.
    pub fn stem(&self) -> &str {
        self.name.trim_end_matches(".cu")
    }
}

/// The sources in a folder, in alphabetical order.
///
/// # Errors
/// A file cannot be read.
pub fn read(folder: &Path) -> Result<Vec<Source>, String> {
    let fail = |e: std::io::Error| format!("cannot read {}: {e}", folder.display());
    let (mut headers, mut sources) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let list = match name.rsplit_once('.') {
            Some((_, "cu")) => &mut sources,
            Some((_, "cuh")) => &mut headers,
            _ => continue,
        };
        let text = std::fs::read_to_string(&path).map_err(fail)?;
        list.push(Source { name, path, text, hash: 0 });
    }
    headers.sort_by(|a, b| a.name.cmp(&b.name));
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    for source in &mut sources {
        source.hash = fnv(headers.iter().map(|h| h.text.as_str()).chain([source.text.as_str()]));
    }
    Ok(sources)
}

/// FNV-1a, 64 bits.
fn fnv<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    texts
        .flat_map(str::bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv(["a"].into_iter()), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv(["foo", "bar"].into_iter()), 0x8594_4171_f739_67e8);
    }
}
