//! [`Avx2`]: eight floats at a time with AVX2 and FMA.

use super::{Kernel, SUM_LANES, Simd};
use megatrain_base::bf16;
use std::arch::x86_64::*;

/// Proof that the processor has AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor must have AVX2 and FMA.
    pub(crate) unsafe fn detected() -> Self {
        Avx2(())
    }

    /// Runs a kernel compiled for AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

const N: usize = 8;

impl Simd for Avx2 {
    type F = __m256;
    type Squares = [__m256d; SUM_LANES / 4];
    const N: usize = N;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        // SAFETY: the token proves AVX; the slice has N elements; the load needs no alignment.
        unsafe { _mm256_loadu_ps(from[..N].as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m256, to: &mut [f32]) {
        // SAFETY: the token proves AVX; the slice has N elements; the store needs no alignment.
        unsafe { _mm256_storeu_ps(to[..N].as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> __m256 {
        // SAFETY: the token proves AVX2; bf16 is 16 plain bits and the slice has N of them, 16 bytes.
        unsafe {
            let bits = _mm_loadu_si128(from[..N].as_ptr().cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
        }
    }
    #[inline(always)]
    fn load_split(self, hi: &[u16], lo: &[u16]) -> __m256 {
        // SAFETY: the token proves AVX2; both slices have N elements, 16 bytes.
        unsafe {
            let hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(hi[..N].as_ptr().cast()));
            let lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(lo[..N].as_ptr().cast()));
            // A borrow out of the 16 bits of hi leaves with the shift, as the wrapping subtraction wants.
            let top = _mm256_slli_epi32::<16>(_mm256_sub_epi32(hi, _mm256_srli_epi32::<15>(lo)));
            _mm256_castsi256_ps(_mm256_or_si256(top, lo))
        }
    }
    #[inline(always)]
    fn store_split(self, x: __m256, hi: &mut [u16], lo: &mut [u16]) {
        // SAFETY: the token proves AVX2; both slices have N elements, 16 bytes.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let top = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)));
            let low = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
            // The pack works within 128-bit halves: hi 0-3, lo 0-3, hi 4-7, lo 4-7; the permutation swaps the middle
            // two.
            let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(top, low));
            _mm_storeu_si128(hi[..N].as_mut_ptr().cast(), _mm256_castsi256_si128(both));
            _mm_storeu_si128(lo[..N].as_mut_ptr().cast(), _mm256_extracti128_si256::<1>(both));
        }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the token proves FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn any_magnitude_at_least(self, x: __m256, limit: u32) -> bool {
        // SAFETY: the token proves AVX2. Magnitudes and limits are below 2^31, so the signed comparison is right.
        unsafe {
            let magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff));
            _mm256_movemask_epi8(_mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(limit as i32 - 1))) != 0
        }
    }

    #[inline(always)]
    fn no_squares(self) -> Self::Squares {
        // SAFETY: the token proves AVX.
        unsafe { [_mm256_setzero_pd(); SUM_LANES / 4] }
    }
    #[inline(always)]
    fn add_squares_f32(self, sums: &mut Self::Squares, from: &[f32]) {
        let from = &from[..SUM_LANES];
        for (k, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the token proves AVX and FMA; 4 k + 4 is at most SUM_LANES.
            unsafe {
                let x = _mm256_cvtps_pd(_mm_loadu_ps(from[4 * k..][..4].as_ptr()));
                *sum = _mm256_fmadd_pd(x, x, *sum);
            }
        }
    }
    #[inline(always)]
    fn add_squares_bf16(self, sums: &mut Self::Squares, from: &[bf16]) {
        let from = &from[..SUM_LANES];
        for (k, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the token proves AVX2 and FMA; 4 k + 4 is at most SUM_LANES, and 4 bf16 are 8 bytes.
            unsafe {
                let bits = _mm_cvtepu16_epi32(_mm_loadl_epi64(from[4 * k..][..4].as_ptr().cast()));
                let x = _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32::<16>(bits)));
                *sum = _mm256_fmadd_pd(x, x, *sum);
            }
        }
    }
    #[inline(always)]
    fn squares_to_array(self, sums: Self::Squares) -> [f64; SUM_LANES] {
        let mut out = [0.0; SUM_LANES];
        for (k, sum) in sums.into_iter().enumerate() {
            // SAFETY: the token proves AVX; the slice has 4 elements.
            unsafe { _mm256_storeu_pd(out[4 * k..][..4].as_mut_ptr(), sum) }
        }
        out
    }
}
