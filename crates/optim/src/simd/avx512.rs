//! [`Avx512`]: sixteen floats at a time with AVX-512F alone.

use super::{Kernel, SUM_LANES, Simd};
use megatrain_base::bf16;
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512F.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor must have AVX-512F.
    pub(crate) unsafe fn detected() -> Self {
        Avx512(())
    }

    /// Runs a kernel compiled for AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

const N: usize = 16;

impl Simd for Avx512 {
    type F = __m512;
    type Squares = [__m512d; SUM_LANES / 8];
    const N: usize = N;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        // SAFETY: the token proves AVX-512F; the slice has N elements; the load needs no alignment.
        unsafe { _mm512_loadu_ps(from[..N].as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32]) {
        // SAFETY: the token proves AVX-512F; the slice has N elements; the store needs no alignment.
        unsafe { _mm512_storeu_ps(to[..N].as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> __m512 {
        // SAFETY: the token proves AVX-512F; bf16 is 16 plain bits and the slice has N of them, 32 bytes.
        unsafe {
            let bits = _mm256_loadu_si256(from[..N].as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
        }
    }
    #[inline(always)]
    fn load_split(self, hi: &[u16], lo: &[u16]) -> __m512 {
        // SAFETY: the token proves AVX-512F; both slices have N elements, 32 bytes.
        unsafe {
            let hi = _mm512_cvtepu16_epi32(_mm256_loadu_si256(hi[..N].as_ptr().cast()));
            let lo = _mm512_cvtepu16_epi32(_mm256_loadu_si256(lo[..N].as_ptr().cast()));
            // A borrow out of the 16 bits of hi leaves with the shift, as the wrapping subtraction wants.
            let top = _mm512_slli_epi32::<16>(_mm512_sub_epi32(hi, _mm512_srli_epi32::<15>(lo)));
            _mm512_castsi512_ps(_mm512_or_si512(top, lo))
        }
    }
    #[inline(always)]
    fn store_split(self, x: __m512, hi: &mut [u16], lo: &mut [u16]) {
        // SAFETY: the token proves AVX-512F; both slices have N elements, 32 bytes.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let top = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)));
            _mm256_storeu_si256(hi[..N].as_mut_ptr().cast(), _mm512_cvtepi32_epi16(top));
            _mm256_storeu_si256(lo[..N].as_mut_ptr().cast(), _mm512_cvtepi32_epi16(bits));
        }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn any_magnitude_at_least(self, x: __m512, limit: u32) -> bool {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            let magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fff_ffff));
            _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(limit as i32)) != 0
        }
    }

    #[inline(always)]
    fn no_squares(self) -> Self::Squares {
        // SAFETY: the token proves AVX-512F.
        unsafe { [_mm512_setzero_pd(); SUM_LANES / 8] }
    }
    #[inline(always)]
    fn add_squares_f32(self, sums: &mut Self::Squares, from: &[f32]) {
        let from = &from[..SUM_LANES];
        for (k, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the token proves AVX-512F (and with it AVX); 8 k + 8 is at most SUM_LANES.
            unsafe {
                let x = _mm512_cvtps_pd(_mm256_loadu_ps(from[8 * k..][..8].as_ptr()));
                *sum = _mm512_fmadd_pd(x, x, *sum);
            }
        }
    }
    #[inline(always)]
    fn add_squares_bf16(self, sums: &mut Self::Squares, from: &[bf16]) {
        let from = &from[..SUM_LANES];
        for (k, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the token proves AVX-512F (and with it AVX2); 8 k + 8 is at most SUM_LANES, and 8 bf16 are 16
            // bytes.
            unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from[8 * k..][..8].as_ptr().cast()));
                let x = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)));
                *sum = _mm512_fmadd_pd(x, x, *sum);
            }
        }
    }
    #[inline(always)]
    fn squares_to_array(self, sums: Self::Squares) -> [f64; SUM_LANES] {
        let mut out = [0.0; SUM_LANES];
        for (k, sum) in sums.into_iter().enumerate() {
            // SAFETY: the token proves AVX-512F; the slice has 8 elements.
            unsafe { _mm512_storeu_pd(out[8 * k..][..8].as_mut_ptr(), sum) }
        }
        out
    }
}
