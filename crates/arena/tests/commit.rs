//! Committed memory: zero, present, placed, pinned, backed by files, and given back, in success and in failure.

use megatrain_arena::numa::{Node, Topology};
use megatrain_arena::{
    Arena, Backing, CommitOptions, Error, Kind, LockPages, Numa, PinFailure, Pinner, Plan, Progress, Reservation,
};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: u64 = 4096;

/// Pages of the region that are present, as the kernel sees it.
fn pages_present(arena: &Arena, index: usize) -> usize {
    let region = arena.region(index);
    let mut present = vec![0u8; region.len_bytes().div_ceil(PAGE as usize)];
    // SAFETY: the region is mapped, and the vector has a byte for each of its pages.
    let result = unsafe { libc::mincore(region.as_ptr().cast(), region.len_bytes(), present.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    present.iter().filter(|&p| p & 1 == 1).count()
}

fn files(plan: &mut Plan, paths: &[Backing], bytes: u64) {
    for (i, backing) in paths.iter().enumerate() {
        plan.add(Reservation::new(format!("file[{i}]"), Kind::Other, bytes).backed_by(backing.clone()));
    }
}

#[test]
fn regions_keep_order_size_and_alignment_and_are_zero_present_and_apart() {
    let sizes = [1, 4096, 0, 4097, (33 << 20) + 12345, (2 << 20) + 1];
    for threads in 1..=4 {
        for huge_pages in [false, true] {
            let mut plan = Plan::new();
            for (i, &bytes) in sizes.iter().enumerate() {
                assert_eq!(plan.reserve(format!("r{i}"), Kind::Other, bytes), i);
            }
            let mut arena = plan.commit(&CommitOptions { threads, huge_pages, ..Default::default() }).unwrap();
            assert_eq!(arena.regions().len(), sizes.len());
            for (i, &bytes) in sizes.iter().enumerate() {
                let region = arena.region(i);
                assert_eq!((region.name(), region.len_bytes() as u64), (&*format!("r{i}"), bytes));
                assert_eq!((region.kind(), region.is_pinned()), (Kind::Other, false));
                assert_eq!(region.as_ptr() as u64 % PAGE, 0);
                assert_eq!(pages_present(&arena, i) as u64, bytes.div_ceil(PAGE), "{threads} threads, region {i}");
                assert!(arena.bytes_mut(i).iter().all(|&b| b == 0));
                arena.bytes_mut(i).fill(i as u8 + 1);
            }
            for i in 0..sizes.len() {
                assert!(arena.bytes_mut(i).iter().all(|&b| b == i as u8 + 1), "region {i} was written by another");
            }
        }
    }
}

#[test]
fn an_empty_plan_commits() {
    let arena = Plan::new().commit(&CommitOptions::default()).unwrap();
    assert_eq!((arena.regions().len(), arena.notices().len()), (0, 0));
}

#[test]
fn an_arena_is_shared_between_threads_by_address() {
    fn shared<T: Send + Sync>() {}
    shared::<Arena>();
    let mut plan = Plan::new();
    let index = plan.reserve("r", Kind::Other, 2 * PAGE);
    let mut arena = plan.commit(&CommitOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let region = arena.region(index);
            // SAFETY: the two threads write different halves of the mapped region, and end before it is read.
            scope.spawn(move || unsafe { region.as_ptr().add(half * PAGE as usize).write_bytes(7, PAGE as usize) });
        }
    });
    assert!(arena.bytes_mut(index).iter().all(|&b| b == 7));
}

