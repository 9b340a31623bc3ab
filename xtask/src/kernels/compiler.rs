//! Finds nvcc, or installs one from Python packages.

use crate::pip::Packages;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest nvcc, as major and minor version: a driver has to be this new as well.
const OLDEST: (u32, u32) = (13, 0);
/// All of one minor version: a newer nvvm emits PTX that a 13.0 driver refuses.
const PACKAGES: [&str; 5] =
    ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-nvvm"];
const PACKAGE_VERSION: &str = "13.0.*";
/// What to do where there are no Python packages to be had.
const OTHERWISE: &str = "install the CUDA toolkit, 13.0 or newer, and set CUDA_HOME to its folder";

/// An nvcc.
pub struct Compiler {
    pub path: PathBuf,
    /// For example `nvcc 13.0, V13.0.88`.
    pub version: String,
}

impl Compiler {
    /// The first that is new enough, of CUDA_HOME, the PATH, /usr/local/cuda, and the Python packages below `target`,
    /// which are installed if need be. Says on stderr what it passes over, and why.
    ///
    /// # Errors
    /// There is none and none can be installed: why, and what to do.
    pub fn find(target: &Path) -> Result<Compiler, String> {
        let installed = target.join("cuda/nvidia/cu13/bin/nvcc");
        let home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
        if let Some(path) = home.as_ref().filter(|path| release(path).is_none()) {
            eprintln!("CUDA_HOME is set, but {} does not run: looking elsewhere", path.display());
        }
        let usual = ["nvcc", "/usr/local/cuda/bin/nvcc"].map(PathBuf::from);
        for path in home.into_iter().chain(usual).chain([installed.clone()]) {
            match release(&path) {
                Some(release) if is_new_enough(&release) => {
                    return Ok(Compiler { path, version: format!("nvcc {release}") });
                }
                Some(release) => {
                    eprintln!("{} is version {release}, older than {}.{}", path.display(), OLDEST.0, OLDEST.1);
                }
                None => {}
            }
        }
        install(target)?;
        let release = release(&installed).ok_or_else(|| {
            format!("{} was installed but does not run; delete {}", installed.display(), target.join("cuda").display())
        })?;
        Ok(Compiler { path: installed, version: format!("nvcc {release}") })
    }
}

/// For example `13.0, V13.0.88`; `None` if this is no nvcc that runs.
fn release(nvcc: &Path) -> Option<String> {
    let output = Command::new(nvcc).arg("--version").output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.split_once("release ")?.1.lines().next()?.trim().to_owned())
}

fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split([',', '.']).map(|n| n.trim().parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
}

/// Installs the packages into `target/cuda`.
fn install(target: &Path) -> Result<(), String> {
    eprintln!("no nvcc {}.{} or newer: installing {PACKAGE_VERSION} from Python packages", OLDEST.0, OLDEST.1);
    let requirements = PACKAGES.map(|name| format!("{name}=={PACKAGE_VERSION}"));
    Packages { what: "a CUDA compiler", requirements: &requirements, otherwise: OTHERWISE }
        .install(&target.join("cuda"), |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_releases_are_told_apart() {
        for (release, expected) in [
            ("13.0, V13.0.88", true),
            ("13.1, V13.1.5", true),
            ("14.0, V14.0.1", true),
            ("12.9, V12.9.41", false),
            ("9.2, V9.2.88", false),
            ("", false),
        ] {
            assert_eq!(is_new_enough(release), expected, "{release}");
        }
    }

    #[test]
    fn what_is_no_compiler_has_no_release() {
        assert_eq!(release(Path::new("no/such/nvcc")), None);
        assert_eq!(release(Path::new("true")), None);
    }
}
