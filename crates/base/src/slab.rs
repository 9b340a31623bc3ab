//! [`SlabLayout`]: where each tensor of a unit lies in the unit's one contiguous slab.
//!
//! Tensors start at multiples of [`ALIGN_ELEMS`] elements, so at multiples of [`ALIGN_BYTES`] in every dtype of two bytes or one, too. All slabs of a unit (streamed weights, low halves, moments,
//! gradients) share element offsets: element `i` of the slab is the same parameter in each of them.

use crate::{DType, RegionId, Shape, Tensor};

/// Alignment of tensors in a slab, in **elements** of any dtype: 256 elements are at least 256 bytes.
pub const ALIGN_ELEMS: u64 = 256;

/// Alignment of tensors and regions in bytes that every placement keeps.
pub const ALIGN_BYTES: u64 = 256;

/// One tensor of a slab.
#[derive(Clone, PartialEq, Debug)]
pub struct SlabTensor {
    /// Name in the checkpoint, e.g. `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Dimensions.
    pub shape: Shape,
    /// Whether weight decay applies (two dimensions or more).
    pub decay: bool,
    /// First element in the slab.
    pub offset_elems: u64,
}

impl SlabTensor {
    /// Its place in a slab of `dtype` that starts at `base_bytes` of `region`.
    pub fn place(&self, region: RegionId, base_bytes: u64, dtype: DType) -> Tensor {
        Tensor::new(region, base_bytes + self.offset_elems * dtype.size_bytes(), dtype, self.shape)
    }
}

/// The layout of one unit's slabs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SlabLayout {
    /// Tensors in address order.
    pub tensors: Vec<SlabTensor>,
    len_elems: u64,
}

impl SlabLayout {
    /// An empty layout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a tensor at the next aligned place and returns its index.
    pub fn push(&mut self, name: impl Into<String>, shape: impl Into<Shape>, decay: bool) -> usize {
        let offset_elems = self.len_elems.next_multiple_of(ALIGN_ELEMS);
        self.push_at(name, shape, decay, offset_elems)
    }

    /// Appends a tensor directly behind the last one, so that the two can be read as one matrix (q, k, v; gate, up).
    pub fn push_adjacent(&mut self, name: impl Into<String>, shape: impl Into<Shape>, decay: bool) -> usize {
        self.push_at(name, shape, decay, self.len_elems)
    }

    fn push_at(&mut self, name: impl Into<String>, shape: impl Into<Shape>, decay: bool, offset_elems: u64) -> usize {
        let shape = shape.into();
        self.tensors.push(SlabTensor { name: name.into(), shape, decay, offset_elems });
        self.len_elems = offset_elems + shape.elems();
        self.tensors.len() - 1
    }

    /// Elements of a slab, padding included, rounded up to the alignment.
    pub fn len_elems(&self) -> u64 {
        self.len_elems.next_multiple_of(ALIGN_ELEMS)
    }

    /// Bytes of a slab of `dtype`.
    pub fn len_bytes(&self, dtype: DType) -> u64 {
        self.len_elems() * dtype.size_bytes()
    }

    /// Parameters, padding not counted.
    pub fn params(&self) -> u64 {
        self.tensors.iter().map(|t| t.shape.elems()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_aligned_unless_adjacent() {
        let mut slab = SlabLayout::new();
        slab.push("norm", [3u64], false);
        slab.push("q", [4u64, 3], true);
        slab.push_adjacent("k", [2u64, 3], true);
        let at: Vec<u64> = slab.tensors.iter().map(|t| t.offset_elems).collect();
        assert_eq!(at, [0, 256, 268]);
        assert_eq!((slab.len_elems(), slab.params()), (512, 3 + 12 + 6));
        let k = slab.tensors[2].place(RegionId(1), 1024, DType::Bf16);
        assert_eq!((k.span.offset_bytes, k.span.len_bytes), (1024 + 268 * 2, 12));
    }
}
