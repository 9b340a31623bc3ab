//! Conformance, golden and whole-run tests across the crates; see the files in `tests/`.
