//! The system calls that the arena makes, each with a Rust signature. Nothing here decides anything.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

/// Bytes of a page: 4096 on x86-64.
pub(crate) fn page_bytes() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: sysconf takes no pointer and has no precondition.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).ok().filter(|b| b.is_power_of_two()).unwrap_or(4096)
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Maps `len` bytes of zeros, private and anonymous, at a multiple of `align` if address space allows. `len` and
/// `align` are multiples of the page and positive.
pub(crate) fn map_anonymous(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    let slack = align.saturating_sub(page_bytes());
    if slack == 0 {
        return map(len);
    }
    let Some(base) = len.checked_add(slack).and_then(|wide| map(wide).ok()) else { return map(len) };
    let head = base.as_ptr().align_offset(align);
    // SAFETY: head <= slack because base is page aligned, so [head, head + len) and what is unmapped around it lie in
    // the mapping of len + slack bytes just made, which nobody else knows.
    unsafe {
        let start = base.add(head);
        if head > 0 {
            unmap(base.as_ptr(), head);
        }
        if slack > head {
            unmap(start.add(len).as_ptr(), slack - head);
        }
        Ok(start)
    }
}

fn map(len: usize) -> io::Result<NonNull<u8>> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping at an address of the kernel's choice replaces no other.
    let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned the null page"))
}

/// Unmaps. A failure leaves address space behind and nothing else, so it is not reported.
///
/// # Safety
/// The range is whole pages of a mapping that the caller owns and nobody accesses any more.
pub(crate) unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: as promised by the caller.
    unsafe { libc::munmap(base.cast(), len) };
}

/// Asks for transparent huge pages.
///
/// # Safety
/// The range is whole pages of an anonymous mapping that the caller owns.
pub(crate) unsafe fn advise_huge(base: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: the advice changes how the pages are backed, never their contents.
    check(unsafe { libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE) })
}

