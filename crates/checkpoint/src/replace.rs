//! Replaces a directory whole: the new one is complete on disk before it takes the old one's name.

use crate::error::{self, Error};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A directory being written beside the one it will replace. Dropped without [`Staging::publish`], it vanishes and
/// leaves what was there before untouched.
pub(crate) struct Staging {
    target: PathBuf,
    partial: PathBuf,
    previous: PathBuf,
    published: bool,
}

impl Staging {
    /// Prepares a staging directory for `target`, clearing what a killed run left.
    ///
    /// Refuses a target that exists and is not a model directory (empty, or with a `config.json`): replacing deletes.
    pub fn new(target: &Path) -> Result<Staging, Error> {
        // The name without `.`, `..` or a trailing slash; a link is replaced at its destination.
        let resolved = if target.exists() {
            target.canonicalize().map_err(error::io(target, "resolving"))?
        } else {
            std::path::absolute(target).map_err(error::io(target, "resolving"))?
        };
        let (Some(parent), Some(name)) = (resolved.parent(), resolved.file_name()) else {
            return Err(error::file(target, "a model cannot be written here; give a directory with a name"));
        };
        fs::create_dir_all(parent).map_err(error::io(parent, "creating"))?;
        let beside = |suffix: &str| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(suffix);
            parent.join(hidden)
        };
        let (partial, previous) = (beside(".partial"), beside(".previous"));
        if previous.exists() && !resolved.exists() {
            // Killed between the two renames of a system that cannot exchange names: the old model comes back.
            fs::rename(&previous, &resolved).map_err(error::io(&previous, "restoring"))?;
        }
        remove(&previous)?;
        remove(&partial)?;
        check_target(target)?;
        fs::create_dir(&partial).map_err(error::io(&partial, "creating"))?;
        Ok(Staging { target: resolved, partial, previous, published: false })
    }

    /// Where to write.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Gives the new directory its name. Every file in it must have been synced.
    pub fn publish(mut self) -> Result<(), Error> {
        sync_dir(&self.partial)?;
        if !self.target.exists() {
            fs::rename(&self.partial, &self.target).map_err(error::io(&self.target, "renaming"))?;
        } else if exchange(&self.partial, &self.target).is_err() {
            fs::rename(&self.target, &self.previous).map_err(error::io(&self.target, "renaming"))?;
            if let Err(e) = fs::rename(&self.partial, &self.target) {
                // Put the old one back; if even that fails, the next export does it.
                let _ = fs::rename(&self.previous, &self.target);
                return Err(error::io(&self.target, "renaming")(e));
            }
        }
        self.published = true;
        if let Some(parent) = self.target.parent() {
            sync_dir(parent)?;
        }
        // After an exchange the old directory bears the staging name.
        remove(&self.partial)?;
        remove(&self.previous)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // Best effort: the next export clears it otherwise.
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// Refuses a place where [`crate::ExportPlan::write`] would refuse to write: one that exists and is neither an empty
/// directory nor a model's. Writes nothing, so it can be asked before a long run.
///
/// # Errors
/// Names the place.
pub fn check_target(target: &Path) -> Result<(), Error> {
    let vacant = match fs::metadata(target) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => true,
        Err(e) => return Err(error::io(target, "opening")(e)),
        Ok(meta) if !meta.is_dir() => false,
        Ok(_) => {
            let empty = fs::read_dir(target).map_err(error::io(target, "listing"))?.next().is_none();
            empty || target.join(crate::dir::CONFIG).exists()
        }
    };
    if vacant {
        return Ok(());
    }
    let problem = "this exists and is not a model directory, so it will not be replaced; choose another place";
    Err(error::file(target, problem))
}

fn remove(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(error::io(dir, "removing")(e)),
        _ => Ok(()),
    }
}

fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(error::io(dir, "syncing"))
}

/// Swaps two names in one step, so that at no time is there no model.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> std::io::Result<()> {
    let (a, b) = (CString::new(a.as_os_str().as_bytes())?, CString::new(b.as_os_str().as_bytes())?);
    // SAFETY: both pointers are to nul-terminated strings that outlive the call, which only reads them; the remaining
    // arguments are plain numbers, as renameat2(2) documents them.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
