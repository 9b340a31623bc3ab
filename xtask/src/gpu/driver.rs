//! Whether there is an NVIDIA driver, and one new enough, as cheaply as can be told: by the files that it makes.

use std::path::Path;
use std::process::Command;

/// Any one of these is there: the control device, the kernel module's page, or the driver of a Windows host.
const SIGNS: [&str; 3] = ["dev/nvidiactl", "proc/driver/nvidia/version", "usr/lib/wsl/lib/libcuda.so.1"];

/// The driver of CUDA 13.0, the oldest that runs our kernels.
const OLDEST_BRANCH: u32 = 580;
const OLDEST_CUDA: u32 = 13;

/// Looks below `/`, or below another folder in a test.
pub fn is_there(root: &Path) -> bool {
    SIGNS.iter().any(|sign| root.join(sign).exists())
}

/// Whether it is known that programs of CUDA 13 do not run: the kernel module is older, and the libraries are no newer, as
/// they may be in a container (CUDA's forward compatibility). megatrain says it to the person, so nobody else needs to.
pub fn is_too_old(root: &Path) -> bool {
    let about = std::fs::read_to_string(root.join("proc/driver/nvidia/version")).unwrap_or_default();
    branch(&about).is_some_and(|branch| branch < OLDEST_BRANCH) && {
        let output = Command::new("nvidia-smi").output().map(|output| output.stdout).unwrap_or_default();
        cuda(&String::from_utf8_lossy(&output)).is_some_and(|cuda| cuda < OLDEST_CUDA)
    }
}

/// The first number of the kernel module's version, e.g. 550 of 550.54.14.
fn branch(about: &str) -> Option<u32> {
    let words = about.lines().next()?.split_whitespace();
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    words.filter(is_version).find_map(|word| word.split('.').next()?.parse().ok())
}

/// The major version of CUDA that the libraries support, as `nvidia-smi` tells.
fn cuda(said: &str) -> Option<u32> {
    said.split_once("CUDA Version: ")?.1.split('.').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (about, expected) in [
            ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC version:  12.3.0", Some(535)),
            ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", Some(580)),
            ("NVRM version: something else\nGCC version:  gcc version 12.3.0", None),
            ("", None),
        ] {
            assert_eq!(branch(about), expected, "{about}");
        }
        let header = "| NVIDIA-SMI 550.54.14    Driver Version: 550.54.14    CUDA Version: 12.4     |";
        assert_eq!(cuda(header), Some(12));
        assert_eq!(cuda("| CUDA Version: N/A |"), None);
        assert_eq!(cuda("NVIDIA-SMI has failed"), None);
    }

    #[test]
    fn each_sign_is_enough() {
        for sign in SIGNS {
            let root = std::env::temp_dir().join(format!("xtask-driver-{}", std::process::id()));
            let path = root.join(sign);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            assert!(!is_there(&root));
            std::fs::write(&path, "").unwrap();
            assert!(is_there(&root), "{sign}");
            std::fs::remove_dir_all(&root).unwrap();
        }
    }
}
