//! [`Modules`]: the compiled kernels, loaded on a GPU.

use crate::{CudaError, Device};
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use cudarc::driver::{result, sys};
use megatrain_kernels::{Manifest, SOURCES};
use std::collections::HashMap;
use std::ffi::CStr;
use std::path::Path;
use std::sync::Mutex;

/// Dynamic shared memory that a kernel may use without asking, in bytes.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// Every kernel, by name.
#[derive(Debug)]
pub(crate) struct Modules {
    modules: Vec<sys::CUmodule>,
    functions: Mutex<HashMap<String, Function>>,
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
        // Filled step by step, so that what is loaded is unloaded if a later one fails.
        let mut loaded = Modules { modules: Vec::new(), functions: Mutex::default() };
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
            loaded.modules.push(module);
            let functions = loaded.functions.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
            functions
                .extend(functions_of(module).map_err(CudaError::driver(format!("listing {}", binary.path.display())))?);
        }
        Ok(loaded)
    }

    /// A kernel that may use this much dynamic shared memory.
    ///
    /// # Errors
    /// What the driver says: there is no such kernel, or not that much memory.
    pub(crate) fn function(&self, name: &str, shared_bytes: u32) -> Result<sys::CUfunction, CudaError> {
        let mut functions = self.functions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let not_found = result::DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND);
        let function = functions
            .get_mut(name)
            .ok_or_else(|| CudaError::driver(format!("looking for kernel {name}"))(not_found))?;
        if shared_bytes > function.shared_bytes {
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a module that is loaded until `drop`.
            unsafe { result::function::set_function_attribute(function.raw, attribute, shared_bytes as i32) }
                .map_err(CudaError::driver(format!("giving kernel {name} {shared_bytes} bytes of shared memory")))?;
            function.shared_bytes = shared_bytes;
        }
        Ok(function.raw)
    }
}

/// A module's kernels by name.
fn functions_of(module: sys::CUmodule) -> Result<Vec<(String, Function)>, result::DriverError> {
    let mut count = 0;
    // SAFETY: the module is loaded; writes the count.
    unsafe { sys::cuModuleGetFunctionCount(&mut count, module) }.result()?;
    let mut raws = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: there is room for `count` functions.
    unsafe { sys::cuModuleEnumerateFunctions(raws.as_mut_ptr(), count, module) }.result()?;
    let mut functions = Vec::new();
    for raw in raws {
        let mut name = std::ptr::null();
        // SAFETY: the function was just listed; writes a C string that lives as long as its module.
        unsafe { sys::cuFuncGetName(&mut name, raw) }.result()?;
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        functions.push((name, Function { raw, shared_bytes: DEFAULT_SHARED_BYTES }));
    }
    Ok(functions)
}

impl Drop for Modules {
    fn drop(&mut self) {
        for &module in &self.modules {
            // SAFETY: loaded once, unloaded once. An error here can be told nobody.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
