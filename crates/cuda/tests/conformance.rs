//! Every op on the GPU against its reference twin, on every conformance case. Without a GPU, or without compiled kernels,
//! says why it is skipped.

mod common;

use common::{Gpu, Placed};
use megatrain_ops::{Op, harness};
use std::collections::BTreeMap;

#[test]
fn every_case_conforms_with_the_same_bits_twice_and_writes_nothing_else() {
    let Some(gpu) = Gpu::open() else { return };
    let runner = gpu.runner();
    let only = std::env::var("MEGATRAIN_ONLY").unwrap_or_default();
    let mut placed = Placed::new(&gpu);
    let mut counts: BTreeMap<&str, (usize, usize, f64)> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in Op::all_cases().into_iter().filter(|c| c.op.name().contains(&only)) {
        let result = harness::check(&case, |op, memory| placed.run(&runner, op, memory));
        let count = counts.entry(case.op.name()).or_default();
        count.1 += 1;
        match result {
            Ok(report) => {
                count.0 += 1;
                count.2 = report.outputs.iter().map(|o| o.worst_share).fold(count.2, f64::max);
            }
            Err(error) => failures.push(error),
        }
    }
    for (op, (passed, all, worst)) in &counts {
        println!("{op:<20} {passed:>4} of {all:>4} cases conform, largest error {worst:.2} of its bound");
    }
    assert!(!counts.is_empty(), "no op matches MEGATRAIN_ONLY={only}");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