/// Prefers a node's memory for pages not touched yet. Preferred and not bound: a full node makes the run slower, not
/// dead.
///
/// # Safety
/// The range is whole pages of a mapping that the caller owns.
pub(crate) unsafe fn prefer_node(base: *mut u8, len: usize, node: usize) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let mut mask = vec![0 as libc::c_ulong; node / BITS + 1];
    mask[node / BITS] = 1 << (node % BITS);
    // The kernel takes the number of bits plus one.
    let max_node = (mask.len() * BITS + 1) as libc::c_ulong;
    let (mode, flags) = (libc::MPOL_PREFERRED as libc::c_long, 0 as libc::c_ulong);
    // SAFETY: mbind(2) changes the placement of the range, not its contents, and reads max_node - 1 bits of the mask.
    let result = unsafe { libc::syscall(libc::SYS_mbind, base, len, mode, mask.as_ptr(), max_node, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps the calling thread on some CPUs. Those beyond the set's size are left out.
pub(crate) fn run_on(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: cpu_set_t is an array of integers, for which zeros are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: cpu is below the set's size.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is valid for its size, and 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) })
}

/// Locks pages in memory.
///
/// # Safety
/// The range is mapped.
pub(crate) unsafe fn lock(base: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: as promised by the caller; mlock reads nothing of the range that the program could tell.
    check(unsafe { libc::mlock(base.cast(), len) })
}

/// Undoes [`lock`].
///
/// # Safety
/// The range is mapped.
pub(crate) unsafe fn unlock(base: *mut u8, len: usize) {
    // SAFETY: as promised by the caller.
    unsafe { libc::munlock(base.cast(), len) };
}

/// Allocates the blocks of a new file's first `len` bytes, so that writing to its mapping cannot run out of space.
pub(crate) fn allocate(file: &File, len: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// What the file system of a file to be says.
pub(crate) struct FileSystem {
    /// Tells file systems apart.
    pub(crate) device: u64,
    /// Bytes that an ordinary user may still write.
    pub(crate) free_bytes: u64,
    /// Whether its files are memory (tmpfs, ramfs).
    pub(crate) in_memory: bool,
}

/// Asks the file system of the directory that `path` is to be made in.
pub(crate) fn file_system(path: &Path) -> io::Result<FileSystem> {
    const RAMFS_MAGIC: u64 = 0x8584_58f6; // statfs(2)
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let device = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(dir)?);
    let name = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: statfs is plain integers, for which zeros are valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends in a zero byte, and the kernel fills `stat`.
    check(unsafe { libc::statfs(name.as_ptr(), &mut stat) })?;
    let kind = stat.f_type as u64 & 0xffff_ffff;
    // A tmpfs without a limit, and ramfs, have no blocks at all.
    let free = (stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64);
    Ok(FileSystem {
        device,
        free_bytes: if stat.f_blocks == 0 { u64::MAX } else { free },
        in_memory: kind == libc::TMPFS_MAGIC as u64 || kind == RAMFS_MAGIC,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_aligned_and_writable_to_its_ends() {
        let (page, huge) = (page_bytes(), 2 << 20);
        for len in [huge, huge + page, 3 * huge - page] {
            let base = map_anonymous(len, huge).unwrap();
            assert_eq!(base.as_ptr() as usize % huge, 0);
            // SAFETY: [base, base + len) was just mapped for writing and is unmapped once.
            unsafe {
                base.as_ptr().write(1);
                base.as_ptr().add(len - 1).write(1);
                unmap(base.as_ptr(), len);
            }
        }
    }

    /// Address space of this process, in bytes.
    fn address_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().trim().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn aligning_takes_no_address_space() {
        let (page, huge, count) = (page_bytes(), 2 << 20, 1024);
        let before = address_bytes();
        let maps: Vec<_> = (0..count).map(|_| map_anonymous(huge + page, huge).unwrap()).collect();
        let taken = address_bytes() - before;
        // What is not given back would be a gibibyte or two; threads of other tests come and go with much less.
        let exact = count * (huge + page);
        assert!(taken < exact + exact / 4, "{taken} bytes of address space for {exact}");
        for base in maps {
            // SAFETY: mapped above with this length, and nobody else has the address.
            unsafe { unmap(base.as_ptr(), huge + page) };
        }
    }

    #[test]
    fn a_preferred_node_is_what_the_kernel_reports() {
        let len = page_bytes();
        let base = map_anonymous(len, len).unwrap();
        // SAFETY: the page was just mapped.
        let bound = unsafe { prefer_node(base.as_ptr(), len, 0) };
        let mut mode: libc::c_int = -1;
        // SAFETY: get_mempolicy(2) with MPOL_F_ADDR (2) writes the mode of the page at an address, and no mask here.
        let asked = unsafe {
            let null = ptr::null::<u8>();
            libc::syscall(libc::SYS_get_mempolicy, &mut mode, null, 0 as libc::c_ulong, base.as_ptr(), 2u64)
        };
        match bound {
            Ok(()) => assert_eq!((asked, mode), (0, libc::MPOL_PREFERRED)),
            // Kernels without NUMA, and containers that forbid the call.
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{e}"),
        }
        // SAFETY: mapped above with this length, and nobody else has the address.
        unsafe { unmap(base.as_ptr(), len) };
    }

    #[test]
    fn tmpfs_is_known_to_be_memory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(file_system(&dir.path().join("file")).unwrap().free_bytes > 0);
        assert!(file_system(&dir.path().join("absent/file")).is_err());
        assert_eq!(file_system(Path::new("/proc/file")).unwrap().free_bytes, u64::MAX, "no blocks is no limit");
        let shm = Path::new("/dev/shm");
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        if mounts.lines().any(|m| m.split(' ').nth(1) == Some("/dev/shm") && m.split(' ').nth(2) == Some("tmpfs")) {
            assert!(file_system(&shm.join("file")).unwrap().in_memory);
        }
    }
}
