//! Shapes of up to four dimensions, held inline.

use std::fmt;

/// Dimensions of a row-major tensor, slowest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [u64; 4],
    rank: u8,
}

impl Shape {
    /// Makes a shape. Panics on more than four dimensions: that is a bug in the caller, not input.
    pub fn new(dims: &[u64]) -> Self {
        assert!(dims.len() <= 4, "shapes have at most four dimensions, got {dims:?}");
        let mut out = [1; 4];
        out[..dims.len()].copy_from_slice(dims);
        Shape { dims: out, rank: dims.len() as u8 }
    }

    /// The dimensions.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.rank as usize]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Dimension `i` as a usize.
    pub fn dim(&self, i: usize) -> usize {
        self.dims()[i] as usize
    }

    /// The last dimension (1 for a scalar).
    pub fn last(&self) -> usize {
        self.dims().last().map_or(1, |&d| d as usize)
    }

    /// Product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.dims().iter().rev().skip(1).product::<u64>() as usize
    }

    /// Number of elements.
    pub fn elems(&self) -> u64 {
        self.dims().iter().product()
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(dims: [u64; N]) -> Self {
        Shape::new(&dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape::new(&dims.map(|d| d as u64))
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}
