//! [`Key`]: what the algorithm of a product is chosen by, and its text of one line.

use megatrain_base::DType;
use megatrain_ops::Matmul;
use std::fmt;

/// Shapes, storage and alignments of a product; two products of one key run the same algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    /// m, n, k: `c[m, n] (+)= op(a)[m, k] op(b)[k, n]`.
    pub(super) sizes: [u64; 3],
    /// Whether a and b are stored transposed.
    pub(super) transposes: [bool; 2],
    /// Of the factors.
    pub(super) factors: DType,
    /// Of c.
    pub(super) result: DType,
    pub(super) accumulate: bool,
    /// Of the addresses of a, b and c, in bytes; 256 stands for any more.
    pub(super) alignments: [u32; 3],
}

const MAX_ALIGNMENT: u32 = 256;

impl Key {
    /// The key of a product whose operands a, b and c lie at these addresses.
    ///
    /// # Panics
    /// If there are fewer than three addresses.
    pub(super) fn new(op: &Matmul, addresses: &[u64]) -> Key {
        let (m, n, k) = op.sizes();
        Key {
            sizes: [m, n, k].map(|size| size as u64),
            transposes: [op.transpose_a, op.transpose_b],
            factors: op.a.dtype,
            result: op.c.dtype,
            accumulate: op.accumulate,
            alignments: std::array::from_fn(|i| 1 << addresses[i].trailing_zeros().min(MAX_ALIGNMENT.ilog2())),
        }
    }

    /// Dtypes of a, b and c.
    pub(super) fn dtypes(&self) -> [DType; 3] {
        [self.factors, self.factors, self.result]
    }

    /// Rows and columns of a, b and c as they are stored.
    pub(super) fn shapes(&self) -> [[u64; 2]; 3] {
        let [m, n, k] = self.sizes;
        let stored = |transposed, [rows, columns]: [u64; 2]| if transposed { [columns, rows] } else { [rows, columns] };
        [stored(self.transposes[0], [m, k]), stored(self.transposes[1], [k, n]), [m, n]]
    }

    /// Lengths of a, b and c in bytes; `None` where no memory is that long.
    pub(super) fn lens_bytes(&self) -> Option<[u64; 3]> {
        let mut lens = [0; 3];
        for ((len, [rows, columns]), dtype) in lens.iter_mut().zip(self.shapes()).zip(self.dtypes()) {
            *len = rows.checked_mul(columns)?.checked_mul(dtype.size_bytes())?;
        }
        Some(lens)
    }

    /// Reads what [`fmt::Display`] wrote, and nothing else.
    pub(super) fn parse(text: &str) -> Option<Key> {
        let fields: Vec<(&str, &str)> = text.split(' ').map(|field| field.split_once('=')).collect::<Option<_>>()?;
        let [("m", m), ("n", n), ("k", k), (a, a_value), (b, b_value), (c, c_value)] = fields[..] else { return None };
        let mut sizes = [0; 3];
        for (size, text) in sizes.iter_mut().zip([m, n, k]) {
            *size = text.parse().ok()?;
        }
        let (factors, a_alignment) = parse_operand(a_value)?;
        let (_, b_alignment) = parse_operand(b_value)?;
        let (result, c_alignment) = parse_operand(c_value)?;
        let key = Key {
            sizes,
            transposes: [a == "a^T", b == "b^T"],
            factors,
            result,
            accumulate: c == "c+",
            alignments: [a_alignment, b_alignment, c_alignment],
        };
        // Whatever was read loosely above, such as a sign or a name, is not what is written.
        (key.to_string() == text).then_some(key)
    }
}

fn parse_operand(text: &str) -> Option<(DType, u32)> {
    let (dtype, alignment) = text.split_once('@')?;
    let dtype = [DType::F32, DType::Bf16].into_iter().find(|d| d.to_string() == dtype)?;
    let alignment = alignment.parse::<u32>().ok().filter(|a| a.is_power_of_two() && *a <= MAX_ALIGNMENT)?;
    Some((dtype, alignment))
}