#[test]
fn a_long_first_touch_tells_its_progress_and_a_short_one_is_silent() {
    let mut plan = Plan::new();
    plan.reserve("r", Kind::Other, 40 << 20);
    let told: Rc<RefCell<Vec<Progress>>> = Rc::default();
    for (progress_after, calls) in [(Duration::ZERO, 1..), (Duration::from_secs(3600), 0..)] {
        told.borrow_mut().clear();
        let log = told.clone();
        let progress: Option<Box<dyn Fn(Progress)>> = Some(Box::new(move |p| log.borrow_mut().push(p)));
        plan.commit(&CommitOptions { progress, progress_after, ..Default::default() }).unwrap();
        let told = told.borrow();
        assert!(told.len() >= calls.start && (calls.start > 0 || told.is_empty()), "{told:?}");
        assert!(told.iter().all(|p| p.total_bytes == 40 << 20) && told.is_sorted_by_key(|p| p.done_bytes));
        assert!(told.last().is_none_or(|p| p.done_bytes == p.total_bytes));
    }
}

#[test]
fn a_node_that_is_not_there_is_refused_where_there_are_nodes_and_ignored_where_there_is_one() {
    let mut plan = Plan::new();
    plan.add(Reservation::new("weights[0]", Kind::Weights, PAGE).on_node(7));
    let nodes = |ids: &[usize]| {
        let nodes = ids.iter().map(|&id| Node { id, cpus: vec![0] }).collect();
        CommitOptions { numa: Numa::Given(Topology { nodes }), ..Default::default() }
    };
    assert_eq!(
        plan.commit(&nodes(&[0, 1])).unwrap_err().to_string(),
        "region `weights[0]` is to lie on NUMA node 7, but this machine has the nodes [0, 1]"
    );
    for options in [nodes(&[0]), CommitOptions { numa: Numa::Off, ..Default::default() }] {
        assert_eq!(plan.commit(&options).unwrap().notices(), [""; 0]);
    }
}

#[test]
fn placement_that_the_kernel_refuses_is_a_notice_and_the_memory_is_there() {
    let mut plan = Plan::new();
    plan.add(Reservation::new("near", Kind::Weights, 3 * PAGE).on_node(0));
    plan.add(Reservation::new("far", Kind::Weights, 3 * PAGE).on_node(1000));
    let nodes = [0, 1000].map(|id| Node { id, cpus: vec![id] }).to_vec();
    let arena = plan.commit(&CommitOptions { numa: Numa::Given(Topology { nodes }), ..Default::default() }).unwrap();
    let far = arena.notices().last().unwrap();
    assert!(far.starts_with("region `far`: not placed on node 1000 ("), "{far}");
    assert_eq!((pages_present(&arena, 0), pages_present(&arena, 1)), (3, 3));
}

/// Logs calls, reads the memory it is given, and fails at the region of `fails_at` bytes.
#[derive(Default)]
struct Mock {
    log: Mutex<Vec<(&'static str, usize)>>,
    fails_at: Option<usize>,
}

impl Pinner for Mock {
    fn name(&self) -> &str {
        "mock"
    }
    fn counts_against_memlock(&self) -> bool {
        false
    }
    unsafe fn pin(&self, ptr: *mut u8, len_bytes: usize) -> io::Result<()> {
        // SAFETY: the arena says that the pages are mapped.
        assert_eq!(unsafe { ptr.add(len_bytes - 1).read() }, 0);
        self.log.lock().unwrap().push(("pin", len_bytes));
        if self.fails_at == Some(len_bytes) { Err(io::Error::other("no more pages")) } else { Ok(()) }
    }
    unsafe fn unpin(&self, ptr: *mut u8, len_bytes: usize) {
        // SAFETY: the arena says that the pages are still mapped; if they were not, this would crash the test.
        unsafe { ptr.add(len_bytes - 1).read_volatile() };
        self.log.lock().unwrap().push(("unpin", len_bytes));
    }
}

fn pinned_plan(dir: &std::path::Path) -> Plan {
    let mut plan = Plan::new();
    plan.add(Reservation::new("weights[0]", Kind::Weights, PAGE).pinned());
    plan.reserve("moments[0]", Kind::OptimizerState, 5 * PAGE);
    plan.add(Reservation::new("empty", Kind::Weights, 0).pinned());
    plan.add(Reservation::new("weights[1]", Kind::Weights, 2 * PAGE - 1).pinned());
    plan.add(Reservation::new("spill", Kind::Activations, PAGE).backed_by(Backing::NewFile(dir.join("spill"))));
    plan.add(Reservation::new("gradients", Kind::Gradients, 3 * PAGE).pinned());
    plan
}

#[test]
fn pins_are_taken_in_order_and_given_back_in_reverse_while_the_memory_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let mock = Arc::new(Mock::default());
    let options = CommitOptions { pinner: Some(mock.clone()), ..Default::default() };
    let arena = pinned_plan(dir.path()).commit(&options).unwrap();
    drop(options);
    let pinned: Vec<bool> = arena.regions().map(|r| r.is_pinned()).collect();
    assert_eq!(pinned, [true, false, false, true, false, true]);
    assert_eq!(*mock.log.lock().unwrap(), [("pin", 4096), ("pin", 8192), ("pin", 12288)]);
    mock.log.lock().unwrap().clear();
    drop(arena);
    assert_eq!(*mock.log.lock().unwrap(), [("unpin", 12288), ("unpin", 8192), ("unpin", 4096)]);
    assert_eq!(Arc::strong_count(&mock), 1);
}

