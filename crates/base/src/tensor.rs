//! [`Span`]: an address range. [`Tensor`]: a span with a dtype and a shape. Neither is a pointer.

use crate::{DType, RegionId, Shape};
use std::fmt;

/// A range of bytes of one region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The region.
    pub region: RegionId,
    /// First byte, counted from the start of the region.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

impl Span {
    /// Makes a span.
    pub const fn new(region: RegionId, offset_bytes: u64, len_bytes: u64) -> Self {
        Span { region, offset_bytes, len_bytes }
    }

    /// One past the last byte.
    pub const fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.len_bytes
    }

    /// Whether two spans share a byte. Empty spans share nothing.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.region == other.region
            && self.len_bytes > 0
            && other.len_bytes > 0
            && self.offset_bytes < other.end_bytes()
            && other.offset_bytes < self.end_bytes()
    }

    /// Whether `other` lies wholly inside `self`.
    pub fn contains(&self, other: &Span) -> bool {
        self.region == other.region && self.offset_bytes <= other.offset_bytes && other.end_bytes() <= self.end_bytes()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}..{}]", self.region, self.offset_bytes, self.end_bytes())
    }
}

/// A contiguous row-major tensor: where it lies and how its bytes are read. Holds no data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tensor {
    /// Its bytes; `span.len_bytes == shape.elems() * dtype.size_bytes()`.
    pub span: Span,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, slowest first.
    pub shape: Shape,
}

impl Tensor {
    /// A tensor that starts `offset_bytes` into `region`.
    pub fn new(region: RegionId, offset_bytes: u64, dtype: DType, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        Tensor { span: Span::new(region, offset_bytes, shape.elems() * dtype.size_bytes()), dtype, shape }
    }

    /// Number of elements.
    pub fn elems(&self) -> usize {
        self.shape.elems() as usize
    }

    /// The same bytes under another shape with as many elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        assert_eq!(shape.elems(), self.shape.elems(), "reshape {} to {shape}", self.shape);
        Tensor { shape, ..*self }
    }

    /// Rows `start..start + rows` along the first dimension.
    pub fn rows(&self, start: usize, rows: usize) -> Self {
        let dims = self.shape.dims();
        assert!(start as u64 + rows as u64 <= dims[0], "rows {start}+{rows} of {}", self.shape);
        let row_bytes = self.span.len_bytes.checked_div(dims[0]).unwrap_or(0);
        let mut out = [1u64; 4];
        out[..dims.len()].copy_from_slice(dims);
        out[0] = rows as u64;
        Tensor::new(
            self.span.region,
            self.span.offset_bytes + start as u64 * row_bytes,
            self.dtype,
            Shape::new(&out[..dims.len()]),
        )
    }

    /// The same tensor moved to another address.
    pub fn at(&self, region: RegionId, offset_bytes: u64) -> Self {
        Tensor { span: Span::new(region, offset_bytes, self.span.len_bytes), ..*self }
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} at {}", self.dtype, self.shape, self.span)
    }
}
