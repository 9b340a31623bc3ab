//! [`Portable`]: the operations in plain Rust, eight floats at a time so that compilers vectorise what they can.

use super::{SUM_LANES, Simd};
use megatrain_base::{bf16, master};
use std::array::from_fn;

/// Needs no instructions beyond the target's own.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 8;

impl Simd for Portable {
    type F = [f32; N];
    type Squares = [f64; SUM_LANES];
    const N: usize = N;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; N]
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::F {
        let from = &from[..N];
        from_fn(|i| from[i])
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32]) {
        to[..N].copy_from_slice(&x);
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> Self::F {
        let from = &from[..N];
        from_fn(|i| f32::from_bits((from[i].to_bits() as u32) << 16))
    }
    #[inline(always)]
    fn load_split(self, hi: &[u16], lo: &[u16]) -> Self::F {
        let (hi, lo) = (&hi[..N], &lo[..N]);
        from_fn(|i| f32::from_bits(master::join(hi[i], lo[i])))
    }
    #[inline(always)]
    fn store_split(self, x: Self::F, hi: &mut [u16], lo: &mut [u16]) {
        let (hi, lo) = (&mut hi[..N], &mut lo[..N]);
        for i in 0..N {
            (hi[i], lo[i]) = master::split(x[i].to_bits());
        }
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        from_fn(|i| a[i].sqrt())
    }
    #[inline(always)]
    fn any_magnitude_at_least(self, x: Self::F, limit: u32) -> bool {
        x.iter().fold(false, |any, x| any | (x.to_bits() & 0x7fff_ffff >= limit))
    }

    #[inline(always)]
    fn no_squares(self) -> Self::Squares {
        [0.0; SUM_LANES]
    }
    #[inline(always)]
    fn add_squares_f32(self, sums: &mut Self::Squares, from: &[f32]) {
        for (sum, &x) in sums.iter_mut().zip(&from[..SUM_LANES]) {
            *sum += x as f64 * x as f64;
        }
    }
    #[inline(always)]
    fn add_squares_bf16(self, sums: &mut Self::Squares, from: &[bf16]) {
        for (sum, x) in sums.iter_mut().zip(&from[..SUM_LANES]) {
            let x = f32::from_bits((x.to_bits() as u32) << 16) as f64;
            *sum += x * x;
        }
    }
    #[inline(always)]
    fn squares_to_array(self, sums: Self::Squares) -> [f64; SUM_LANES] {
        sums
    }
}