#[test]
fn a_failed_pin_is_called_a_host_pin_and_undoes_the_whole_commit() {
    let dir = tempfile::tempdir().unwrap();
    let mock = Arc::new(Mock { fails_at: Some(12288), ..Default::default() });
    let error = pinned_plan(dir.path())
        .commit(&CommitOptions { pinner: Some(mock.clone()), ..Default::default() })
        .unwrap_err();
    assert!(matches!(error, Error::Pin { bytes: 12288, pinned_bytes: 12288, .. }));
    let text = error.to_string();
    let start = "host pin failed: mock could not page-lock the 12.00 KiB of region `gradients` (12.00 KiB were locked \
                 before it; the memlock limit is ";
    let end = "): no more pages\n  this is host memory, not device memory: raise the limit (`ulimit -l unlimited`, \
               docker --ulimit memlock=-1, LimitMEMLOCK=infinity), pin less, or allow pageable memory with \
               PinFailure::Pageable";
    assert!(text.starts_with(start) && text.ends_with(end), "{text}");
    assert_eq!(mock.log.lock().unwrap()[3..], [("unpin", 8192), ("unpin", 4096)]);
    assert!(!dir.path().join("spill").exists(), "a file of a failed commit is removed");
}

#[test]
fn pageable_memory_may_stand_in_for_what_cannot_be_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let mock = Arc::new(Mock { fails_at: Some(8192), ..Default::default() });
    let (pinner, pin_failure): (Option<Arc<dyn Pinner>>, _) = (Some(mock.clone()), PinFailure::Pageable);
    let arena = pinned_plan(dir.path()).commit(&CommitOptions { pinner, pin_failure, ..Default::default() }).unwrap();
    let pinned: Vec<bool> = arena.regions().map(|r| r.is_pinned()).collect();
    assert_eq!(pinned, [true, false, false, false, false, true]);
    assert_eq!(
        arena.notices(),
        ["region `weights[1]`: host pin failed, its 8.00 KiB stay pageable (mock: no more pages)"]
    );
    drop(arena);
    assert_eq!(mock.log.lock().unwrap()[3..], [("unpin", 12288), ("unpin", 4096)]);
}

#[test]
fn a_file_backed_region_can_be_pinned_too() {
    let dir = tempfile::tempdir().unwrap();
    let mock = Arc::new(Mock::default());
    let mut plan = Plan::new();
    let backing = Backing::NewFile(dir.path().join("state"));
    plan.add(Reservation::new("state", Kind::OptimizerState, PAGE + 1).backed_by(backing).pinned());
    drop(plan.commit(&CommitOptions { pinner: Some(mock.clone()), ..Default::default() }).unwrap());
    assert_eq!(*mock.log.lock().unwrap(), [("pin", 8192), ("unpin", 8192)]);
}

