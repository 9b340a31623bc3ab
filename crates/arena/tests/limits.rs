//! Refusals: fake `/proc` and cgroup trees, and the sentences that a user reads when a plan does not fit.

use megatrain_arena::{
    Backing, Bound, CommitOptions, Error, Kind, Limits, PinFailure, Pinner, Plan, Reservation, Resource,
};
use std::io;
use std::path::Path;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

/// A machine with 64 GiB of which 60 are available, and no other limit.
const MACHINE: &[(&str, &str)] = &[
    ("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   62914560 kB\n"),
    ("proc/self/limits", LIMITS),
    ("proc/self/status", "Name:\tt\nVmSize:\t    1024 kB\nVmLck:\t      16 kB\nCapEff:\t0000000000000000\n"),
    ("proc/self/uid_map", "         0          0 4294967295\n"),
    ("proc/sys/vm/overcommit_memory", "0\n"),
];

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max locked memory         8388608              8388608              bytes     \n\
                      Max address space         unlimited            unlimited            bytes     \n\
                      Max file locks            unlimited            unlimited            locks     \n";

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in MACHINE.iter().chain(files) {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn read(files: &[(&str, &str)]) -> Limits {
    Limits::read_at(tree(files).path()).unwrap()
}

/// 16 GiB of weights and moments, and what an export is expected to take.
fn plan() -> Plan {
    let mut plan = Plan::new();
    plan.reserve("weights", Kind::Weights, 2 * GIB);
    plan.reserve("moments", Kind::OptimizerState, 12 * GIB);
    plan.allow_for("export: one shard", 2 * GIB);
    plan
}

fn refusal(plan: &Plan, limits: &Limits) -> String {
    plan.check(limits).unwrap_err().to_string()
}

fn bound(resource: Resource, limit_bytes: u64, used_bytes: u64, source: &str) -> Option<Bound> {
    Some(Bound { resource, limit_bytes, used_bytes, source: source.into() })
}

const V2: &[(&str, &str)] = &[
    ("proc/self/cgroup", "0::/job.slice/step\n"),
    ("proc/self/mountinfo", "30 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"),
    ("sys/fs/cgroup/job.slice/step/memory.max", "max\n"),
    ("sys/fs/cgroup/job.slice/step/memory.current", "1073741824\n"),
    ("sys/fs/cgroup/job.slice/memory.max", "8589934592\n"),
    ("sys/fs/cgroup/job.slice/memory.current", "3221225472\n"),
    ("sys/fs/cgroup/job.slice/memory.stat", "anon 1\ninactive_file 1073741824\nactive_file 1073741824\n"),
];

#[test]
fn a_plan_within_all_limits_passes() {
    plan().check(&read(&[])).unwrap();
    plan().check(&Limits::default()).unwrap();
}

#[test]
fn a_plan_for_more_than_the_free_memory_is_refused_before_it_can_be_killed() {
    let mut plan = plan();
    plan.reserve("spill", Kind::Activations, 44 * GIB);
    plan.check(&read(&[])).unwrap();
    // What others allocate while the run goes on, an export for instance, counts as much as the arena.
    plan.allow_for("loader", 4096);
    assert_eq!(
        refusal(&plan, &read(&[])),
        "the memory plan does not fit, and nothing was allocated\n  \
         host memory: 60.00 GiB needed, 60.00 GiB available; the machine's memory is 64.00 GiB, 4.00 GiB of it in use \
         (/proc/meminfo)\n    \
         end other programs, use a machine with more memory, or back a group with files; or plan less: the largest \
         group is activations with 44.00 GiB"
    );
}

#[test]
fn a_v2_limit_of_any_ancestor_binds_and_file_cache_does_not_count() {
    let limits = read(V2);
    let source = "/sys/fs/cgroup/job.slice/memory.max";
    assert_eq!(limits.bound(Resource::CgroupV2).cloned(), bound(Resource::CgroupV2, 8 * GIB, GIB, source));
    assert_eq!(
        refusal(&plan(), &limits),
        "the memory plan does not fit, and nothing was allocated\n  \
         host memory: 16.00 GiB needed, 7.00 GiB available; the cgroup v2 limit is 8.00 GiB, 1.00 GiB of it in use \
         (/sys/fs/cgroup/job.slice/memory.max)\n    \
         raise it (docker --memory, Kubernetes resources.limits.memory, Slurm --mem, systemd MemoryMax and \
         MemoryHigh); or plan less: the largest group is optimizer state with 12.00 GiB"
    );
}

#[test]
fn the_tightest_level_is_the_one_with_least_left() {
    let high = ("sys/fs/cgroup/job.slice/step/memory.high", "2147483648\n");
    let source = "/sys/fs/cgroup/job.slice/step/memory.high";
    let limits = read(&[V2, &[high]].concat());
    assert_eq!(limits.bound(Resource::CgroupV2).cloned(), bound(Resource::CgroupV2, 2 * GIB, GIB, source));
    // A larger limit that is nearly used up.
    let full = ("sys/fs/cgroup/job.slice/memory.current", "10200547328\n");
    let source = "/sys/fs/cgroup/job.slice/memory.max";
    let limits = read(&[V2, &[high, full]].concat());
    assert_eq!(limits.bound(Resource::CgroupV2).cloned(), bound(Resource::CgroupV2, 8 * GIB, 15 * GIB / 2, source));
}

#[test]
fn a_v1_limit_binds_beside_an_empty_v2_mount() {
    let files = [
        ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/abc/inner\n0::/\n"),
        (
            "proc/self/mountinfo",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/my\\040memory rw - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("sys/fs/cgroup/my memory/inner/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/my memory/inner/memory.usage_in_bytes", "4096\n"),
        ("sys/fs/cgroup/my memory/memory.limit_in_bytes", "4294967296\n"),
        ("sys/fs/cgroup/my memory/memory.usage_in_bytes", "1073741824\n"),
        (
            "sys/fs/cgroup/my memory/memory.stat",
            "inactive_file 1\ntotal_inactive_file 536870912\ntotal_active_file 0\n",
        ),
    ];
    let limits = read(&files);
    assert_eq!(limits.bound(Resource::CgroupV2), None);
    assert_eq!(
        refusal(&plan(), &limits),
        "the memory plan does not fit, and nothing was allocated\n  \
         host memory: 16.00 GiB needed, 3.50 GiB available; the cgroup v1 limit is 4.00 GiB, 512.00 MiB of it in use \
         (/sys/fs/cgroup/my memory/memory.limit_in_bytes)\n    \
         raise it (docker --memory, Kubernetes resources.limits.memory, Slurm --mem); or plan less: the largest group \
         is optimizer state with 12.00 GiB"
    );
}

#[test]
fn groups_without_a_limit_bind_nothing() {
    let files = [
        ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
        (
            "proc/self/mountinfo",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/unified/b/memory.max", "max\n"),
        ("sys/fs/cgroup/unified/b/memory.high", "max\n"),
    ];
    let limits = read(&files);
    assert_eq!((limits.bound(Resource::CgroupV1), limits.bound(Resource::CgroupV2)), (None, None));
}

#[test]
fn a_group_path_of_the_host_falls_back_to_the_mount_point() {
    for (path, root) in [("/../../host", "/"), ("/kubepods/pod1", "/other"), ("/", "/../../host")] {
        let files = [
            ("proc/self/cgroup", &*format!("0::{path}\n")),
            ("proc/self/mountinfo", &*format!("30 23 0:28 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")),
            ("sys/fs/cgroup/memory.max", "8192\n"),
            ("sys/host/memory.max", "4096\n"),
        ];
        let source = "/sys/fs/cgroup/memory.max";
        assert_eq!(read(&files).bound(Resource::CgroupV2).cloned(), bound(Resource::CgroupV2, 8192, 0, source));
    }
}

#[test]
fn every_limit_that_is_too_small_is_named_the_tightest_first() {
    let more = [
        (
            "proc/meminfo",
            "MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\nCommitLimit: 4194304 kB\nCommitted_AS: 1048576 kB\n",
        ),
        ("proc/sys/vm/overcommit_memory", "2\n"),
        ("proc/self/limits", "Max address space         12884901888          unlimited            bytes     \n"),
    ];
    let text = refusal(&plan(), &read(&[V2, &more].concat()));
    let lines: Vec<&str> = text.lines().skip(1).step_by(2).collect();
    assert_eq!(
        lines,
        [
            "  promised memory: 16.00 GiB needed, 3.00 GiB available; the commit limit is 4.00 GiB, 1.00 GiB of it in \
             use (/proc/meminfo)",
            "  host memory: 16.00 GiB needed, 7.00 GiB available; the cgroup v2 limit is 8.00 GiB, 1.00 GiB of it in \
             use (/sys/fs/cgroup/job.slice/memory.max)",
            "  host memory: 16.00 GiB needed, 8.00 GiB available; the machine's memory is 8.00 GiB (/proc/meminfo)",
            "  address space: 16.00 GiB needed, 12.00 GiB available; the address space limit is 12.00 GiB, 1.00 MiB of \
             it in use (/proc/self/limits)",
        ]
    );
    assert!(text.contains("ulimit -v unlimited") && text.contains("vm.overcommit_memory to 0"), "{text}");
}

struct Device;
impl Pinner for Device {
    fn name(&self) -> &str {
        "device"
    }
    fn counts_against_memlock(&self) -> bool {
        true
    }
    unsafe fn pin(&self, _: *mut u8, _: usize) -> io::Result<()> {
        Ok(())
    }
    unsafe fn unpin(&self, _: *mut u8, _: usize) {}
}

#[test]
fn the_memlock_limit_binds_pinned_regions_where_something_pins() {
    let mut plan = Plan::new();
    plan.reserve("moments", Kind::OptimizerState, GIB);
    plan.add(Reservation::new("weights", Kind::Weights, 8 << 20).pinned());
    let limits = read(&[]);
    plan.check(&limits).unwrap();
    let mut options = CommitOptions { pinner: Some(Arc::new(Device)), ..Default::default() };
    assert_eq!(
        plan.check_with(&limits, &options).unwrap_err().to_string(),
        "the memory plan does not fit, and nothing was allocated\n  \
         page-locked memory: 8.00 MiB needed, 7.98 MiB available; the memlock limit is 8.00 MiB, 16.00 KiB of it in \
         use (/proc/self/limits)\n    \
         raise it (`ulimit -l unlimited`, memlock in /etc/security/limits.conf, docker --ulimit memlock=-1, systemd \
         LimitMEMLOCK=infinity), or allow pageable memory with PinFailure::Pageable"
    );
    options.pin_failure = PinFailure::Pageable;
    plan.check_with(&limits, &options).unwrap();
}

#[test]
fn a_capability_lifts_the_memlock_limit_only_outside_user_namespaces() {
    let capable = ("proc/self/status", "CapEff:\t0000000000004000\n");
    assert_eq!(read(&[capable]).bound(Resource::Memlock), None);
    let rootless = ("proc/self/uid_map", "         0       1000          1\n");
    assert!(read(&[capable, rootless]).bound(Resource::Memlock).is_some());
    let other = ("proc/self/status", "CapEff:\t000001ffffffbfff\n");
    assert!(read(&[other]).bound(Resource::Memlock).is_some());
}

#[test]
fn files_are_checked_against_free_space_and_not_against_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = Plan::new();
    for name in ["a", "b"] {
        let backing = Backing::NewFile(dir.path().join(name));
        plan.add(Reservation::new(name, Kind::OptimizerState, 3 * GIB / 2).backed_by(backing));
    }
    let disk = |limit_bytes| Limits {
        bounds: vec![Bound { resource: Resource::Disk, limit_bytes, used_bytes: 0, source: "quota".into() }],
    };
    plan.check(&disk(3 * GIB)).unwrap();
    assert_eq!(
        refusal(&plan, &disk(3 * GIB - 1)),
        "the memory plan does not fit, and nothing was allocated\n  \
         file space: 3.00 GiB needed, 3.00 GiB available; the file system's free space is 3.00 GiB (quota)\n    \
         free some, or name files on another file system"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "checking makes no file");

    let mut huge = Plan::new();
    huge.add(Reservation::new("huge", Kind::Other, 1 << 62).backed_by(Backing::NewFile(dir.path().join("huge"))));
    assert!(
        refusal(&huge, &Limits::default()).contains("file space: 4096.00 PiB needed"),
        "the real file system's word"
    );

    let mut lost = Plan::new();
    lost.add(Reservation::new("lost", Kind::Other, 1).backed_by(Backing::NewFile(dir.path().join("no/where"))));
    assert!(refusal(&lost, &Limits::default()).starts_with("region `lost`: cannot find the file system of"));
}

#[test]
fn files_on_tmpfs_are_memory() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let is_shm = |m: &str| m.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"]);
    if !mounts.lines().any(is_shm) {
        return;
    }
    let mut plan = Plan::new();
    let backing = Backing::NewFile("/dev/shm/megatrain-arena-test".into());
    plan.add(Reservation::new("spill", Kind::Activations, 61 * GIB).backed_by(backing));
    let mut limits = read(&[]);
    limits.bounds.extend(bound(Resource::Disk, 100 * GIB, 0, "quota"));
    assert!(refusal(&plan, &limits).contains("host memory: 61.00 GiB needed, 60.00 GiB available"));
}

#[test]
fn sizes_beyond_an_address_space_are_refused_by_name() {
    for sizes in [[1, u64::MAX], [u64::MAX - 4096, 4096], [1 << 62, 1 << 62], [0, 1 << 63]] {
        let mut plan = Plan::new();
        for (i, bytes) in sizes.into_iter().enumerate() {
            plan.reserve(format!("r{i}"), Kind::Other, bytes);
        }
        for result in [plan.check(&Limits::default()), plan.commit(&CommitOptions::default()).map(drop)] {
            let error = result.unwrap_err();
            assert!(matches!(&error, Error::TooLarge { .. }), "{sizes:?}: {error}");
            assert!(error.to_string().contains("more than one address space"), "{error}");
        }
    }
}

#[test]
fn broken_files_are_named_and_absent_ones_bind_nothing() {
    assert_eq!(Limits::read_at(Path::new("/nonexistent")).unwrap(), Limits::default());
    for (path, text, expected) in [
        (
            "proc/meminfo",
            "MemTotal: x kB\n",
            "cannot make sense of `/proc/meminfo`: `MemTotal: x kB` is not a number of kB",
        ),
        (
            "proc/self/limits",
            "Max locked memory  lots\n",
            "cannot make sense of `/proc/self/limits`: `Max locked memory  lots` has no soft limit",
        ),
        ("proc/self/cgroup", "0:\n", "cannot make sense of `/proc/self/cgroup`: `0:` is not `id:controllers:path`"),
        (
            "sys/fs/cgroup/job.slice/memory.max",
            "8G\n",
            "cannot make sense of `/sys/fs/cgroup/job.slice/memory.max`: `8G` is neither `max` nor a number of bytes",
        ),
        (
            "sys/fs/cgroup/job.slice/memory.stat",
            "inactive_file -1\n",
            "cannot make sense of `/sys/fs/cgroup/job.slice/memory.stat`: `inactive_file -1` is not a number",
        ),
    ] {
        let error = Limits::read_at(tree(&[V2, &[(path, text)]].concat()).path()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn this_machine_reads() {
    let limits = Limits::read().unwrap();
    let ram = limits.bound(Resource::Ram).unwrap();
    assert!(ram.available_bytes() > 0 && ram.available_bytes() <= ram.limit_bytes);
    let mut plan = Plan::new();
    plan.reserve("all of it and a page", Kind::Other, ram.limit_bytes + 4096);
    let error = plan.commit(&CommitOptions::default()).unwrap_err();
    assert!(error.to_string().contains("the machine's memory is"), "a commit checks by itself: {error}");
}