impl fmt::Display for Key {
    /// E.g. `m=8192 n=37888 k=3584 a=bf16@256 b^T=bf16@256 c=bf16@256`; `c+=` when it accumulates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [m, n, k] = self.sizes;
        let [a, b] = self.transposes.map(|transposed| if transposed { "^T" } else { "" });
        let add = if self.accumulate { "+" } else { "" };
        let (factors, result, [at_a, at_b, at_c]) = (self.factors, self.result, self.alignments);
        write!(f, "m={m} n={n} k={k} a{a}={factors}@{at_a} b{b}={factors}@{at_b} c{add}={result}@{at_c}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_ops::{Op, OpArgs, Places};

    fn all_keys() -> Vec<Key> {
        let cases =
            Op::all_cases().into_iter().filter_map(|case| if let Op::Matmul(op) = case.op { Some(op) } else { None });
        cases.zip(1..).map(|(op, i)| Key::new(&op, &[i * 2, i * 16, i * 1024])).collect()
    }

    #[test]
    fn text_of_every_case_reads_back_as_the_same_key_and_no_two_keys_share_one() {
        let keys = all_keys();
        assert!(keys.len() >= 140, "{} {}", keys.len(), Matmul::NAME);
        for key in &keys {
            assert_eq!(Key::parse(&key.to_string()), Some(*key), "{key}");
        }
        let distinct: std::collections::HashSet<String> = keys.iter().map(Key::to_string).collect();
        assert_eq!(distinct.len(), keys.iter().collect::<std::collections::HashSet<_>>().len());
    }

    #[test]
    fn text_is_what_a_person_would_write() {
        let mut at = Places::default();
        let op = Matmul {
            a: at.tensor(DType::Bf16, [4096usize, 512]),
            b: at.tensor(DType::Bf16, [4096usize, 768]),
            c: at.tensor(DType::F32, [512usize, 768]),
            transpose_a: true,
            transpose_b: false,
            accumulate: true,
        };
        let key = Key::new(&op, &[0x7000_0100, 0x7000_0102, 0x7000_0810]);
        assert_eq!(key.to_string(), "m=512 n=768 k=4096 a^T=bf16@256 b=bf16@2 c+=f32@16");
        assert_eq!(key.shapes(), [[4096, 512], [4096, 768], [512, 768]]);
        assert_eq!(key.lens_bytes(), Some([4096 * 512 * 2, 4096 * 768 * 2, 512 * 768 * 4]));
    }

    #[test]
    fn other_text_is_no_key() {
        let good = "m=1 n=2 k=3 a=f32@4 b=f32@8 c=f32@256";
        assert!(Key::parse(good).is_some());
        for (part, other) in [
            ("m=1", "m=+1"),
            ("m=1", "m=01"),
            ("m=1", "m=-1"),
            ("m=1", "m=99999999999999999999"),
            ("n=2", "l=2"),
            (" k=3", ""),
            ("a=f32", "a=f64"),
            ("a=f32@4", "a=f32"),
            ("b=f32", "b=bf16"),
            ("b=", "d="),
            ("b=f32@8", "b=f32@512"),
            ("b=f32@8", "b=f32@6"),
            ("c=", "c-="),
            ("@256", "@256 "),
            ("@256", "@256 d=1"),
        ] {
            let bad = good.replace(part, other);
            assert!(bad != good && Key::parse(&bad).is_none(), "{bad}");
        }
        assert!(Key::parse("").is_none());
    }

    #[test]
    fn a_product_too_long_for_any_memory_has_no_length() {
        let key = Key::parse("m=18446744073709551615 n=2 k=3 a=f32@4 b=f32@8 c=f32@256").unwrap();
        assert_eq!(key.lens_bytes(), None);
    }
}
