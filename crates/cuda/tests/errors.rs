//! What a person reads when something is missing; with a GPU and without.

use megatrain_cuda::{CudaError, Device, Runner, probe};
use std::path::Path;

#[test]
fn a_machine_without_a_usable_gpu_is_told_what_is_missing() {
    match probe() {
        Ok(count) => {
            let error = Device::open(count).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, CudaError::NoSuchDevice { .. }), "{text}");
            assert!(text.contains(&format!("no GPU {count}")), "{text}");
        }
        Err(error) => {
            let text = error.to_string();
            println!("this machine: {text}");
            assert!(text.contains("NVIDIA driver"), "{text}");
            assert!(Device::open(0).is_err_and(|e| e.to_string() == text));
        }
    }
}

#[test]
fn missing_kernels_are_named_with_the_command_that_makes_them() {
    let Ok(device) = Device::open(0) else { return };
    let text = Runner::new(&device, Some(Path::new("no/such/folder"))).unwrap_err().to_string();
    assert!(text.contains("no/such/folder") && text.contains("cargo xtask kernels"), "{text}");
}
