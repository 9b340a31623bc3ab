//! `cargo xtask kernels`: compiles the CUDA sources to machine code and PTX; needs no GPU.
//!
//! The compiler is nvcc from CUDA_HOME or the PATH, or else a pinned one from Python packages, installed under target/.
//! Results go to target/kernels with a manifest that records what they were compiled from; what is up to date is left
//! alone. Prints registers, shared memory and spills of every kernel; a kernel that spills is an error unless its source
//! says `// spills: KERNEL N`, N the most bytes allowed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What each source is compiled for: machine code for two generations, and PTX for those to come.
const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "compute_80"];
const FLAGS: [&str; 4] = ["-std=c++17", "-O3", "-lineinfo", "-Xptxas=-v"];
/// All of one minor version: a newer nvvm emits PTX that a 13.0 driver refuses.
const PACKAGES: [&str; 5] =
    ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-nvvm"];
const PACKAGE_VERSION: &str = "13.0.*";
const JOBS: usize = 2;

/// Compiles what is out of date; `args` may hold `--force` to compile everything.
///
/// # Errors
/// What went wrong, for a person: no compiler, a source that does not compile, undeclared spills.
pub fn run(root: &Path, args: Vec<OsString>) -> Result<(), String> {
    let force = match args.as_slice() {
        [] => false,
        [flag] if flag == "--force" => true,
        [other, ..] => return Err(format!("kernels takes --force only, got `{}`", other.to_string_lossy())),
    };
    let folder = root.join("target/kernels");
    std::fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    let (headers, sources) = read_sources(&root.join("kernels/cuda"))?;
    let compiler = Compiler::find(root)?;

    let jobs: Vec<Job> = sources
        .iter()
        .flat_map(|source| TARGETS.map(|target| Job::new(&folder, &headers, source, target, &compiler)))
        .collect();
    let stale: Vec<&Job> = jobs.iter().filter(|job| force || !job.up_to_date()).collect();
    println!("{} of {} binaries to compile with {}", stale.len(), jobs.len(), compiler.version);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                while let Some(job) = stale.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(message) = job.compile(&compiler) {
                        failed.lock().expect("a job panicked").push(message);
                    }
                }
            });
        }
    });
    let mut failures = failed.into_inner().expect("a job panicked");
    if failures.is_empty() {
        for job in &jobs {
            failures.extend(job.report());
        }
    }
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    let manifest = manifest(&headers, &sources, &jobs, &compiler.version);
    write(&folder.join("manifest.txt"), &manifest)?;
    println!("{} binaries in {}", jobs.len(), folder.display());
    Ok(())
}

struct Source {
    name: String,
    path: PathBuf,
    text: String,
}

/// Headers and sources, each in alphabetical order.
fn read_sources(folder: &Path) -> Result<(Vec<Source>, Vec<Source>), String> {
    let fail = |e: std::io::Error| format!("cannot read {}: {e}", folder.display());
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".cu") || name.ends_with(".cuh") {
            let text = std::fs::read_to_string(&path).map_err(fail)?;
            all.push(Source { name, path, text });
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all.into_iter().partition(|s| s.name.ends_with(".cuh")))
}

