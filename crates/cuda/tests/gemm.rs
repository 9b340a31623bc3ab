//! Products whose algorithms are timed, and remembered from run to run. Without a GPU, or without compiled kernels, says why
//! it is skipped.

mod common;

use common::{Gpu, Placed};
use megatrain_base::{DType, RegionId, Tensor};
use megatrain_cuda::{Choice, DeviceBuffer, Origin, Prepared, Runner, Scratch, Stream, scratch_bytes};
use megatrain_ops::{Case, Matmul, Op, Places, harness};
use std::collections::BTreeSet;
use std::path::Path;

const ROOM_BYTES: u64 = 64 << 20;
const B: DType = DType::Bf16;
const F: DType = DType::F32;

/// A product and where a, b and c begin in their regions: what their alignment is.
fn product(m: usize, n: usize, k: usize, transposes: usize, [dtype, result]: [DType; 2], offsets: [u64; 3]) -> Case {
    let (transpose_a, transpose_b, accumulate) = (transposes & 1 != 0, transposes & 2 != 0, result == F);
    let mut at = Places::default();
    let mut tensor = |dtype, [rows, columns]: [usize; 2], swap: bool, offset| {
        let shape = if swap { [columns, rows] } else { [rows, columns] };
        let tensor: Tensor = at.tensor(dtype, shape);
        tensor.at(tensor.span.region, offset)
    };
    let a = tensor(dtype, [m, k], transpose_a, offsets[0]);
    let b = tensor(dtype, [k, n], transpose_b, offsets[1]);
    let c = tensor(result, [m, n], false, offsets[2]);
    let name = format!("{dtype} to {result} m={m} n={n} k={k} transposes={transposes} offsets={offsets:?}");
    Case::new(name, Matmul { a, b, c, transpose_a, transpose_b, accumulate })
}

/// Forward, input gradient, weight gradient and the fourth kind, at whole and at odd sizes, aligned and not; long sums, where
/// algorithms differ most; f32.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for transposes in 0..4 {
        for dtypes in [[B, B], [B, F], [F, F]] {
            cases.push(product(192, 256, 128, transposes, dtypes, [0; 3]));
            cases.push(product(129, 67, 255, transposes, dtypes, [0; 3]));
        }
        cases.push(product(64, 96, 128, transposes, [B, B], [2, 16, 32]));
        cases.push(product(63, 96, 130, transposes, [B, F], [64, 6, 4]));
        cases.push(product(16, 24, 20_000, transposes, [B, F], [0; 3]));
    }
    cases
}

fn matmul(case: &Case) -> Matmul {
    let Op::Matmul(op) = case.op else { panic!("{}: no product", case.name) };
    op
}

/// What a runner is asked to prepare for these cases: regions begin at multiples of 256 bytes.
fn products(cases: &[Case]) -> Vec<(Matmul, [u64; 3])> {
    let address = |t: Tensor| (1 << 20) + t.span.offset_bytes;
    cases.iter().map(matmul).map(|op| (op, [op.a, op.b, op.c].map(address))).collect()
}

fn prepare(gpu: &Gpu, runner: &Runner, products: &[(Matmul, [u64; 3])], room_bytes: u64) -> Prepared {
    let buffers =
        [room_bytes, scratch_bytes(&products[0].0.into())].map(|n| DeviceBuffer::new(gpu.device(), n).unwrap());
    let [room, scratch] = buffers.each_ref().map(|b| Scratch { address: b.address(), len_bytes: b.len_bytes() });
    // NaN everywhere: what operands hold beforehand does not matter.
    buffers.iter().for_each(|b| b.fill(0xff).unwrap());
    let stream = Stream::new(gpu.device()).unwrap();
    let mut calls = Vec::new();
    let mut progress = |done, total| calls.push((done, total));
    // SAFETY: room and scratch are this function's own buffers; the cases are checked by the harness.
    let prepared = unsafe { runner.prepare(products, room, scratch, &stream, &mut progress) }.unwrap();
    let total = prepared.timed + prepared.untimed;
    assert_eq!(calls, (0..=total).filter(|_| total > 0).map(|done| (done, total)).collect::<Vec<_>>());
    prepared
}

/// Runs every case against its twin, and returns the bytes of every result.
fn run(gpu: &Gpu, runner: &Runner, cases: &[Case]) -> Vec<Vec<u8>> {
    let mut placed = Placed::new(gpu);
    let mut results = Vec::new();
    for case in cases {
        let region: RegionId = matmul(case).c.span.region;
        harness::check(case, |op, memory| {
            placed.run(runner, op, memory)?;
            results.push(memory.bytes(region).to_vec());
            Ok(())
        })
        .unwrap();
    }
    results
}

fn open(gpu: &Gpu, cache: Option<&Path>) -> Runner {
    Runner::with_cache(gpu.device(), None, cache).unwrap()
}

fn algorithms(choices: &[Choice]) -> Vec<(&str, &str)> {
    choices.iter().map(|choice| (choice.product.as_str(), choice.algorithm.as_str())).collect()
}

