//! The dozen vector operations that the kernels are written in, and a token per instruction set that provides them.
//!
//! Only correctly rounded arithmetic (subtract, multiply, explicit fused multiply-add, divide, square root), so that
//! every implementation gives the same bits; no approximations, no contraction, denormals kept.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

use megatrain_base::bf16;

/// Independent f64 accumulators of a sum of squares, the same number on every instruction set.
pub(crate) const SUM_LANES: usize = 32;

/// A computation generic over the instruction set. `run` must be `#[inline(always)]`, so that it is compiled inside a
/// function that has the instructions.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vector operations. A value of the type proves that the processor has the instructions.
pub(crate) trait Simd: Copy {
    /// `N` floats.
    type F: Copy;
    /// [`SUM_LANES`] f64 accumulators.
    type Squares: Copy;
    /// Floats in a vector.
    const N: usize;

    fn splat(self, x: f32) -> Self::F;
    /// Reads the first `N` elements; panics where there are fewer, as the loads and stores below do.
    fn load(self, from: &[f32]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32]);
    fn load_bf16(self, from: &[bf16]) -> Self::F;
    /// `megatrain_base::master::join` on `N` elements.
    fn load_split(self, hi: &[u16], lo: &[u16]) -> Self::F;
    /// `megatrain_base::master::split` on `N` elements.
    fn store_split(self, x: Self::F, hi: &mut [u16], lo: &mut [u16]);

    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    fn sqrt(self, a: Self::F) -> Self::F;
    /// Whether the bits of any |x| are at least `limit` (as integers; NaN is above infinity).
    fn any_magnitude_at_least(self, x: Self::F, limit: u32) -> bool;

    fn no_squares(self) -> Self::Squares;
    /// Adds the squares of the first `SUM_LANES` elements, element `i` to accumulator `i`. The square of an f32 is
    /// exact in f64, so fused or not makes no difference.
    fn add_squares_f32(self, sums: &mut Self::Squares, from: &[f32]);
    fn add_squares_bf16(self, sums: &mut Self::Squares, from: &[bf16]);
    fn squares_to_array(self, sums: Self::Squares) -> [f64; SUM_LANES];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use megatrain_base::master;

    /// Splits and joins 65,536 consecutive masters, `N` at a time.
    struct RoundTrip {
        first: u32,
    }

    impl Kernel for RoundTrip {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let masters: Vec<u32> = (0..1 << 16).map(|i| self.first.wrapping_add(i)).collect();
            let (mut hi, mut lo): (Vec<u16>, Vec<u16>) = masters.iter().map(|&m| master::split(m)).unzip();
            let expected = (hi.clone(), lo.clone());
            let mut joined = vec![0f32; masters.len()];
            for i in (0..masters.len()).step_by(S::N) {
                let x = simd.load_split(&hi[i..], &lo[i..]);
                simd.store(x, &mut joined[i..]);
                hi[i..i + S::N].fill(7);
                lo[i..i + S::N].fill(7);
                simd.store_split(x, &mut hi[i..], &mut lo[i..]);
            }
            assert!(joined.iter().zip(&masters).all(|(j, &m)| j.to_bits() == m), "join at {:#x}", self.first);
            assert!(expected == (hi, lo), "split at {:#x}", self.first);
        }
    }

    #[test]
    fn vector_halves_equal_the_scalar_definition_for_every_high_half() {
        // A prime stride over the 2^16 high halves reaches signs, denormals, infinities and NaNs of both kinds.
        for isa in Isa::available() {
            for top in (0..=u16::MAX).step_by(1009).chain([0x7f7f, 0x7f80, 0xff7f, 0xff80, 0xffff, 0x7fff]) {
                isa.run(RoundTrip { first: ((top as u32) << 16).wrapping_sub(1 << 15) });
            }
        }
    }
}
