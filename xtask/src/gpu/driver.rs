//! Whether there is an NVIDIA driver, as cheaply as can be told: by the files that it makes.

use std::path::Path;

/// Any one of these is there: the control device, the kernel module's page, or the driver of a Windows host.
const SIGNS: [&str; 3] = ["dev/nvidiactl", "proc/driver/nvidia/version", "usr/lib/wsl/lib/libcuda.so.1"];

/// Looks below `/`, or below another folder in a test.
pub fn is_there(root: &Path) -> bool {
    SIGNS.iter().any(|sign| root.join(sign).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

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
