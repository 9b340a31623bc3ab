//! CUDA sources of the ops and the manifest that ties compiled binaries to them. Builds with neither.
//!
//! `cargo xtask kernels` compiles [`SOURCES`] into a folder with a `manifest.txt`; [`Manifest::find`] finds that folder again
//! at run time and refuses binaries that were compiled from other sources than this program carries.

mod manifest;
mod sources;

pub use manifest::{Binary, Manifest, ManifestError};
pub use sources::{HEADERS, SOURCES, source_hash};
