//! What the commands that may use a GPU need at run time: kernels and cuBLASLt, made or installed where they are missing.

pub mod cublas;
mod driver;

use crate::{cargo, kernels};
use std::path::Path;

/// Where there is an NVIDIA driver that is not too old, makes sure that there are kernels and cuBLASLt; elsewhere does nothing. What fails is
/// said and not fatal: it is megatrain that decides where to compute.
pub fn ensure(root: &Path) {
    let machine = Path::new("/");
    if !driver::is_there(machine) || driver::is_too_old(machine) {
        return;
    }
    if let Err(reason) = kernels::ensure(root) {
        // Without kernels no GPU is used, and the large library for nothing.
        eprintln!(
            "warning: this machine has an NVIDIA driver, but the CUDA kernels could not be compiled: {reason}\n\
             warning: without them no GPU is used; `cargo xtask kernels` tries again"
        );
    } else if let Err(reason) = cargo::target_folder(root).and_then(|target| cublas::ensure(&target)) {
        eprintln!("warning: there is no cuBLASLt: {reason}\nwarning: without it no GPU is used");
    }
}
