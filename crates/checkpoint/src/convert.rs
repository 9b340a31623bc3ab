//! Bytes of a file to f32 and back, one element type at a time.

use crate::dtype::FloatDType;
use half::f16;
use megatrain_base::{Element, bf16};

/// Decodes little-endian elements; `bytes` must hold exactly `out.len()` of them. Exact for every type.
pub(crate) fn decode(dtype: FloatDType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len() as u64, out.len() as u64 * dtype.size_bytes(), "one element for each value");
    match dtype {
        FloatDType::F32 => {
            for (value, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*b);
            }
        }
        FloatDType::F16 => {
            for (value, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f16::from_le_bytes(*b).to_f32();
            }
        }
        FloatDType::Bf16 => {
            for (value, b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_bits((u16::from_le_bytes(*b) as u32) << 16);
            }
        }
    }
}

/// Encodes to little-endian elements, rounding to nearest even. On a value that is not finite, or not finite once
/// rounded, gives its index and the reason.
pub(crate) fn encode(dtype: FloatDType, values: &[f32], out: &mut Vec<u8>) -> Result<(), (usize, &'static str)> {
    out.clear();
    let fits = |rounded: bool, i: usize| match (values[i].is_finite(), rounded) {
        (true, true) => Ok(()),
        (true, false) => Err((i, "is too large for the file's element type")),
        (false, _) => Err((i, "is not finite")),
    };
    match dtype {
        FloatDType::F32 => {
            for (i, value) in values.iter().enumerate() {
                fits(true, i)?;
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        FloatDType::F16 => {
            for (i, value) in values.iter().enumerate() {
                let rounded = f16::from_f32(*value);
                fits(rounded.is_finite(), i)?;
                out.extend_from_slice(&rounded.to_le_bytes());
            }
        }
        FloatDType::Bf16 => {
            for (i, value) in values.iter().enumerate() {
                let rounded = <bf16 as Element>::from_f32(*value);
                fits(rounded.is_finite(), i)?;
                out.extend_from_slice(&rounded.to_le_bytes());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_pattern_survives_both_ways() {
        for dtype in [FloatDType::F16, FloatDType::Bf16] {
            for bits in 0..=u16::MAX {
                let mut value = [0.0];
                decode(dtype, &bits.to_le_bytes(), &mut value);
                let mut bytes = Vec::new();
                match encode(dtype, &value, &mut bytes) {
                    Ok(()) => assert_eq!(bytes, bits.to_le_bytes(), "{dtype} {bits:#x}"),
                    Err((0, why)) => assert!(!value[0].is_finite() && why == "is not finite", "{dtype} {bits:#x}"),
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even_and_overflow_is_refused() {
        let mut bytes = Vec::new();
        // 1 + 2^-8 lies halfway between two bf16 values; the even one is 1. 1 + 3*2^-8 goes up to 1 + 2^-6.
        encode(FloatDType::Bf16, &[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], &mut bytes).unwrap();
        assert_eq!(bytes, [0x80, 0x3f, 0x82, 0x3f]);
        // 1 + 2^-11 lies halfway between two f16 values; the even one is 1.
        encode(FloatDType::F16, &[1.0 + 1.0 / 2048.0, 65504.0], &mut bytes).unwrap();
        assert_eq!(bytes, [0x00, 0x3c, 0xff, 0x7b]);
        let large = "is too large for the file's element type";
        assert_eq!(encode(FloatDType::F16, &[1.0, 65520.0], &mut bytes), Err((1, large)));
        assert_eq!(encode(FloatDType::Bf16, &[f32::MAX], &mut bytes), Err((0, large)));
        assert_eq!(encode(FloatDType::F32, &[f32::NAN], &mut bytes), Err((0, "is not finite")));
    }
}
