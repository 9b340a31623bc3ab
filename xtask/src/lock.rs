//! Files that one process at a time holds.

use std::fs::{File, TryLockError};
use std::path::Path;

/// Held until the result is dropped. Says so if another process has it: that one `does` something, e.g. `compiles kernels`.
///
/// # Errors
/// The file cannot be made or locked.
pub fn lock(path: &Path, does: &str) -> Result<File, String> {
    let fail = |e: std::io::Error| format!("cannot lock {}: {e}", path.display());
    let file = File::create(path).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("waiting for another command that {does}");
            file.lock().map_err(fail)?;
        }
        Err(TryLockError::Error(error)) => return Err(fail(error)),
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_has_it() {
        let path = std::env::temp_dir().join(format!("xtask-lock-{}", std::process::id()));
        let held = lock(&path, "tests").unwrap();
        assert!(matches!(File::create(&path).unwrap().try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        drop(lock(&path, "tests").unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
