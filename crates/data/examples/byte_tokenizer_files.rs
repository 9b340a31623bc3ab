//! Writes the built-in tokenizer's files into a directory: `cargo run --example byte_tokenizer_files -- DIR`.

use megatrain_data::ByteTokenizer;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    for (name, bytes) in ByteTokenizer::files() {
        std::fs::write(Path::new(&dir).join(name), bytes)?;
    }
    Ok(())
}
