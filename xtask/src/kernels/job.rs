//! One source compiled for one target, with a log beside the binary that says from what, and what the assembler reported.

use super::compiler::Compiler;
use super::sources::Source;
use super::usage::{Usage, declared_spills, usage};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each source is compiled for: machine code for two generations, and PTX for those to come.
pub const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "compute_80"];
const FLAGS: [&str; 4] = ["-std=c++17", "-O3", "-lineinfo", "-Xptxas=-v"];

/// One source for one target.
pub struct Job<'a> {
    pub source: &'a Source,
    pub target: &'static str,
    pub binary: PathBuf,
    log: PathBuf,
    /// First line of the log of an up-to-date binary.
    stamp: String,
}

impl<'a> Job<'a> {
    pub fn new(folder: &Path, source: &'a Source, target: &'static str, compiler_version: &str) -> Job<'a> {
        Job {
            source,
            target,
            binary: folder.join(binary_name(source, target)),
            log: folder.join(format!("{}.{target}.log", source.stem())),
            stamp: format!("{:016x} {compiler_version} {}", source.hash, FLAGS.join(" ")),
        }
    }

    pub fn is_up_to_date(&self) -> bool {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        self.binary.exists() && log.lines().next() == Some(&self.stamp)
    }

    /// The binary appears whole or not at all.
    pub fn compile(&self, compiler: &Compiler) -> Result<(), String> {
        let partial = self.binary.with_extension("partial");
        let mut nvcc = Command::new(&compiler.path);
        nvcc.args(FLAGS).arg(if self.target.starts_with("sm_") { "-cubin" } else { "-ptx" });
        let virtual_target = self.target.replace("sm_", "compute_");
        nvcc.arg(format!("-gencode=arch={virtual_target},code={}", self.target));
        nvcc.arg("-o").arg(&partial).arg(&self.source.path);
        let output = nvcc.output().map_err(|e| format!("cannot start {}: {e}", compiler.path.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let remedy = if lacks_host_compiler(&said) { "nvcc needs a C++ compiler: install g++\n" } else { "" };
            return Err(format!("{} does not compile for {}:\n{said}{remedy}", self.source.name, self.target));
        }
        std::fs::rename(&partial, &self.binary).map_err(|e| format!("cannot write {}: {e}", self.binary.display()))?;
        super::write(&self.log, &format!("{}\n{said}", self.stamp))
    }

    /// What each of its kernels takes, as the assembler said; nothing for PTX.
    pub fn usage(&self) -> Vec<Usage> {
        usage(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Spills that the source does not declare, as sentences.
    pub fn undeclared_spills(&self) -> Vec<String> {
        let mut found = Vec::new();
        for Usage { name, spill_bytes, .. } in self.usage() {
            let allowed = declared_spills(&self.source.text, &name);
            if spill_bytes > allowed {
                found.push(format!(
                    "{}: {name} spills {spill_bytes} bytes on {}, declared are {allowed} (a line `// spills: {name} N`)",
                    self.source.name, self.target
                ));
            }
        }
        found
    }
}

/// File name of a source's binary.
pub fn binary_name(source: &Source, target: &str) -> String {
    let kind = if target.starts_with("sm_") { "cubin" } else { "ptx" };
    format!("{}.{target}.{kind}", source.stem())
}

fn lacks_host_compiler(said: &str) -> bool {
    ["cc1plus", "gcc: not found", "host compiler"].iter().any(|sign| said.contains(sign))
}
