//! [`Limit`]: what a device's matrix products reach at the most, where that is known.

use megatrain_base::DType;
use serde::Serialize;

/// The most that a device computes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Limit {
    /// 10^12 operations a second.
    pub tflops: f64,
    /// Whose figure it is, for people.
    pub what: String,
}

/// Dense bf16 products with f32 sums, without sparsity, in TFLOP/s: NVIDIA's data sheets, by the name that the driver gives.
/// The first name that a device's name contains counts.
const DATA_SHEET: [(&str, f64); 8] = [
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.5),
    ("H100", 989.4),
    ("H200", 989.4),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("A40", 149.7),
    ("A10", 125.0),
];

impl Limit {
    /// The data sheet's figure for a GPU, if it is one of those known here and computes in bf16.
    pub fn of_gpu(name: &str, dtype: DType) -> Option<Limit> {
        let (_, tflops) = DATA_SHEET.iter().find(|(known, _)| dtype == DType::Bf16 && has_word(name, known))?;
        Some(Limit { tflops: *tflops, what: format!("{name}, bf16 products, data sheet") })
    }
}

/// Whether `words` stand in `name`, and not as the beginning of a longer word.
fn has_word(name: &str, words: &str) -> bool {
    name.find(words).is_some_and(|at| !name[at + words.len()..].starts_with(|c: char| c.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_devices_have_a_limit_and_others_none() {
        let tflops = |name: &str, dtype| Limit::of_gpu(name, dtype).map(|limit| limit.tflops);
        assert_eq!(tflops("NVIDIA H200", DType::Bf16), Some(989.4));
        assert_eq!(tflops("NVIDIA H100 PCIe", DType::Bf16), Some(756.5));
        assert_eq!(tflops("NVIDIA H100 80GB HBM3", DType::Bf16), Some(989.4));
        assert_eq!(tflops("NVIDIA A100-SXM4-80GB", DType::Bf16), Some(312.0));
        assert_eq!(tflops("NVIDIA A10G", DType::Bf16), None);
        assert_eq!(tflops("NVIDIA H200", DType::F32), None);
        assert_eq!(tflops("NVIDIA T4", DType::Bf16), None);
    }
}
