//! `cargo xtask kernels`: compiles the CUDA sources to machine code and PTX; needs no GPU.
//!
//! Results go to the folder `kernels` where cargo builds, with a manifest that records what they were compiled from; what
//! is up to date is left alone. Progress goes to stderr. A kernel that spills is an error here unless its source says
//! `// spills: KERNEL N`, N the most bytes allowed; commands that only want to run do not mind.

mod compiler;
mod job;
mod sources;
mod usage;

use crate::cargo;
use crate::lock::lock;
use compiler::Compiler;
use job::{Job, TARGETS, binary_name};
use sources::Source;
use std::cmp::Reverse;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const MANIFEST: &str = "manifest.txt";

/// The command: compiles what is out of date, prints what each kernel takes; `args` may hold `--force` to compile all.
///
/// # Errors
/// What went wrong, for a person: no compiler, a source that does not compile, undeclared spills.
pub fn run(root: &Path, args: Vec<OsString>) -> Result<(), String> {
    let force = match args.as_slice() {
        [] => false,
        [flag] if flag == "--force" => true,
        [other, ..] => return Err(format!("kernels takes --force only, got `{}`", other.to_string_lossy())),
    };
    let kernels = Kernels::open(root)?;
    let jobs = kernels.compile(force)?;
    for job in &jobs {
        for usage::Usage { name, registers, shared_bytes, spill_bytes } in job.usage() {
            println!(
                "{:<8}{name:<36}{registers:>4} registers {shared_bytes:>6} B shared {spill_bytes:>4} B spilled",
                job.target
            );
        }
    }
    refuse_spills(&jobs)?;
    println!("{} binaries in {}", jobs.len(), kernels.folder.display());
    Ok(())
}

/// Compiles what is out of date and returns the kernels.
///
/// # Errors
/// As [`run`].
pub fn compile(root: &Path) -> Result<Kernels, String> {
    let kernels = Kernels::open(root)?;
    refuse_spills(&kernels.compile(false)?)?;
    Ok(kernels)
}

/// Makes sure that there are kernels of these sources. MEGATRAIN_KERNELS names kernels that are not ours to compile.
///
/// # Errors
/// As [`run`], but for spills.
pub fn ensure(root: &Path) -> Result<(), String> {
    if std::env::var_os("MEGATRAIN_KERNELS").is_some_and(|folder| !folder.is_empty()) {
        return Ok(());
    }
    let kernels = Kernels::open(root)?;
    if kernels.are_current() { Ok(()) } else { kernels.compile(false).map(drop) }
}

/// The sources and where their binaries go.
pub struct Kernels {
    /// Where cargo builds.
    target: PathBuf,
    /// The binaries and their manifest.
    folder: PathBuf,
    sources: Vec<Source>,
}

impl Kernels {
    fn open(root: &Path) -> Result<Kernels, String> {
        let target = cargo::target_folder(root)?;
        Ok(Kernels { folder: target.join("kernels"), target, sources: sources::read(&root.join("kernels/cuda"))? })
    }

    /// Paths of the manifest and of all that it lists.
    pub fn files(&self) -> Vec<PathBuf> {
        let all = self.sources.iter().flat_map(|source| TARGETS.map(|target| binary_name(source, target)));
        [MANIFEST.to_owned()].into_iter().chain(all).map(|name| self.folder.join(name)).collect()
    }

    /// Whether the binaries there are, compiled by whatever compiler, are of these sources.
    fn are_current(&self) -> bool {
        let manifest = std::fs::read_to_string(self.folder.join(MANIFEST)).unwrap_or_default();
        let compiler = manifest.lines().nth(1).and_then(|line| line.strip_prefix("compiler "));
        compiler.is_some_and(|compiler| manifest == self.manifest(compiler)) && self.files().iter().all(|f| f.exists())
    }

    fn manifest(&self, compiler_version: &str) -> String {
        let mut text = format!("megatrain-kernels 1\ncompiler {compiler_version}\n");
        for source in &self.sources {
            text += &format!("source {} {:016x}\n", source.name, source.hash);
        }
        for source in &self.sources {
            for target in TARGETS {
                text += &format!("binary {} {target} {}\n", source.name, binary_name(source, target));
            }
        }
        text
    }

    /// Compiles what is out of date, or everything, on all cores, the largest sources first.
    fn compile(&self, force: bool) -> Result<Vec<Job<'_>>, String> {
        std::fs::create_dir_all(&self.folder).map_err(|e| format!("cannot create {}: {e}", self.folder.display()))?;
        let _lock = lock(&self.folder.join("lock"), "compiles kernels")?;
        let compiler = Compiler::find(&self.target)?;
        let version = compiler.version.as_str();
        let jobs: Vec<Job> = self
            .sources
            .iter()
            .flat_map(|source| TARGETS.map(|target| Job::new(&self.folder, source, target, version)))
            .collect();
        let mut stale: Vec<&Job> = jobs.iter().filter(|job| force || !job.is_up_to_date()).collect();
        stale.sort_by_key(|job| Reverse(job.source.text.len()));
        compile_all(&stale, &compiler)?;
        write(&self.folder.join(MANIFEST), &self.manifest(version))?;
        Ok(jobs)
    }
}

