//! [`Modules`]: the compiled kernels, loaded on a GPU.

use crate::{CudaError, Device};
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use cudarc::driver::{result, sys};
use megatrain_kernels::{Manifest, SOURCES};
use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::Mutex;

/// Dynamic shared memory that a kernel may use without asking, in bytes.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// Every kernel, by name.
#[derive(Debug)]
pub(crate) struct Modules {
    modules: Vec<sys::CUmodule>,
    functions: Mutex<HashMap<&'static str, Function>>,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    raw: sys::CUfunction,
    /// Dynamic shared memory it may use.
    shared_bytes: u32,
}

// SAFETY: modules and functions may be used from any thread whose context is theirs.
unsafe impl Send for Modules {}
// SAFETY: as above; the map is behind a lock.
unsafe impl Sync for Modules {}

impl Modules {
    /// Loads every source's best binary for this GPU.
    ///
    /// # Errors
    /// [`CudaError::Kernels`], [`CudaError::KernelsForOtherGpu`], [`CudaError::Unreadable`], or what the driver says.
    pub(crate) fn load(device: &Device, folder: Option<&Path>) -> Result<Modules, CudaError> {
        let manifest = Manifest::find(folder)?;
        device.make_current()?;
        let mut modules = Vec::new();
        for (source, _) in SOURCES {
            let binary = manifest.pick(source, device.capability()).ok_or_else(|| CudaError::KernelsForOtherGpu {
                folder: manifest.folder.clone(),
                built: manifest.targets().into_iter().map(str::to_owned).collect(),
                gpu: device.name().into(),
                capability: device.capability(),
            })?;
            let mut image = std::fs::read(&binary.path)
                .map_err(|e| CudaError::Unreadable { path: binary.path.clone(), reason: e.to_string() })?;
            image.push(0);
            // SAFETY: the image is a cubin, which knows its own length, or PTX, which the byte just pushed ends.
            let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
                .map_err(CudaError::driver(format!("loading {}", binary.path.display())))?;
            modules.push(module);
        }
        Ok(Modules { modules, functions: Mutex::new(HashMap::new()) })
    }

    /// A kernel that may use this much dynamic shared memory.
    ///
    /// # Errors
    /// What the driver says: there is no such kernel, or not that much memory.
    pub(crate) fn function(&self, name: &'static str, shared_bytes: u32) -> Result<sys::CUfunction, CudaError> {
        let mut functions = self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let function = match functions.get_mut(name) {
            Some(function) => function,
            None => functions
                .entry(name)
                .or_insert(Function { raw: self.find(name)?, shared_bytes: DEFAULT_SHARED_BYTES }),
        };
        if shared_bytes > function.shared_bytes {
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a module that is loaded until `drop`.
            unsafe { result::function::set_function_attribute(function.raw, attribute, shared_bytes as i32) }
                .map_err(CudaError::driver(format!("giving kernel {name} {shared_bytes} bytes of shared memory")))?;
            function.shared_bytes = shared_bytes;
        }
        Ok(function.raw)
    }

    fn find(&self, name: &str) -> Result<sys::CUfunction, CudaError> {
        let mut last = result::DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND);
        for &module in &self.modules {
            let c_name = CString::new(name).expect("kernel names have no NUL byte");
            // SAFETY: the module is loaded until `drop`.
            match unsafe { result::module::get_function(module, c_name) } {
                Ok(function) => return Ok(function),
                Err(error) => last = error,
            }
        }
        Err(CudaError::driver(format!("looking for kernel {name}"))(last))
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        for &module in &self.modules {
            // SAFETY: loaded once, unloaded once. An error here can be told nobody.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
