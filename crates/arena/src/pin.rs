//! [`Pinner`]: how an executor page-locks regions without the arena knowing its device. [`LockPages`] does it with the
//! kernel alone.

use crate::sys;
use std::io;

/// Page-locks memory in place.
pub trait Pinner: Send + Sync {
    /// For people, in errors: `cuMemHostRegister`.
    fn name(&self) -> &str;

    /// Whether what it locks counts against RLIMIT_MEMLOCK, so that the limit is checked beforehand.
    fn counts_against_memlock(&self) -> bool;

    /// Locks `len_bytes` bytes from `ptr`, whole pages, and makes them known to the device. Must not panic.
    ///
    /// # Errors
    /// What the system or the driver said. Nothing is locked then.
    ///
    /// # Safety
    /// The bytes are mapped, nobody else accesses them during the call, and they stay mapped until [`Pinner::unpin`]
    /// has returned.
    unsafe fn pin(&self, ptr: *mut u8, len_bytes: usize) -> Result<(), io::Error>;

    /// Undoes one successful [`Pinner::pin`], with the same arguments. Called from `drop`: must not panic, and has to
    /// keep a failure to itself (the memory is unmapped next, whatever happens here).
    ///
    /// # Safety
    /// The bytes are still mapped, and no device uses them any more.
    unsafe fn unpin(&self, ptr: *mut u8, len_bytes: usize);
}

/// Keeps regions from being swapped out with `mlock`. For training on a CPU of a machine that swaps; a device needs
/// its own pinner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockPages;

impl Pinner for LockPages {
    fn name(&self) -> &str {
        "mlock"
    }

    fn counts_against_memlock(&self) -> bool {
        true
    }

    unsafe fn pin(&self, ptr: *mut u8, len_bytes: usize) -> Result<(), io::Error> {
        // SAFETY: the caller says that the range is mapped; locking does not change its bytes.
        unsafe { sys::lock(ptr, len_bytes) }
    }

    unsafe fn unpin(&self, ptr: *mut u8, len_bytes: usize) {
        // SAFETY: the caller says that the range is still mapped.
        unsafe { sys::unlock(ptr, len_bytes) }
    }
}
