//! Shared libraries opened at run time.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;

/// An open library; never closed, since CUDA's libraries do not take that well.
#[derive(Clone, Copy)]
pub(crate) struct Library(*mut c_void);

// SAFETY: a handle of dlopen may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above; dlsym is thread-safe.
unsafe impl Sync for Library {}

impl Library {
    /// Opens a library by file name or path.
    ///
    /// # Errors
    /// What the system's loader says.
    pub(crate) fn open(name: &Path) -> Result<Library, String> {
        let path =
            CString::new(name.as_os_str().as_encoded_bytes()).map_err(|_| "a NUL byte in the name".to_owned())?;
        // SAFETY: `path` is a C string. Initialisers of the library run: those of CUDA's libraries are sound to run.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() { Err(last_error()) } else { Ok(Library(handle)) }
    }

    /// The address of a function.
    ///
    /// # Errors
    /// What the system's loader says.
    pub(crate) fn symbol(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle is open for good, `name` is a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() { Err(last_error()) } else { Ok(address) }
    }
}

fn last_error() -> String {
    // SAFETY: dlerror returns null or a C string that lives until this thread's next call of the dl functions.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".into();
    }
    // SAFETY: as above, not null here.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
