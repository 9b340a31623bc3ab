//! What can be known about launches without a GPU: every case has one, its kernel exists and takes as many arguments.

use super::*;
use megatrain_kernels::SOURCES;
use megatrain_ops::OpArgs;
use std::collections::BTreeMap;

const H200: Limits = Limits { shared_bytes: 232_448 };
const CONSUMER: Limits = Limits { shared_bytes: 101_376 };

/// Arguments of every `extern "C"` kernel that is written out, by name.
fn declared() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (_, text) in SOURCES {
        for declaration in text.split("extern \"C\"").skip(1) {
            let head = declaration.split('{').next().unwrap().replace(['\\', '\n'], " ");
            let Some((before, arguments)) = head.rsplit_once('(') else { continue };
            let name = before.rsplit(' ').next().unwrap();
            found.insert(name.to_owned(), arguments.split(',').count());
        }
    }
    found
}

#[test]
fn every_case_launches_kernels_that_exist_with_as_many_arguments_as_they_declare() {
    let declared = declared();
    assert!(declared.len() > 20, "{declared:?}");
    for case in Op::all_cases() {
        let addresses: Vec<u64> = (1..=case.op.operands().len() as u64).map(|i| i << 20).collect();
        for limits in [H200, CONSUMER] {
            for step in steps(&case.op, &addresses, 1 << 30, limits).unwrap() {
                let Step::Launch(launch) = step else { continue };
                let threads: u32 = launch.block.iter().product();
                assert!(launch.grid.iter().all(|&g| g > 0) && threads > 0 && threads <= 1024, "{launch:?}");
                assert!(launch.shared_bytes <= limits.shared_bytes, "{launch:?}");
                match declared.get(launch.kernel) {
                    Some(&arguments) => assert_eq!(launch.args.len(), arguments, "{}", launch.kernel),
                    // Made by a macro: the head dimension or dtype is pasted to the name.
                    None => {
                        let stem = launch.kernel.trim_end_matches(|c: char| c != '_');
                        let known =
                            declared.keys().any(|name| name.starts_with(stem) || stem.starts_with("attention_"));
                        assert!(known, "{} is in no source", launch.kernel);
                    }
                }
            }
        }
    }
}

#[test]
fn scratch_is_asked_for_by_exactly_the_ops_that_sum_over_rows_or_multiply() {
    for case in Op::all_cases() {
        let wants = matches!(
            case.op,
            Op::AttentionBackward(_)
                | Op::BiasGrad(_)
                | Op::Matmul(_)
                | Op::QkNormBackward(_)
                | Op::RmsNormBackward(_)
                | Op::SquareSum(_)
        );
        assert_eq!(scratch_bytes(&case.op) > 0, wants, "{} ({})", case.op.name(), case.name);
    }
}

#[test]
fn parts_cover_every_row_once_and_are_never_empty() {
    for rows in (1..2000).chain([32_768, 65_536, 1_000_003]) {
        let parts = Parts::of(rows);
        assert!(parts.count <= 528 && parts.count * parts.rows >= rows, "{rows}: {parts:?}");
        assert!((parts.count - 1) * parts.rows < rows, "{rows}: {parts:?}");
    }
}

#[test]
fn empty_operands_and_heads_without_a_kernel_are_refused_with_a_reason() {
    let mut at = megatrain_ops::Places::default();
    let [a, b, out] = [(); 3].map(|()| at.tensor(DType::F32, [0usize, 4]));
    let error = steps(&megatrain_ops::Add { a, b, out }.into(), &[1, 2, 3], 0, H200).unwrap_err().to_string();
    assert!(error.contains("add") && error.contains("no elements"), "{error}");
    let op = megatrain_ops::Attention {
        qkv: at.tensor(DType::F32, [2usize, 3 * 520]),
        cu_seqlens: at.tensor(DType::I32, [2usize]),
        out: at.tensor(DType::F32, [2usize, 520]),
        lse: at.tensor(DType::F32, [1usize, 2]),
        heads: 1,
        kv_heads: 1,
        head_dim: 520,
        scale: 1.0,
    };
    let error = steps(&op.into(), &[1, 2, 3, 4], 0, H200).unwrap_err().to_string();
    assert!(error.starts_with(megatrain_ops::Attention::NAME) && error.contains("520"), "{error}");
}
