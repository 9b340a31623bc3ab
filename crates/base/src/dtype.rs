//! Element types: the run-time tag [`DType`] and the compile-time [`Element`].

use half::bf16;
use std::fmt;

/// The element type of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit brain float.
    Bf16,
    /// 64-bit IEEE float; host-side sums only.
    F64,
    /// 32-bit signed integer: token ids, targets, positions, offsets.
    I32,
    /// Raw 16-bit words: the low halves of split masters.
    U16,
    /// Raw bytes.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::U16 => 2,
            DType::U8 => 1,
        }
    }

    /// Whether values are floating point.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::Bf16 | DType::F64)
    }

    /// Unit roundoff: the largest relative error of rounding one real number to this type (0 for integers).
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            DType::F64 => f64::EPSILON / 2.0,
            DType::F32 => f32::EPSILON as f64 / 2.0,
            DType::Bf16 => 1.0 / 256.0,
            _ => 0.0,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::U16 => "u16",
            DType::U8 => "u8",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A plain-old-data element. Sealed: every bit pattern of every implementor is a valid value and there is no padding,
/// which is what makes [`crate::Operands`] sound.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + 'static {
    /// The matching tag.
    const DTYPE: DType;
    /// Conversion to f32 (exact for bf16, rounding for f64 and large i32).
    fn to_f32(self) -> f32;
    /// Conversion from f32, rounding to nearest even for bf16.
    fn from_f32(value: f32) -> Self;
}

macro_rules! element {
    ($($t:ty, $tag:ident, $to:expr, $from:expr;)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$tag;
            #[inline(always)]
            fn to_f32(self) -> f32 { let f: fn($t) -> f32 = $to; f(self) }
            #[inline(always)]
            fn from_f32(value: f32) -> Self { let f: fn(f32) -> $t = $from; f(value) }
        }
    )*};
}

element! {
    f32, F32, |x| x, |x| x;
    f64, F64, |x| x as f32, |x| x as f64;
    i32, I32, |x| x as f32, |x| x as i32;
    u16, U16, |x| x as f32, |x| x as u16;
    u8, U8, |x| x as f32, |x| x as u8;
}

impl sealed::Sealed for bf16 {}
impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        // Branch-free so that loops vectorise: nearest even for numbers; a NaN keeps its top bits and is made quiet.
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        let quiet = ((bits >> 16) as u16) | 0x0040;
        bf16::from_bits(if value.is_nan() { quiet } else { rounded })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounding_agrees_with_half_on_every_top_half_and_many_low_halves() {
        for hi in 0..=u16::MAX {
            for lo in [0u16, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(((hi as u32) << 16) | lo as u32);
                let (ours, theirs) = (<bf16 as Element>::from_f32(x), bf16::from_f32(x));
                if x.is_nan() {
                    assert!(ours.is_nan() && theirs.is_nan());
                } else {
                    assert_eq!(ours.to_bits(), theirs.to_bits(), "{x:e}");
                }
            }
        }
    }
}
