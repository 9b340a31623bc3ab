//! The calls of cuBLASLt that matrix products need, found at run time. Constants and layouts as in NVIDIA's cublasLt.h.

use crate::CudaError;
use crate::library::Library;
use crate::places;
use cudarc::driver::sys::CUstream;
use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};

pub(crate) type Handle = *mut c_void;
pub(crate) type Descriptor = *mut c_void;

/// `cudaDataType_t`.
pub(crate) const CUDA_R_32F: i32 = 0;
/// `cudaDataType_t`.
pub(crate) const CUDA_R_16BF: i32 = 14;
/// `cublasComputeType_t`: f32 throughout, no TF32.
pub(crate) const COMPUTE_32F: i32 = 68;
/// `cublasLtMatmulDescAttributes_t`.
pub(crate) const DESC_TRANSA: i32 = 3;
/// `cublasLtMatmulDescAttributes_t`.
pub(crate) const DESC_TRANSB: i32 = 4;
/// `cublasLtMatmulPreferenceAttributes_t`.
pub(crate) const PREF_MAX_WORKSPACE_BYTES: i32 = 1;
/// `cublasLtMatmulPreferenceAttributes_t`.
pub(crate) const PREF_REDUCTION_SCHEME_MASK: i32 = 3;
/// `cublasLtMatmulPreferenceAttributes_t`, for A; B, C and D follow.
pub(crate) const PREF_MIN_ALIGNMENT_A: i32 = 5;
/// `cublasLtReductionScheme_t`: no split-K.
pub(crate) const REDUCTION_NONE: u32 = 0;
/// `cublasLtReductionScheme_t`: split-K sums in the workspace in f32, never in place, whose order is not fixed.
pub(crate) const REDUCTION_COMPUTE_TYPE: u32 = 2;
/// `cublasLtMatmulAlgoConfigAttributes_t`, a `uint32_t`.
pub(crate) const CONFIG_REDUCTION_SCHEME: i32 = 3;

/// `cublasLtMatmulAlgo_t`: opaque, and may be stored for later use with the same version of the library.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Algorithm {
    pub(crate) data: [u64; 8],
}

impl Algorithm {
    /// Its bytes in the order of memory, two hex digits each.
    pub(crate) fn hex(&self) -> String {
        self.data.iter().flat_map(|word| word.to_ne_bytes()).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`Algorithm::hex`] wrote, and nothing else.
    pub(crate) fn from_hex(text: &str) -> Option<Algorithm> {
        let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
        let bytes: [u8; size_of::<Algorithm>()] = digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0))
            .collect::<Vec<_>>()
            .try_into()
            .ok()?;
        let mut data = [0; 8];
        for (word, bytes) in data.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        let algorithm = Algorithm { data };
        (algorithm.hex() == text).then_some(algorithm)
    }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heuristic {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace_bytes: usize,
    pub(crate) state: i32,
    waves: f32,
    reserved: [i32; 4],
}

impl Heuristic {
    pub(crate) const EMPTY: Heuristic = Heuristic {
        algorithm: Algorithm { data: [0; 8] },
        workspace_bytes: 0,
        state: -1,
        waves: 0.0,
        reserved: [0; 4],
    };
}

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $result:ty;)*) => {
        /// The functions; an `i32` that they return is a status, 0 for success.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }
        impl Functions {
            fn find(library: &Library) -> Result<Functions, String> {
                Ok(Functions { $($field: {
                    let address = library.symbol($symbol)?;
                    // SAFETY: the symbol is the function of this name, whose C signature is the one declared here.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $result>(address) }
                },)* })
            }
        }
    };
}

functions! {
    version = c"cublasLtGetVersion": fn() -> usize;
    create = c"cublasLtCreate": fn(*mut Handle) -> i32;
    destroy = c"cublasLtDestroy": fn(Handle) -> i32;
    desc_create = c"cublasLtMatmulDescCreate": fn(*mut Descriptor, i32, i32) -> i32;
    desc_destroy = c"cublasLtMatmulDescDestroy": fn(Descriptor) -> i32;
    desc_set = c"cublasLtMatmulDescSetAttribute": fn(Descriptor, i32, *const c_void, usize) -> i32;
    layout_create = c"cublasLtMatrixLayoutCreate": fn(*mut Descriptor, i32, u64, u64, i64) -> i32;
    layout_destroy = c"cublasLtMatrixLayoutDestroy": fn(Descriptor) -> i32;
    preference_create = c"cublasLtMatmulPreferenceCreate": fn(*mut Descriptor) -> i32;
    preference_destroy = c"cublasLtMatmulPreferenceDestroy": fn(Descriptor) -> i32;
    preference_set = c"cublasLtMatmulPreferenceSetAttribute": fn(Descriptor, i32, *const c_void, usize) -> i32;
    heuristic = c"cublasLtMatmulAlgoGetHeuristic": fn(
        Handle, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, i32, *mut Heuristic, *mut i32
    ) -> i32;
    matmul = c"cublasLtMatmul": fn(
        Handle, Descriptor, *const f32, *const c_void, Descriptor, *const c_void, Descriptor, *const f32, *const c_void,
        Descriptor, *mut c_void, Descriptor, *const Algorithm, *mut c_void, usize, CUstream
    ) -> i32;
    algo_check = c"cublasLtMatmulAlgoCheck": fn(
        Handle, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, *const Algorithm, *mut Heuristic
    ) -> i32;
    algo_config_get = c"cublasLtMatmulAlgoConfigGetAttribute": fn(
        *const Algorithm, i32, *mut c_void, usize, *mut usize
    ) -> i32;
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cuBLASLt")
    }
}