fn all(choices: &[Choice], origin: Origin) -> bool {
    choices.iter().all(|choice| choice.origin == origin && choice.us.is_some() == (origin != Origin::Heuristic))
}

#[test]
fn timed_choices_conform_are_remembered_and_give_the_same_bits_in_a_later_run() {
    let Some(gpu) = Gpu::open() else { return };
    let (cases, folder) = (cases(), tempfile::tempdir().unwrap());
    let products = products(&cases);
    let distinct = products.len();

    let first = open(&gpu, Some(folder.path()));
    let prepared = prepare(&gpu, &first, &products, ROOM_BYTES);
    assert_eq!(prepared, Prepared { timed: distinct, ..Prepared::default() });
    let chosen = first.choices();
    assert_eq!(chosen.iter().map(|choice| &choice.product).collect::<BTreeSet<_>>().len(), distinct);
    assert!(all(&chosen, Origin::Timed), "{chosen:?}");
    let results = run(&gpu, &first, &cases);
    assert_eq!(first.choices(), chosen, "the products that ran are those that were prepared");
    assert_eq!(prepare(&gpu, &first, &products, ROOM_BYTES), Prepared::default(), "nothing is left to prepare");

    let second = open(&gpu, Some(folder.path()));
    let prepared = prepare(&gpu, &second, &products, ROOM_BYTES);
    assert_eq!(prepared, Prepared { remembered: distinct, ..Prepared::default() });
    let remembered = second.choices();
    assert!(all(&remembered, Origin::Remembered), "{remembered:?}");
    assert_eq!(algorithms(&remembered), algorithms(&chosen));
    assert_eq!(run(&gpu, &second, &cases), results, "bits of a later run");

    let third = open(&gpu, Some(folder.path()));
    assert_eq!(run(&gpu, &third, &cases), results, "bits of a run that prepares nothing");
    assert_eq!(third.choices(), remembered);
}

#[test]
fn a_damaged_file_is_told_and_its_products_are_timed_again() {
    let Some(gpu) = Gpu::open() else { return };
    let (cases, folder) = (vec![product(64, 64, 64, 2, [B, B], [0; 3])], tempfile::tempdir().unwrap());
    let products = products(&cases);
    assert_eq!(prepare(&gpu, &open(&gpu, Some(folder.path())), &products, ROOM_BYTES).timed, 1);
    let is_text = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "txt");
    let files = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let file = files().find(is_text).expect("a file of choices");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let prepared = prepare(&gpu, &open(&gpu, Some(folder.path())), &products, ROOM_BYTES);
    assert_eq!((prepared.timed, prepared.notes.len()), (1, 1), "{prepared:?}");
    assert!(prepared.notes[0].contains(&file.display().to_string()), "{prepared:?}");
    let prepared = prepare(&gpu, &open(&gpu, Some(folder.path())), &products, ROOM_BYTES);
    assert_eq!(prepared, Prepared { remembered: 1, ..Prepared::default() }, "replaced");
}

#[test]
fn too_little_room_leaves_the_first_choice_with_a_note_and_nothing_remembered() {
    let Some(gpu) = Gpu::open() else { return };
    let (cases, folder) = (vec![product(64, 64, 64, 2, [B, B], [0; 3])], tempfile::tempdir().unwrap());
    let products = products(&cases);
    let runner = open(&gpu, Some(folder.path()));
    let prepared = prepare(&gpu, &runner, &products, 16 << 10);
    assert_eq!((prepared.timed, prepared.untimed, prepared.notes.len()), (0, 1, 1), "{prepared:?}");
    assert!(
        prepared.notes[0].contains("m=64 n=64 k=64") && prepared.notes[0].contains("needs 24.00 KiB"),
        "{prepared:?}"
    );
    let chosen = runner.choices();
    assert!(all(&chosen, Origin::Heuristic), "{chosen:?}");
    run(&gpu, &runner, &cases);
    // With room now, but the runner keeps what it has.
    assert_eq!(prepare(&gpu, &runner, &products, ROOM_BYTES), Prepared::default());
    assert_eq!(runner.choices(), chosen);
    assert_eq!(prepare(&gpu, &open(&gpu, Some(folder.path())), &products, ROOM_BYTES).timed, 1);
}

#[test]
fn without_a_cache_the_first_choice_runs_unprepared_and_no_file_is_written() {
    let Some(gpu) = Gpu::open() else { return };
    let cases = [product(64, 64, 64, 2, [B, B], [0; 3])];
    let runner = open(&gpu, None);
    run(&gpu, &runner, &cases);
    assert!(all(&runner.choices(), Origin::Heuristic) && runner.choices().len() == 1, "{:?}", runner.choices());
    let prepared = prepare(&gpu, &open(&gpu, None), &products(&cases), ROOM_BYTES);
    assert_eq!(prepared, Prepared { timed: 1, ..Prepared::default() });
}
