//! The CUDA sources as text, and their hashes.

macro_rules! texts {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../cuda/", $name)))),*] };
}

/// Headers that sources may include: name and text, in alphabetical order.
pub const HEADERS: &[(&str, &str)] = texts!["common.cuh", "documents.cuh", "mma.cuh"];

/// Sources, each compiled on its own: name and text, in alphabetical order.
pub const SOURCES: &[(&str, &str)] = texts![
    "add.cu",
    "attention_backward.cu",
    "attention_forward.cu",
    "attention_plain.cu",
    "bias.cu",
    "cast.cu",
    "cross_entropy.cu",
    "delay.cu",
    "gather_rows.cu",
    "qk_norm.cu",
    "reduce.cu",
    "rms_norm.cu",
    "rope.cu",
    "square_sum.cu",
    "swiglu.cu",
];

/// FNV-1a over all headers and this source; what the manifest records. `None` for an unknown name.
pub fn source_hash(name: &str) -> Option<u64> {
    let (_, text) = SOURCES.iter().find(|(n, _)| *n == name)?;
    let texts = HEADERS.iter().map(|(_, text)| *text).chain([*text]);
    Some(
        texts
            .flat_map(str::bytes)
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_in_the_folder_is_listed_and_begins_with_a_comment() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda");
        let mut found: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".cu") || name.ends_with(".cuh"))
            .collect();
        found.sort();
        let mut listed: Vec<&str> = HEADERS.iter().chain(SOURCES).map(|(name, _)| *name).collect();
        assert!(HEADERS.is_sorted() && SOURCES.is_sorted());
        listed.sort();
        assert_eq!(found, listed);
        for (name, text) in HEADERS.iter().chain(SOURCES) {
            assert!(text.starts_with("// "), "{name} does not say what it is for");
        }
    }

    #[test]
    fn hashes_tell_sources_apart() {
        let mut hashes: Vec<u64> = SOURCES.iter().map(|(name, _)| source_hash(name).unwrap()).collect();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), SOURCES.len());
        assert_eq!(source_hash("nothing.cu"), None);
    }
}
