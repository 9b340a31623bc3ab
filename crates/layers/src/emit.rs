//! [`Emitter`]: collects the ops a template emits and hands out symbolic buffers.

use megatrain_base::{DType, RegionId, Shape, Tensor};
use megatrain_ops::Op;

/// Collects ops in execution order. Temporaries are symbolic: each is a region of its own that exists from the first op
/// that touches it to the last, and is placed by whoever plans the program.
#[derive(Debug)]
pub struct Emitter {
    /// The ops, in execution order.
    pub ops: Vec<Op>,
    first_region: u32,
    temps: Vec<Tensor>,
}

impl Emitter {
    /// An emitter whose temporaries are the regions `first_symbolic_region`, `first_symbolic_region + 1`, ...
    pub fn new(first_symbolic_region: u32) -> Self {
        Emitter { ops: Vec::new(), first_region: first_symbolic_region, temps: Vec::new() }
    }

    /// A fresh temporary, at offset 0 of a region of its own. Its contents are undefined until an op writes them.
    pub fn temp(&mut self, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        let region = RegionId(self.first_region + self.temps.len() as u32);
        let tensor = Tensor::new(region, 0, dtype, shape);
        self.temps.push(tensor);
        tensor
    }

    /// Appends an op.
    ///
    /// # Panics
    /// In debug builds, if the op's operands do not fit together: a bug of the template, or tensors handed to it in the
    /// wrong order.
    pub fn push(&mut self, op: impl Into<Op>) {
        let op = op.into();
        #[cfg(debug_assertions)]
        if let Err(error) = op.check() {
            panic!("template emitted a wrong op: {error}\n{op:?}");
        }
        self.ops.push(op);
    }

    /// The temporaries handed out so far; number `i` is region `first_symbolic_region + i`.
    pub fn temps(&self) -> &[Tensor] {
        &self.temps
    }
}

/// One tensor over adjacent ones, stacked along the first dimension: `[a, d], [b, d] -> [a + b, d]`.
/// This is how q, k, v (and gate, up) become a single matrix product: by layout, without a copy.
///
/// # Panics
/// If the tensors do not follow each other without a gap in one region, or differ in dtype or row shape: a bug of
/// whoever placed them.
pub fn fuse(tensors: &[Tensor]) -> Tensor {
    let first = tensors[0];
    let (mut rows, mut end) = (0, first.span.offset_bytes);
    for t in tensors {
        assert!(
            t.span.region == first.span.region && t.span.offset_bytes == end,
            "{t} does not follow its predecessor, which ends at byte {end} of {}",
            first.span.region
        );
        assert!(t.dtype == first.dtype && t.shape.dims()[1..] == first.shape.dims()[1..], "{t} is not like {first}");
        rows += t.shape.dims()[0];
        end = t.span.end_bytes();
    }
    let dims: Vec<u64> = std::iter::once(rows).chain(first.shape.dims()[1..].iter().copied()).collect();
    Tensor::new(first.span.region, first.span.offset_bytes, first.dtype, Shape::new(&dims))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset_bytes: u64, rows: u64) -> Tensor {
        Tensor::new(RegionId(1), offset_bytes, DType::Bf16, [rows, 3u64])
    }

    #[test]
    fn adjacent_matrices_become_one() {
        let fused = fuse(&[at(512, 4), at(536, 2), at(548, 2)]);
        assert_eq!(fused, at(512, 8));
        let biases = [(0, 4u64), (16, 2)].map(|(o, n)| Tensor::new(RegionId(1), o, DType::F32, [n]));
        assert_eq!(fuse(&biases), Tensor::new(RegionId(1), 0, DType::F32, [6u64]));
    }

    #[test]
    #[should_panic(
        expected = "bf16[2, 3] at r1[560..572] does not follow its predecessor, which ends at byte 536 of r1"
    )]
    fn a_gap_is_a_bug() {
        fuse(&[at(512, 4), at(560, 2)]);
    }

    #[test]
    fn temporaries_are_regions_of_their_own() {
        let mut e = Emitter::new(40);
        let (a, b) = (e.temp(DType::F32, [3u64]), e.temp(DType::Bf16, [2u64, 2]));
        assert_eq!((a.span.region, b.span.region), (RegionId(40), RegionId(41)));
        assert_eq!(e.temps(), [a, b]);
    }
}
