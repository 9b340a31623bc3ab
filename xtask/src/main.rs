//! The repository's own commands. Run `cargo xtask help`.
fn main() {}