fn fnv(texts: &[&str]) -> u64 {
    texts
        .iter()
        .flat_map(|t| t.bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn source_hash(headers: &[Source], source: &Source) -> u64 {
    let texts: Vec<&str> = headers.iter().chain([source]).map(|s| s.text.as_str()).collect();
    fnv(&texts)
}

/// An nvcc.
struct Compiler {
    path: PathBuf,
    version: String,
}

impl Compiler {
    fn find(root: &Path) -> Result<Compiler, String> {
        let home = std::env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
        let candidates = home.into_iter().chain([PathBuf::from("nvcc"), toolchain(root).join("bin/nvcc")]);
        for path in candidates {
            if let Some(version) = version_of(&path) {
                return Ok(Compiler { path, version });
            }
        }
        install(root)?;
        let path = toolchain(root).join("bin/nvcc");
        version_of(&path).map(|version| Compiler { version, path: path.clone() }).ok_or_else(|| {
            format!("{} was installed but does not run; delete target/cuda and try again", path.display())
        })
    }
}

/// Where the Python packages put their files.
fn toolchain(root: &Path) -> PathBuf {
    root.join("target/cuda/nvidia/cu13")
}

fn version_of(nvcc: &Path) -> Option<String> {
    let output = Command::new(nvcc).arg("--version").output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let release = text.split("release ").nth(1)?.lines().next()?.trim();
    Some(format!("nvcc {release}"))
}

fn install(root: &Path) -> Result<(), String> {
    println!("no nvcc in CUDA_HOME or on the PATH: installing {PACKAGE_VERSION} from Python packages into target/cuda");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--upgrade"]);
    pip.arg("--target").arg(root.join("target/cuda"));
    pip.args(PACKAGES.map(|name| format!("{name}=={PACKAGE_VERSION}")));
    let status = pip.status().map_err(|e| format!("cannot start python3 to install a CUDA compiler: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("python3 -m pip could not install a CUDA compiler; install the CUDA toolkit 13.0 and set CUDA_HOME".into())
    }
}

/// One source for one target.
struct Job {
    source: PathBuf,
    name: String,
    text: String,
    target: &'static str,
    binary: PathBuf,
    /// Records what the binary was compiled from and what the compiler said about its kernels.
    log: PathBuf,
    stamp: String,
}

impl Job {
    fn new(folder: &Path, headers: &[Source], source: &Source, target: &'static str, compiler: &Compiler) -> Job {
        let stem = source.name.trim_end_matches(".cu");
        let kind = if target.starts_with("sm_") { "cubin" } else { "ptx" };
        Job {
            source: source.path.clone(),
            name: source.name.clone(),
            text: source.text.clone(),
            target,
            binary: folder.join(format!("{stem}.{target}.{kind}")),
            log: folder.join(format!("{stem}.{target}.log")),
            stamp: format!("{:016x} {} {}", source_hash(headers, source), compiler.version, FLAGS.join(" ")),
        }
    }

    fn file_name(&self) -> String {
        self.binary.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn up_to_date(&self) -> bool {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        self.binary.exists() && log.lines().next() == Some(&self.stamp)
    }

    fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        let mut nvcc = Command::new(&compiler.path);
        nvcc.args(FLAGS).arg(if self.target.starts_with("sm_") { "-cubin" } else { "-ptx" });
        let virtual_target = self.target.replace("sm_", "compute_");
        nvcc.arg(format!("-gencode=arch={virtual_target},code={}", self.target));
        nvcc.arg("-o").arg(&self.binary).arg(&self.source);
        let output = nvcc.output().map_err(|e| format!("cannot start {}: {e}", compiler.path.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{} does not compile for {}:\n{said}", self.name, self.target));
        }
        write(&self.log, &format!("{}\n{said}", self.stamp))
    }

    /// Prints a line a kernel; returns the undeclared spills.
    fn report(&self) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let mut failures = Vec::new();
        for kernel in usage(&log) {
            let Usage { name, registers, shared_bytes, spill_bytes } = &kernel;
            println!(
                "{:<8}{name:<36}{registers:>4} registers {shared_bytes:>6} B shared {spill_bytes:>4} B spilled",
                self.target
            );
            let allowed = declared_spills(&self.text, name);
            if *spill_bytes > allowed {
                failures.push(format!(
                    "{}: {name} spills {spill_bytes} bytes on {}, declared are {allowed} (a line `// spills: {name} N`)",
                    self.name, self.target
                ));
            }
        }
        failures
    }
}

/// What a kernel takes.
#[derive(PartialEq, Debug)]
struct Usage {
    name: String,
    registers: u64,
    shared_bytes: u64,
    spill_bytes: u64,
}

/// Reads the assembler's report.
fn usage(log: &str) -> Vec<Usage> {
    let mut found = Vec::new();
    let (mut name, mut spill_bytes) = (None, 0);
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().map(str::to_owned);
        } else if line.contains("bytes spill stores") {
            spill_bytes = number_before(line, " bytes spill stores").max(number_before(line, " bytes spill loads"));
        } else if line.contains("Used ")
            && let Some(name) = name.take()
        {
            let registers = number_before(line, " registers");
            found.push(Usage { name, registers, shared_bytes: number_before(line, " bytes smem"), spill_bytes });
            spill_bytes = 0;
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The number that stands before these words; 0 if there is none.
fn number_before(line: &str, words: &str) -> u64 {
    let before = line.split(words).next().filter(|b| b.len() < line.len()).unwrap_or_default();
    before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Bytes that a source allows a kernel to spill.
fn declared_spills(text: &str, kernel: &str) -> u64 {
    let lines = text.lines().filter_map(|l| l.strip_prefix("// spills: "));
    lines
        .filter_map(|l| l.split_once(' '))
        .find(|(name, _)| *name == kernel)
        .map_or(0, |(_, n)| n.trim().parse().unwrap_or(0))
}

fn manifest(headers: &[Source], sources: &[Source], jobs: &[Job], version: &str) -> String {
    let mut text = format!("megatrain-kernels 1\ncompiler {version}\n");
    for source in sources {
        text += &format!("source {} {:016x}\n", source.name, source_hash(headers, source));
    }
    for job in jobs {
        text += &format!("binary {} {} {}\n", job.name, job.target, job.file_name());
    }
    text
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "stamp
ptxas info    : Compiling entry function 'b_bf16' for 'sm_90a'
ptxas info    : Function properties for b_bf16
    56 bytes stack frame, 92 bytes spill stores, 104 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 56 bytes cumulative stack size
ptxas info    : Compiling entry function 'a_f32' for 'sm_90a'
ptxas info    : Function properties for a_f32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8192 bytes smem
";

    #[test]
    fn the_assemblers_report_is_read() {
        let of = |name: &str, registers, shared_bytes, spill_bytes| Usage {
            name: name.into(),
            registers,
            shared_bytes,
            spill_bytes,
        };
        assert_eq!(usage(LOG), [of("a_f32", 40, 8192, 0), of("b_bf16", 255, 0, 104)]);
    }

    #[test]
    fn declared_spills_are_a_kernels_own() {
        let text = "// Formula.\n// spills: b_bf16 104\n";
        assert_eq!(declared_spills(text, "b_bf16"), 104);
        assert_eq!(declared_spills(text, "a_f32"), 0);
    }
}