/// Runs as many compilers as there are cores; the first failure ends it.
fn compile_all(jobs: &[&Job], compiler: &Compiler) -> Result<(), String> {
    if jobs.is_empty() {
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).min(jobs.len());
    eprintln!("compiling the CUDA kernels with {}, {} binaries on {cores} cores", compiler.version, jobs.len());
    let (next, done, failure) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    if let Err(message) = job.compile(compiler) {
                        next.store(jobs.len(), Ordering::Relaxed);
                        failure.lock().expect("a job panicked").get_or_insert(message);
                        return;
                    }
                    let (done, seconds) = (done.fetch_add(1, Ordering::Relaxed) + 1, start.elapsed().as_secs_f64());
                    eprintln!("[{done:>2}/{}] {} for {} in {seconds:.1} s", jobs.len(), job.source.name, job.target);
                }
            });
        }
    });
    failure.into_inner().expect("a job panicked").map_or(Ok(()), Err)
}

fn refuse_spills(jobs: &[Job]) -> Result<(), String> {
    let found: Vec<String> = jobs.iter().flat_map(Job::undeclared_spills).collect();
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels of two sources, in a folder of their own.
    fn kernels(name: &str) -> Kernels {
        let target = std::env::temp_dir().join(format!("xtask-kernels-{name}-{}", std::process::id()));
        let cuda = target.join("cuda");
        std::fs::create_dir_all(&cuda).unwrap();
        for (name, text) in [("b.cu", "// b"), ("a.cu", "// a"), ("x.cuh", "// x"), ("notes.md", "")] {
            std::fs::write(cuda.join(name), text).unwrap();
        }
        let sources = sources::read(&cuda).unwrap();
        let folder = target.join("kernels");
        std::fs::create_dir_all(&folder).unwrap();
        Kernels { folder, target, sources }
    }

    #[test]
    fn kernels_are_current_if_binaries_and_manifest_are_of_these_sources() {
        let mut kernels = kernels("current");
        assert!(!kernels.are_current());
        for file in kernels.files() {
            std::fs::write(file, "").unwrap();
        }
        assert!(!kernels.are_current());
        write(&kernels.folder.join(MANIFEST), &kernels.manifest("nvcc 13.0, V13.0.88")).unwrap();
        assert!(kernels.are_current());

        let header = kernels.target.join("cuda/x.cuh");
        std::fs::write(&header, "// y").unwrap();
        kernels.sources = sources::read(&kernels.target.join("cuda")).unwrap();
        assert!(!kernels.are_current(), "a header changed");
        std::fs::write(&header, "// x").unwrap();
        kernels.sources = sources::read(&kernels.target.join("cuda")).unwrap();
        assert!(kernels.are_current());
        std::fs::remove_file(kernels.folder.join("b.sm_80.cubin")).unwrap();
        assert!(!kernels.are_current(), "a binary is missing");
        std::fs::remove_dir_all(&kernels.target).unwrap();
    }

    #[test]
    fn the_first_source_that_does_not_compile_ends_it() {
        let kernels = kernels("failing");
        let compiler = Compiler { path: "false".into(), version: "nvcc 0".into() };
        let jobs: Vec<Job> = kernels.sources.iter().map(|s| Job::new(&kernels.folder, s, "sm_80", "nvcc 0")).collect();
        let error = compile_all(&jobs.iter().collect::<Vec<_>>(), &compiler).unwrap_err();
        assert!(error.contains(".cu does not compile for sm_80"), "{error}");
        assert!(!jobs[0].is_up_to_date());
        std::fs::remove_dir_all(&kernels.target).unwrap();
    }

    #[test]
    fn only_declared_spills_pass() {
        let mut kernels = kernels("spills");
        let log = "stamp\nptxas info : Compiling entry function 'k' for 'sm_80'\n    8 bytes stack frame, 8 bytes spill \
                   stores, 12 bytes spill loads\nptxas info : Used 255 registers\n";
        std::fs::write(kernels.folder.join("a.sm_80.log"), log).unwrap();
        for (text, passes) in [("// a", false), ("// spills: k 8", false), ("// spills: k 12", true)] {
            kernels.sources[0].text = text.into();
            let job = Job::new(&kernels.folder, &kernels.sources[0], "sm_80", "nvcc 0");
            let checked = refuse_spills(&[job]);
            assert_eq!(checked.is_ok(), passes, "{text}: {checked:?}");
        }
        std::fs::remove_dir_all(&kernels.target).unwrap();
    }
}
