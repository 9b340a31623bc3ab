//! Where cuBLASLt may lie. xtask includes this file, to install the library only where the program would find none: so it
//! uses the standard library alone and opens nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The library's name, with the major version whose functions are used.
pub(crate) const FILE: &str = "libcublasLt.so.13";
/// The folder for it near the program: in a bundle, and where cargo builds.
pub(crate) const FOLDER: &str = "lib";
/// Names the file; nothing else is tried then.
pub(crate) const VARIABLE: &str = "MEGATRAIN_CUBLASLT";

/// The file that [`VARIABLE`] names.
pub(crate) fn named(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    variable(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Places in the order in which they are tried, for a program that lies at `program`, with a look-up of environment
/// variables:
///
/// 1. a folder `lib` beside the program or up to three levels above it, as for the kernels;
/// 2. CUDA_HOME;
/// 3. the system's loader, which is asked by the bare name;
/// 4. /usr/local/cuda;
/// 5. the packages of the Python environment that is active (VIRTUAL_ENV, CONDA_PREFIX) or whose `python3` comes first on
///    the PATH: there PyTorch has it.
pub(crate) fn places(variable: impl Fn(&str) -> Option<OsString>, program: &Path) -> Vec<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut paths: Vec<PathBuf> =
        program.ancestors().skip(1).take(4).map(|above| above.join(FOLDER).join(FILE)).collect();
    paths.extend(folder("CUDA_HOME").map(|home| home.join("lib64").join(FILE)));
    paths.push(PathBuf::from(FILE));
    paths.push(Path::new("/usr/local/cuda/lib64").join(FILE));
    let path = variable("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).find(|folder| folder.join("python3").is_file());
    let first = first.and_then(|folder| folder.parent().map(Path::to_owned));
    for environment in [folder("VIRTUAL_ENV"), folder("CONDA_PREFIX"), first].into_iter().flatten() {
        paths.extend(in_environment(&environment));
    }
    paths
}

/// Where conda puts it, and where pip does, for each version of Python that has a folder there.
fn in_environment(environment: &Path) -> Vec<PathBuf> {
    let lib = environment.join("lib");
    let mut pythons: Vec<PathBuf> = std::fs::read_dir(&lib)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
        .collect();
    pythons.sort();
    let packages = pythons.iter().flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    [lib.join(FILE)].into_iter().chain(packages.map(|folder| folder.join("nvidia/cu13/lib").join(FILE))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("megatrain-places-{name}-{}", std::process::id()))
    }

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    /// The place, of those that name a file there is, that comes first.
    fn first(places: &[PathBuf]) -> PathBuf {
        places.iter().find(|place| place.is_file()).cloned().unwrap_or_default()
    }

    #[test]
    fn each_place_comes_before_those_after_it() {
        let root = folder("order");
        let variables = [
            ("CUDA_HOME", root.join("toolkit")),
            ("VIRTUAL_ENV", root.join("venv")),
            ("CONDA_PREFIX", root.join("conda")),
            ("PATH", root.join("python/bin")),
        ];
        let look_up = |name: &str| Some(variables.iter().find(|(n, _)| *n == name)?.1.clone().into_os_string());
        let program = root.join("target/triple/release/deps/program");
        // The last place first: each file that appears must be taken instead of the one before.
        touch(&root.join("python/bin/python3"));
        for place in [
            "python/lib/python3.12/dist-packages/nvidia/cu13/lib",
            "python/lib",
            "conda/lib/python3.13/site-packages/nvidia/cu13/lib",
            "conda/lib/python3.11/site-packages/nvidia/cu13/lib",
            "conda/lib",
            "venv/lib/python3.11/site-packages/nvidia/cu13/lib",
            "toolkit/lib64",
            "target/lib",
            "target/triple/lib",
            "target/triple/release/lib",
            "target/triple/release/deps/lib",
        ] {
            let file = root.join(place).join(FILE);
            touch(&file);
            assert_eq!(first(&places(look_up, &program)), file);
        }
        let places = places(look_up, &program);
        let position = |path: &Path| places.iter().position(|place| place == path).unwrap();
        let toolkit = position(&root.join("toolkit/lib64").join(FILE));
        let (loader, usual) = (position(Path::new(FILE)), position(&Path::new("/usr/local/cuda/lib64").join(FILE)));
        assert!(toolkit < loader && loader < usual && usual < position(&root.join("venv/lib").join(FILE)));
        assert!(!places.contains(&root.join("lib").join(FILE)), "four levels above is too far");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn empty_variables_count_as_none() {
        assert_eq!(named(|_| Some(OsString::new())), None);
        assert_eq!(named(|name| (name == VARIABLE).then(|| "x.so".into())), Some("x.so".into()));
        let of = |value: Option<OsString>| places(|_| value.clone(), Path::new("bin/program"));
        assert_eq!(of(Some(OsString::new())), of(None));
    }
}
