//! Installs Python packages into a folder of their own, whole or not at all.

use std::path::Path;
use std::process::{Command, Stdio};

/// What to install, and how to speak of it.
pub struct Packages<'a> {
    /// What they bring, with its article, e.g. `a CUDA compiler`.
    pub what: &'a str,
    /// For pip, e.g. `nvidia-cublas==13.1.0.3`.
    pub requirements: &'a [String],
    /// What to do where there are no Python packages to be had: `install ...`.
    pub otherwise: &'a str,
}

impl Packages<'_> {
    /// Installs into `folder`, which appears, or is replaced, once `arrange` has made of pip's folder what is wanted. pip's
    /// progress goes to stderr, since stdout is the command's own.
    ///
    /// # Errors
    /// No python3, no pip, pip failed (after saying why), or files cannot be moved: what to do. `folder` is as it was.
    pub fn install(&self, folder: &Path, arrange: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
        self.install_by(&["python3"], folder, arrange)
    }

    fn install_by(
        &self,
        python: &[&str],
        folder: &Path,
        arrange: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<(), String> {
        self.require_pip(python)?;
        let partial = folder.with_extension("partial");
        let remove = |folder: &Path| match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("cannot remove {}: {error}", folder.display()))
            }
            _ => Ok(()),
        };
        remove(&partial)?;
        let fail = |e: std::io::Error| format!("cannot write {}: {e}", folder.display());
        std::fs::create_dir_all(partial.join("tmp")).map_err(fail)?;
        let new = partial.join("new");
        let made = self.run_pip(python, &new, &partial.join("tmp")).and_then(|()| arrange(&new));
        let placed = made.and_then(|()| remove(folder)).and_then(|()| std::fs::rename(&new, folder).map_err(fail));
        placed.and(remove(&partial))
    }

    fn require_pip(&self, python: &[&str]) -> Result<(), String> {
        let missing = match command(python).args(["-m", "pip", "--version"]).output() {
            Err(_) => "there is no python3",
            Ok(output) if !output.status.success() => "python3 has no pip",
            Ok(_) => return Ok(()),
        };
        Err(format!(
            "{missing} to install {} with: install python3 and its pip (Debian and Ubuntu: python3-pip), or {}",
            self.what, self.otherwise
        ))
    }

    fn run_pip(&self, python: &[&str], target: &Path, temporary: &Path) -> Result<(), String> {
        let mut pip = command(python);
        pip.args(["-m", "pip", "install", "--no-compile", "--retries", "2", "--target"]).arg(target);
        pip.args(self.requirements);
        pip.envs([("PIP_DISABLE_PIP_VERSION_CHECK", "1"), ("PIP_ROOT_USER_ACTION", "ignore"), ("PIP_USER", "0")]);
        // Where there is room for the result there is room for what pip unpacks on the way; the usual folder may be small.
        pip.env("TMPDIR", std::path::absolute(temporary).unwrap_or_else(|_| temporary.to_owned()));
        let status = pip.stdout(Stdio::from(std::io::stderr())).status();
        if status.map_err(|e| format!("cannot start python3: {e}"))?.success() {
            return Ok(());
        }
        Err(format!(
            "python3 -m pip could not install {}, for the reason above; it needs the Python package index, which \
             PIP_INDEX_URL may name: try again with a network, or {}",
            self.what, self.otherwise
        ))
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Stands for `python3 -m pip`: leaves a file in the folder that follows `--target`, then ends with code `$0`. It has
    /// a version as long as that code is not 9.
    const PIP: &str = r#"
        if [ "$3" = --version ]; then [ "$0" != 9 ]; exit; fi
        while [ "$1" != --target ]; do shift; done
        mkdir -p "$2" && echo "$3" > "$2/library" && [ -d "$TMPDIR" ] && exit "$0""#;

    struct Site(PathBuf);

    impl Site {
        fn new(name: &str) -> Site {
            let root = std::env::temp_dir().join(format!("xtask-pip-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&root).unwrap();
            Site(root)
        }

        fn install(&self, code: &str, arrange: fn(&Path) -> Result<(), String>) -> Result<(), String> {
            let requirements = ["thing==1.*".to_owned()];
            let packages =
                Packages { what: "a thing", requirements: &requirements, otherwise: "install things by hand" };
            packages.install_by(&["sh", "-c", PIP, code], &self.0.join("lib"), arrange)
        }

        /// Names in the folder, and what the library says.
        fn state(&self) -> (Vec<String>, String) {
            let names = std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            (names.collect(), std::fs::read_to_string(self.0.join("lib/library")).unwrap_or_default())
        }
    }

    impl Drop for Site {
        fn drop(&mut self) {
            // Left over at worst, in the folder for temporary files.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn packages_are_installed_and_arranged() {
        let site = Site::new("whole");
        // What an interrupted attempt left is gone afterwards.
        std::fs::create_dir_all(site.0.join("lib.partial/new/old")).unwrap();
        site.install("0", |new| std::fs::write(new.join("arranged"), "").map_err(|e| e.to_string())).unwrap();
        assert_eq!(site.state(), (vec!["lib".into()], "thing==1.*\n".into()));
        assert!(site.0.join("lib/arranged").exists() && !site.0.join("lib/old").exists());
        // Again, over what is there.
        site.install("0", |_| Ok(())).unwrap();
        assert!(!site.0.join("lib/arranged").exists());
    }

    #[test]
    fn a_failure_leaves_nothing_and_keeps_what_was_there() {
        let site = Site::new("fails");
        let error = site.install("1", |_| Ok(())).unwrap_err();
        assert!(error.contains("could not install a thing") && error.contains("install things by hand"), "{error}");
        assert_eq!(site.state(), (vec![], String::new()));

        std::fs::create_dir(site.0.join("lib")).unwrap();
        std::fs::write(site.0.join("lib/library"), "before").unwrap();
        assert!(site.install("1", |_| Ok(())).is_err());
        assert_eq!(site.state(), (vec!["lib".into()], "before".into()));
        assert_eq!(site.install("0", |_| Err("not what was expected".into())).unwrap_err(), "not what was expected");
        assert_eq!(site.state(), (vec!["lib".into()], "before".into()));
    }

    #[test]
    fn a_machine_without_pip_is_told() {
        let site = Site::new("none");
        let error = site.install("9", |_| Ok(())).unwrap_err();
        assert!(error.contains("python3 has no pip to install a thing with"), "{error}");
        let packages = Packages { what: "a thing", requirements: &[], otherwise: "install things by hand" };
        let error = packages.install_by(&["no-such-python"], &site.0.join("lib"), |_| Ok(())).unwrap_err();
        assert!(error.contains("there is no python3") && error.contains("or install things by hand"), "{error}");
        assert_eq!(site.state().0, Vec::<String>::new());
    }
}
