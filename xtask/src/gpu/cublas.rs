//! cuBLASLt, opened by the program at run time: whether there is one, or one installed from a Python package.

#[path = "../../../crates/cuda/src/places.rs"]
mod places;

use crate::lock::lock;
use crate::pip::Packages;
use places::FILE;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Works with every driver of CUDA 13 (NVIDIA's minor version compatibility), and depends on no other package.
const VERSION: &str = "13.1.0.3";
const LICENSE: &str = "libcublasLt.LICENSE.txt";

/// Makes sure that the program, built below `target`, finds the library. MEGATRAIN_CUBLASLT names one that is not ours.
///
/// # Errors
/// There is none and it cannot be installed: why, and what to do.
pub fn ensure(target: &Path) -> Result<(), String> {
    let is_named = places::named(|name| std::env::var_os(name)).is_some();
    if is_named
        || is_there(places::places(|name| std::env::var_os(name), &target.join("release/megatrain")), loaders_files)
    {
        return Ok(());
    }
    install(target).map(drop)
}

/// The library and its licence, in the folder of `target` where the program looks first; installed if need be.
///
/// # Errors
/// It cannot be installed: why, and what to do.
pub fn install(target: &Path) -> Result<[PathBuf; 2], String> {
    let folder = target.join(places::FOLDER);
    let files = [FILE, LICENSE].map(|name| folder.join(name));
    std::fs::create_dir_all(target).map_err(|e| format!("cannot create {}: {e}", target.display()))?;
    let _lock = lock(&target.join("lib.lock"), "installs cuBLASLt")?;
    if !files.iter().all(|file| file.exists()) {
        eprintln!("installing cuBLASLt {VERSION} from a Python package: 423 MB to download, 542 MB on disk");
        let packages = Packages {
            what: "cuBLASLt",
            requirements: &[format!("nvidia-cublas=={VERSION}")],
            otherwise: "install the CUDA toolkit, 13.0 or newer, or name a libcublasLt.so.13 in MEGATRAIN_CUBLASLT",
        };
        packages.install(&folder, arrange)?;
    }
    Ok(files)
}

/// Of what pip has laid into a folder, leaves the library and its licence.
fn arrange(folder: &Path) -> Result<(), String> {
    let wanted = [
        (folder.join("nvidia/cu13/lib").join(FILE), FILE),
        (folder.join(format!("nvidia_cublas-{VERSION}.dist-info/licenses/License.txt")), LICENSE),
    ];
    for (from, name) in wanted {
        std::fs::rename(&from, folder.join(name))
            .map_err(|e| format!("the package nvidia-cublas {VERSION} has no {}: {e}", from.display()))?;
    }
    let fail = |e: std::io::Error| format!("cannot clear {}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.is_dir() {
            std::fs::remove_dir_all(&path).map_err(fail)?;
        }
    }
    Ok(())
}

/// Whether one of these places holds a file; `loaders` tells, for the bare name, where the system's loader might find it.
fn is_there(places: Vec<PathBuf>, loaders: impl FnOnce() -> Vec<PathBuf>) -> bool {
    let (by_name, by_path): (Vec<_>, Vec<_>) = places.into_iter().partition(|place| place.as_os_str() == FILE);
    by_path.iter().any(|path| path.is_file()) || !by_name.is_empty() && loaders().iter().any(|path| path.is_file())
}

/// In the folders of LD_LIBRARY_PATH and in the loader's cache, as far as `ldconfig` tells.
fn loaders_files() -> Vec<PathBuf> {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = ["ldconfig", "/sbin/ldconfig"].into_iter().find_map(|program| {
        let output = Command::new(program).arg("-p").output().ok().filter(|output| output.status.success())?;
        Some(cached(&String::from_utf8_lossy(&output.stdout)))
    });
    let named = std::env::split_paths(&folders).map(|folder| folder.join(FILE));
    named.chain(listed.into_iter().flatten()).collect()
}

/// Paths of the library in a listing of the loader's cache.
fn cached(listing: &str) -> Vec<PathBuf> {
    let entries = listing.lines().filter_map(|line| line.trim().strip_prefix(FILE)?.split_once(" => "));
    entries.filter(|(flags, _)| flags.starts_with(' ')).map(|(_, path)| path.trim().into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-cublas-{name}-{}", std::process::id()))
    }

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn the_loaders_cache_is_read() {
        let listing = "525 libs found in cache `/etc/ld.so.cache'\n\
                       \tlibcublasLt.so.12 (libc6,x86-64) => /a/libcublasLt.so.12\n\
                       \tlibcublasLt.so.13.1 (libc6,x86-64) => /b/libcublasLt.so.13.1\n\
                       \tlibcublasLt.so.13 (libc6,x86-64) => /c/libcublasLt.so.13\n\
                       \tlibcublas.so.13 (libc6,x86-64) => /d/libcublas.so.13\n";
        assert_eq!(cached(listing), [PathBuf::from("/c/libcublasLt.so.13")]);
        assert!(cached("").is_empty());
    }

    #[test]
    fn a_library_is_there_if_a_place_has_the_file_or_the_loader_knows_one() {
        let root = folder("there");
        let file = root.join(FILE);
        let none = || Vec::new();
        let places = vec![file.clone(), FILE.into()];
        // What the loader's cache still lists may be gone.
        assert!(!is_there(places.clone(), || vec![root.join("gone.so")]));
        touch(&file);
        assert!(is_there(places, none));
        assert!(is_there(vec![FILE.into()], || vec![file.clone()]));
        // A bare name is not looked for in the working directory, and no one asks the loader that is not a place.
        assert!(!is_there(vec![root.join("other.so")], || vec![file.clone()]));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn of_the_package_the_library_and_its_licence_stay() {
        let root = folder("arrange");
        touch(&root.join("nvidia/cu13/lib/libcublas.so.13"));
        touch(&root.join("nvidia/cu13/lib").join(FILE));
        let error = arrange(&root).unwrap_err();
        assert!(error.contains("License.txt"), "{error}");
        touch(&root.join("nvidia/cu13/lib").join(FILE));
        touch(&root.join(format!("nvidia_cublas-{VERSION}.dist-info/licenses/License.txt")));
        arrange(&root).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [LICENSE, FILE]);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    #[ignore = "downloads 423 MB"]
    fn the_pinned_package_installs_and_is_found() {
        let target = folder("installs");
        let [library, license] = install(&target).unwrap();
        assert!(library.metadata().unwrap().len() > 100_000_000 && license.metadata().unwrap().len() > 1000);
        let names: Vec<_> = std::fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "the library's folder and the lock: {names:?}");
        assert!(is_there(places::places(|_| None, &target.join("debug/deps/test")), Vec::new));
        let start = std::time::Instant::now();
        install(&target).unwrap();
        assert!(start.elapsed().as_secs() < 2, "nothing to do the second time");
        std::fs::remove_dir_all(&target).unwrap();
    }

    #[test]
    fn where_it_is_installed_the_program_looks_first() {
        let target = Path::new("any/target");
        let places = places::places(|_| None, &target.join("release/megatrain"));
        assert!(places[..4].contains(&target.join(places::FOLDER).join(FILE)), "{places:?}");
    }
}