#[test]
fn mlock_locks_the_pages() {
    let mut plan = Plan::new();
    plan.add(Reservation::new("locked", Kind::Other, PAGE).pinned());
    let arena = plan.commit(&CommitOptions { pinner: Some(Arc::new(LockPages)), ..Default::default() }).unwrap();
    let start = arena.region(0).as_ptr() as usize;
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = smaps.lines().skip_while(|line| {
        let range = line.split(' ').next().and_then(|r| r.split_once('-'));
        let range = range.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)));
        !matches!(range, Some((Ok(a), Ok(b))) if (a..b).contains(&start))
    });
    let locked = lines.find_map(|line| line.strip_prefix("Locked:")).unwrap().trim();
    assert_ne!(locked, "0 kB");
}

#[test]
fn a_file_backed_region_is_written_kept_and_mapped_again() {
    let dir = tempfile::tempdir().unwrap();
    let (state, empty) = (dir.path().join("state"), dir.path().join("empty"));
    let bytes = 3 * PAGE + 5;
    let pattern: Vec<u8> = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
    {
        let mut plan = Plan::new();
        files(&mut plan, &[Backing::NewFile(state.clone())], bytes);
        files(&mut plan, &[Backing::NewFile(empty.clone())], 0);
        let mut arena = plan.commit(&CommitOptions::default()).unwrap();
        assert_eq!((arena.region(0).len_bytes(), arena.region(1).len_bytes()), (pattern.len(), 0));
        assert!(arena.bytes_mut(0).iter().all(|&b| b == 0));
        arena.bytes_mut(0).copy_from_slice(&pattern);
        assert!(arena.bytes_mut(1).is_empty());
    }
    assert_eq!(std::fs::read(&state).unwrap(), pattern, "the file holds the region and not a byte more");
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0);

    let mut again = Plan::new();
    files(&mut again, &[Backing::ExistingFile(state.clone())], bytes);
    files(&mut again, &[Backing::ExistingFile(empty)], 0);
    let mut arena = again.commit(&CommitOptions::default()).unwrap();
    assert_eq!(arena.bytes_mut(0), pattern);
    arena.bytes_mut(0)[0] = 99;
    drop(arena);
    assert_eq!(std::fs::read(&state).unwrap()[..2], [99, 7]);
}

#[test]
fn files_that_do_not_fit_the_plan_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    std::fs::write(&old, [1, 2, 3]).unwrap();
    let (there, fresh) = (Backing::ExistingFile(old.clone()), Backing::NewFile(new.clone()));
    for (backings, bytes, expected) in [
        (vec![fresh.clone(), Backing::NewFile(old.clone())], 3, "exists already and is not overwritten"),
        (vec![fresh.clone(), there.clone()], 4, "has 3 bytes, but the plan expects 4"),
        (vec![fresh.clone(), there.clone()], 2, "has 3 bytes, but the plan expects 2"),
        (vec![there.clone(), there.clone()], 3, "is mapped by another region or another process"),
        (vec![fresh.clone(), Backing::ExistingFile(dir.path().join("absent"))], 3, "cannot open"),
        (vec![fresh.clone(), Backing::ExistingFile(dir.path().into())], 3, "cannot open"),
    ] {
        let mut plan = Plan::new();
        files(&mut plan, &backings, bytes);
        let error = plan.commit(&CommitOptions::default()).unwrap_err().to_string();
        assert!(error.starts_with("region `file[1]`: ") && error.contains(expected), "{error}");
        assert_eq!(std::fs::read(&old).unwrap(), [1, 2, 3]);
        assert!(!new.exists(), "a file of a failed commit is removed");
    }
}