/// Opens the file that MEGATRAIN_CUBLASLT names, or else the first that can be opened of those in [`places`].
///
/// # Errors
/// [`CudaError::NoCublasLt`].
fn load() -> Result<Functions, CudaError> {
    let program = std::env::current_exe().unwrap_or_default();
    load_from(places::named(|name| std::env::var_os(name)), places::places(|name| std::env::var_os(name), &program))
}

fn load_from(named: Option<PathBuf>, places: Vec<PathBuf>) -> Result<Functions, CudaError> {
    let open = |path: &Path| Library::open(path).and_then(|library| Functions::find(&library));
    if let Some(file) = named {
        return open(&file).map_err(|reason| CudaError::NoCublasLt {
            reason: format!("{} names {}: {reason}", places::VARIABLE, file.display()),
        });
    }
    let mut reasons = Vec::new();
    for path in &places {
        match open(path) {
            Ok(functions) => return Ok(functions),
            // That there is no such file is no news; that one does not open is.
            Err(reason) if reason.starts_with(&*path.to_string_lossy()) && reason.contains("No such file") => {}
            Err(reason) => reasons.push(reason),
        }
    }
    let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    reasons.push(format!("looked for {}", places.join(", ")));
    Err(CudaError::NoCublasLt { reason: reasons.join("; ") })
}

/// The library, started on the GPU whose context was current.
#[derive(Debug)]
pub(crate) struct CublasLt {
    pub(crate) functions: Functions,
    pub(crate) handle: Handle,
}

// SAFETY: NVIDIA documents the handle as usable from several threads.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    /// Opens and starts the library. A context must be current.
    ///
    /// # Errors
    /// [`CudaError::NoCublasLt`], [`CudaError::CublasLt`].
    pub(crate) fn start() -> Result<CublasLt, CudaError> {
        let functions = load()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes the handle.
        check("starting cuBLASLt", unsafe { (functions.create)(&mut handle) })?;
        Ok(CublasLt { functions, handle })
    }

    /// The library's version, e.g. 130100.
    pub(crate) fn version(&self) -> usize {
        // SAFETY: takes nothing and only reads a constant.
        unsafe { (self.functions.version)() }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made in `start`, destroyed once.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

/// # Errors
/// [`CudaError::CublasLt`] for any status but success.
pub(crate) fn check(what: &str, status: i32) -> Result<(), CudaError> {
    if status == 0 { Ok(()) } else { Err(CudaError::CublasLt { what: what.into(), status }) }
}

/// A descriptor of cuBLASLt's, destroyed on drop.
pub(crate) struct Owned {
    pub(crate) raw: Descriptor,
    destroy: unsafe extern "C" fn(Descriptor) -> i32,
}

impl Owned {
    /// # Errors
    /// [`CudaError::CublasLt`].
    pub(crate) fn new(
        what: &CStr,
        destroy: unsafe extern "C" fn(Descriptor) -> i32,
        create: impl FnOnce(*mut Descriptor) -> i32,
    ) -> Result<Owned, CudaError> {
        let mut raw = std::ptr::null_mut();
        check(&what.to_string_lossy(), create(&mut raw))?;
        Ok(Owned { raw, destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `raw` was made by the creating function that goes with `destroy`, and is destroyed once.
        unsafe { (self.destroy)(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_found_and_the_version_is_13_where_the_library_is() {
        match load() {
            // SAFETY: takes nothing and only reads a constant.
            Ok(functions) => assert_eq!(unsafe { (functions.version)() } / 10_000, 13),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("MEGATRAIN_CUBLASLT") && !text.contains("undefined symbol"), "{text}");
                println!("skipped: {text}");
            }
        }
    }

    #[test]
    fn a_missing_library_is_an_error_that_says_where_it_was_looked_for_and_what_to_do() {
        let text = load_from(None, vec!["no/such/folder/lib.so".into()]).map(drop).unwrap_err().to_string();
        for part in ["looked for no/such/folder/lib.so", "cargo xtask train", "pip install", "MEGATRAIN_CUBLASLT"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_does_not_open_is_passed_over_and_told() {
        let broken = std::env::temp_dir().join(format!("megatrain-cublaslt-{}", std::process::id()));
        std::fs::write(&broken, "no library").unwrap();
        let text = load_from(None, vec![broken.clone(), "no/such.so".into()]).map(drop).unwrap_err().to_string();
        assert!(text.contains(&format!("{}: ", broken.display())) && text.contains("no/such.so"), "{text}");
        let text = load_from(Some(broken.clone()), vec!["no/such.so".into()]).map(drop).unwrap_err().to_string();
        assert!(text.contains("MEGATRAIN_CUBLASLT names") && !text.contains("no/such.so"), "{text}");
        std::fs::remove_file(&broken).unwrap();
    }

    #[test]
    fn structures_have_the_sizes_of_cublaslt_h() {
        assert_eq!((size_of::<Algorithm>(), size_of::<Heuristic>()), (64, 64 + 8 + 4 + 4 + 16));
    }
}
