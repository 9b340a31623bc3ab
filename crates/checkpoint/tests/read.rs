//! Reading tensors: exact from every type, refused where a value cannot be trained, the same for any thread count.

mod common;

use common::{Raw, dir_of, file, ramp, raw, text};
use megatrain_base::master;
use megatrain_checkpoint::ModelDir;

const CONFIG: (&str, &[u8]) = ("config.json", b"{}");
/// More than two of the reader's chunks and not a multiple.
const MANY: usize = 600_011;

fn with_model<R>(tensors: &[Raw], body: impl FnOnce(&ModelDir) -> R) -> R {
    let dir = dir_of(&[CONFIG, ("model.safetensors", &file(tensors))]);
    body(&ModelDir::open(dir.path()).unwrap())
}

#[test]
fn every_float_type_is_read_exactly_into_both_forms() {
    let values = ramp(MANY);
    let shape = [MANY as u64];
    let tensors =
        [raw("f32", "F32", &shape, &values), raw("f16", "F16", &shape, &values), raw("bf16", "BF16", &shape, &values)];
    with_model(&tensors, |model| {
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for name in ["f32", "f16", "bf16"] {
                let (mut out, mut hi, mut lo) = (vec![f32::NAN; MANY], vec![7; MANY], vec![7; MANY]);
                pool.install(|| {
                    model.read_f32(name, &mut out).unwrap();
                    model.read_split(name, &mut hi, &mut lo).unwrap();
                });
                assert!(out == values, "{name}");
                let joined = hi.iter().zip(&lo).map(|(&hi, &lo)| f32::from_bits(master::join(hi, lo)));
                assert!(joined.eq(values.iter().copied()), "{name}");
            }
        }
    });
}

#[test]
fn split_masters_keep_what_bf16_would_lose() {
    let values = [1.0 + 1.0 / 1024.0, -2.345_678_9, 1e-30];
    let half = [1.0 + 1.0 / 1024.0, -0.333_251_95, 5.9604645e-8];
    with_model(
        &[raw("f32", "F32", &[3], &values), raw("f16", "F16", &[3], &half), raw("bf16", "BF16", &[3], &values)],
        |model| {
            for (name, exact) in [("f32", values), ("f16", half)] {
                let (mut hi, mut lo) = ([0; 3], [0; 3]);
                model.read_split(name, &mut hi, &mut lo).unwrap();
                for i in 0..3 {
                    assert_eq!(f32::from_bits(master::join(hi[i], lo[i])), exact[i], "{name}");
                }
                assert_ne!(lo, [0; 3]);
            }
            let (mut hi, mut lo) = ([0; 3], [9; 3]);
            model.read_split("bf16", &mut hi, &mut lo).unwrap();
            assert_eq!(lo, [0; 3]);
            assert_eq!(hi[0], half::bf16::from_f32(values[0]).to_bits());
        },
    );
}

#[test]
fn the_first_value_that_cannot_be_trained_is_named() {
    for (bad, in_f32, in_split) in [
        (f32::NAN, Some("NaN, which is not finite;"), Some("NaN, which is not finite in bf16;")),
        (f32::INFINITY, Some("inf, which is not finite;"), Some("inf, which is not finite in bf16;")),
        (f32::from_bits(0x7f7f_8000), None, Some("3.3961775e38, which is not finite in bf16;")),
    ] {
        let mut values = ramp(MANY);
        values[300_000] = bad;
        values[600_000] = bad;
        with_model(&[raw("w", "F32", &[MANY as u64], &values)], |model| {
            let (mut out, mut hi, mut lo) = (vec![0.0; MANY], vec![0; MANY], vec![0; MANY]);
            for (result, expected) in
                [(model.read_f32("w", &mut out), in_f32), (model.read_split("w", &mut hi, &mut lo), in_split)]
            {
                match (result, expected) {
                    (Ok(()), None) => {}
                    (Err(error), Some(expected)) => {
                        let expected = format!("model.safetensors: tensor \"w\": element 300000 is {expected}");
                        let error = text(model.path(), error);
                        assert!(error.starts_with(&expected), "{error}");
                    }
                    (result, expected) => panic!("{result:?} is not {expected:?}"),
                }
            }
        });
    }
}

#[test]
fn wrong_requests_are_errors() {
    with_model(&[raw("w", "F32", &[4], &ramp(4)), Raw("ids", "I64", vec![1], vec![0; 8])], |model| {
        let error = |result: Result<(), megatrain_checkpoint::Error>| text(model.path(), result.unwrap_err());
        assert_eq!(error(model.read_f32("v", &mut [])), "DIR: tensor \"v\": no such tensor");
        let short = "model.safetensors: tensor \"w\": it has 4 elements, the destination 3";
        assert_eq!(error(model.read_f32("w", &mut [0.0; 3])), short);
        assert_eq!(error(model.read_split("w", &mut [0; 4], &mut [0; 3])), short);
        assert!(error(model.read_f32("ids", &mut [0.0])).contains("element type I64 is not one that weights"));
    });
}
