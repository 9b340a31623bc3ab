//! Element types as `.safetensors` headers name them.

use megatrain_base::DType;
use std::fmt;

/// Every element type the format defines, by the header's spelling, with its size in bits.
/// Source: the format's reference implementation lists the same names.
const KNOWN: [(&str, u64); 20] = [
    ("BOOL", 8),
    ("U8", 8),
    ("I8", 8),
    ("U16", 16),
    ("I16", 16),
    ("U32", 32),
    ("I32", 32),
    ("U64", 64),
    ("I64", 64),
    ("F64", 64),
    ("C64", 64),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F4", 4),
    ("F32", 32),
    ("F16", 16),
    ("BF16", 16),
];

/// The element type of a tensor in a file: one that weights may have, or another that the format knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileDType {
    /// A type that weights are read from and written as.
    Float(FloatDType),
    /// Any other type of the format: its bytes are checked and copied, never interpreted.
    Other {
        /// The header's spelling.
        name: &'static str,
        /// Size of an element in bits; below eight for packed types.
        bits: u64,
    },
}

/// The element types that weights are read from and written as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FloatDType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    Bf16,
}

impl FloatDType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            FloatDType::F32 => 4,
            FloatDType::F16 | FloatDType::Bf16 => 2,
        }
    }

    /// The spelling in a header.
    pub const fn header_name(self) -> &'static str {
        match self {
            FloatDType::F32 => "F32",
            FloatDType::F16 => "F16",
            FloatDType::Bf16 => "BF16",
        }
    }

    /// The spelling in `config.json`'s `torch_dtype` (or `dtype`).
    pub const fn config_name(self) -> &'static str {
        match self {
            FloatDType::F32 => "float32",
            FloatDType::F16 => "float16",
            FloatDType::Bf16 => "bfloat16",
        }
    }

    /// The file type of a compute dtype; none for the types that no weight has.
    pub const fn from_compute(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(FloatDType::F32),
            DType::Bf16 => Some(FloatDType::Bf16),
            _ => None,
        }
    }
}

impl FileDType {
    /// The type with this spelling in a header.
    pub fn from_header_name(name: &str) -> Option<Self> {
        for float in [FloatDType::F32, FloatDType::F16, FloatDType::Bf16] {
            if name == float.header_name() {
                return Some(FileDType::Float(float));
            }
        }
        KNOWN.iter().find(|(known, _)| *known == name).map(|&(name, bits)| FileDType::Other { name, bits })
    }

    /// The spelling in a header.
    pub const fn header_name(self) -> &'static str {
        match self {
            FileDType::Float(float) => float.header_name(),
            FileDType::Other { name, .. } => name,
        }
    }

    /// Bits of one element.
    pub const fn bits(self) -> u64 {
        match self {
            FileDType::Float(float) => 8 * float.size_bytes(),
            FileDType::Other { bits, .. } => bits,
        }
    }

    /// The float type, if weights can be read from it.
    pub const fn float(self) -> Option<FloatDType> {
        match self {
            FileDType::Float(float) => Some(float),
            FileDType::Other { .. } => None,
        }
    }

    /// Bytes of a tensor of these dimensions; none on overflow or where the elements do not fill whole bytes.
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let elems = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
        let bits = elems.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl fmt::Display for FileDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.header_name())
    }
}

impl fmt::Display for FloatDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.header_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_shapes_are_exact_or_refused() {
        let bf16 = FileDType::from_header_name("BF16").unwrap();
        assert_eq!(bf16.tensor_bytes(&[3, 5]), Some(30));
        assert_eq!(bf16.tensor_bytes(&[]), Some(2));
        assert_eq!(bf16.tensor_bytes(&[u64::MAX, 2]), None);
        assert_eq!(bf16.tensor_bytes(&[1 << 61]), None);
        let f4 = FileDType::from_header_name("F4").unwrap();
        assert_eq!(f4.tensor_bytes(&[4]), Some(2));
        assert_eq!(f4.tensor_bytes(&[3]), None);
        assert_eq!(FileDType::from_header_name("bf16"), None);
        for (name, bits) in KNOWN {
            let dtype = FileDType::from_header_name(name).unwrap();
            assert_eq!((dtype.header_name(), dtype.bits()), (name, bits));
        }
    }
}
