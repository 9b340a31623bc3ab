//! Memory is as large as the plan says, measured from the kernel's page tables. Alone in its binary: it looks at the
//! resident set of the whole process.

use megatrain_arena::{CommitOptions, Kind, Plan, Reservation};

/// Bytes resident now: `smaps_rollup` walks the page tables, so unlike `statm` it is exact.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let rss = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// A pinner that rounds to powers of two takes 256 MiB for this matrix.
#[test]
fn a_matrix_of_129_mib_takes_129_mib_and_gives_them_back() {
    let bytes = 18944 * 3584 * 2;
    assert_eq!(bytes as f64 / (1 << 20) as f64, 129.5);
    for huge_pages in [false, true] {
        let mut plan = Plan::new();
        plan.add(Reservation::new("mlp.up_proj", Kind::Weights, bytes));
        let options = CommitOptions { huge_pages, ..Default::default() };
        let before = resident_bytes();
        let arena = plan.commit(&options).unwrap();
        let ratio = (resident_bytes() - before) as f64 / bytes as f64;
        assert!((1.0..=1.02).contains(&ratio), "huge pages {huge_pages}: {ratio} times the plan");
        assert_eq!(arena.region(0).len_bytes() as u64, bytes);
        drop(arena);
        let left = resident_bytes().saturating_sub(before) as f64 / bytes as f64;
        assert!(left < 0.02, "huge pages {huge_pages}: {left} of the plan is left");
    }
}
