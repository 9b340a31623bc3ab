//! Packing of matrices into the panels of [`super::amx`]: any orientation, f32 or bf16, edges filled with zeros.

use super::amx::{PANEL, PLANE_WORDS, STEP, TILE_WORDS};
use super::factor::{Factor, Side};
use megatrain_base::{Element, bf16};
use std::arch::x86_64::*;

/// How an element type becomes tiles.
pub(super) trait Packable: Element {
    /// Writes one tile per plane, `TILE_WORDS * 2` words apart, from at most 16 rows x 32 k of `part`, in
    /// `[row][k]` order when k is contiguous and `[k / 2][row][k % 2]` when rows are. Asks for what lies `ahead` elements
    /// further on.
    ///
    /// # Safety
    /// AVX-512 (F, BW, VL, BF16) is there; `part` is readable; `out` has room and 64-byte alignment.
    unsafe fn tiles(part: &Factor<Self>, planes: usize, ahead: usize, out: *mut u16);
}

/// Words of a panel of `k` elements a row.
pub(super) fn panel_words(k: usize, planes: usize) -> usize {
    k.div_ceil(STEP) * planes * PLANE_WORDS
}

/// Bytes of a row that are fetched ahead of the place where packing is: main memory is some ten steps away.
const AHEAD_BYTES: usize = 512;

/// Packs rows into panels of [`PANEL`], as many as `out` holds, in the order in which the factor lies in memory.
///
/// # Safety
/// AVX-512 (F, BW, VL, BF16) is there; the factor is readable; `out` is 64-byte aligned.
pub(super) unsafe fn pack<T: Packable>(factor: &Factor<T>, side: Side, planes: usize, out: &mut [u16]) {
    let words = panel_words(factor.k, planes);
    let panels = factor.rows.div_ceil(PANEL);
    assert!(out.len() >= panels * words);
    let ahead = AHEAD_BYTES / size_of::<T>();
    let mut step = |panel: usize, k: usize| {
        let rows = factor.part(panel * PANEL, PANEL, k, STEP);
        // What will be needed soon: the same rows further on, the next panel's rows, or the next step's k.
        let ahead = if factor.k_stride != 1 {
            STEP * factor.k_stride
        } else if k + ahead < factor.k {
            ahead
        } else {
            PANEL * factor.row_stride + ahead.saturating_sub(factor.k)
        };
        let at = panel * words + k / STEP * planes * PLANE_WORDS;
        // SAFETY: by contract; the step's tiles lie inside `out` (asserted).
        unsafe { pack_step(&rows, side, planes, ahead, out[at..].as_mut_ptr()) };
    };
    if factor.k_stride == 1 {
        (0..panels).for_each(|panel| (0..factor.k).step_by(STEP).for_each(|k| step(panel, k)));
    } else {
        (0..factor.k).step_by(STEP).for_each(|k| (0..panels).for_each(|panel| step(panel, k)));
    }
}

/// Packs one step of one panel: at most 32 rows x 32 k.
///
/// # Safety
/// As [`pack`]; `out` has room for one step.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn pack_step<T: Packable>(step: &Factor<T>, side: Side, planes: usize, ahead: usize, out: *mut u16) {
    let transpose = (step.k_stride == 1) != (side == Side::Left);
    for half in 0..2 {
        let part = step.part((half * PANEL / 2).min(step.rows), PANEL / 2, 0, STEP);
        // SAFETY: `part` lies inside the factor; the tiles of this half lie inside the step.
        unsafe {
            let tile = out.add(half * TILE_WORDS);
            T::tiles(&part, planes, ahead, tile);
            if transpose {
                for plane in 0..planes {
                    transpose_tile(tile.add(plane * PLANE_WORDS).cast());
                }
            }
        }
    }
}

impl Packable for bf16 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn tiles(part: &Factor<bf16>, planes: usize, ahead: usize, out: *mut u16) {
        debug_assert_eq!(planes, 1);
        let out: *mut __m512i = out.cast();
        // SAFETY: masks keep every load inside `part`; `out` is a whole tile by contract.
        unsafe {
            if part.k_stride == 1 {
                let mask = low_bits(part.k) as __mmask32;
                for r in 0..16 {
                    let row = if r < part.rows {
                        let row = part.ptr.add(r * part.row_stride);
                        fetch(row.wrapping_add(ahead));
                        _mm512_maskz_loadu_epi16(mask, row.cast())
                    } else {
                        _mm512_setzero_si512()
                    };
                    _mm512_store_si512(out.add(r), row);
                }
            } else {
                let mask = low_bits(part.rows) as __mmask16;
                let load = |k: usize| {
                    if k < part.k {
                        let rows = part.ptr.add(k * part.k_stride);
                        fetch(rows.wrapping_add(ahead));
                        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, rows.cast()))
                    } else {
                        _mm512_setzero_si512()
                    }
                };
                for pair in 0..16 {
                    let (even, odd) = (load(2 * pair), load(2 * pair + 1));
                    _mm512_store_si512(out.add(pair), _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd)));
                }
            }
        }
    }
}

impl Packable for f32 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tiles(part: &Factor<f32>, planes: usize, ahead: usize, out: *mut u16) {
        debug_assert!(planes == 1 || planes == 3);
        let out: *mut __m512i = out.cast();
        let plane_lines = PLANE_WORDS / 32;
        // SAFETY: masks keep every load inside `part`; `out` is a whole tile per plane by contract.
        unsafe {
            // Two registers of f32 become one of bf16 per plane: (low half, high half) of a row, or (even, odd) k.
            let (k_contiguous, row_mask) = (part.k_stride == 1, low_bits(part.rows) as __mmask16);
            let (low_mask, high_mask) = (low_bits(part.k) as __mmask16, (low_bits(part.k) >> 16) as __mmask16);
            for line in 0..16 {
                let (x, y) = if k_contiguous {
                    if line < part.rows {
                        let row = part.ptr.add(line * part.row_stride);
                        fetch(row.wrapping_add(ahead));
                        fetch(row.wrapping_add(ahead + 16));
                        (_mm512_maskz_loadu_ps(low_mask, row), _mm512_maskz_loadu_ps(high_mask, row.wrapping_add(16)))
                    } else {
                        (_mm512_setzero_ps(), _mm512_setzero_ps())
                    }
                } else {
                    let load = |k: usize| {
                        let mask = if k < part.k { row_mask } else { 0 };
                        let rows = part.ptr.wrapping_add(k * part.k_stride);
                        fetch(rows.wrapping_add(ahead));
                        _mm512_maskz_loadu_ps(mask, rows)
                    };
                    (load(2 * line), load(2 * line + 1))
                };
                let join = |x: __m512i, y: __m512i| if k_contiguous { concat_tops(x, y) } else { zip_tops(x, y) };
                if planes == 1 {
                    let rounded = if k_contiguous {
                        std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(y, x))
                    } else {
                        let (even, odd) = (_mm512_cvtneps_pbh(x), _mm512_cvtneps_pbh(y));
                        let wide = |v: __m256bh| _mm512_cvtepu16_epi32(std::mem::transmute::<__m256bh, __m256i>(v));
                        _mm512_or_si512(wide(even), _mm512_slli_epi32::<16>(wide(odd)))
                    };
                    _mm512_store_si512(out.add(line), rounded);
                } else {
                    let (x, y) = (split(x), split(y));
                    for plane in 0..3 {
                        _mm512_store_si512(out.add(plane * plane_lines + line), join(x[plane], y[plane]));
                    }
                }
            }
        }
    }
}

/// Brings a cache line closer; any address is allowed.
#[inline]
#[target_feature(enable = "avx512f")]
fn fetch<T>(address: *const T) {
    _mm_prefetch::<_MM_HINT_T0>(address.cast());
}

/// `count` ones.
fn low_bits(count: usize) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}

/// Three bf16 numbers in the top halves of the lanes, whose sum is `x` exactly; see [`super::amx`].
#[inline]
#[target_feature(enable = "avx512f")]
fn split(x: __m512) -> [__m512i; 3] {
    let top = |v: __m512| {
        let bits = _mm512_add_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(0x8000));
        _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000u32 as i32))
    };
    let first = top(x);
    let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(first));
    let second = top(rest);
    let rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(second));
    [first, second, _mm512_castps_si512(rest)]
}

/// The top 16-bit words of `x`'s lanes, then those of `y`'s.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn concat_tops(x: __m512i, y: __m512i) -> __m512i {
    const INDEX: [u16; 32] = {
        let mut index = [0u16; 32];
        let mut i = 0;
        while i < 16 {
            index[i] = 2 * i as u16 + 1;
            index[16 + i] = 32 + 2 * i as u16 + 1;
            i += 1;
        }
        index
    };
    // SAFETY: the index array is 64 bytes.
    let index = unsafe { _mm512_loadu_si512(INDEX.as_ptr().cast()) };
    _mm512_permutex2var_epi16(x, index, y)
}

/// Lane by lane: top word of `x` below, top word of `y` above.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn zip_tops(x: __m512i, y: __m512i) -> __m512i {
    _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(x), y)
}

/// Transposes 16 x 16 32-bit words in place, in four rounds of 2 x 2 exchanges at growing distance.
///
/// # Safety
/// AVX-512F is there; `tile` is 16 aligned readable and writable lines.
#[target_feature(enable = "avx512f")]
unsafe fn transpose_tile(tile: *mut __m512i) {
    // SAFETY: 16 lines by contract.
    unsafe {
        let mut r = [_mm512_setzero_si512(); 16];
        for (i, row) in r.iter_mut().enumerate() {
            *row = _mm512_load_si512(tile.add(i));
        }
        let mut t = r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        // Now each 128-bit lane of t[2i], t[2i+1] holds columns (0,1), (2,3) of a row pair; join two pairs into 4 x 4 blocks.
        for i in 0..4 {
            let (a, b, c, d) = (t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]);
            r[4 * i] = _mm512_unpacklo_epi64(a, c);
            r[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
            r[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
            r[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
        }
        // r[4i + j] holds, in lane l, column 4l + j of rows 4i..4i+4: exchange lanes between the four row groups.
        for j in 0..4 {
            let (a, b, c, d) = (r[j], r[4 + j], r[8 + j], r[12 + j]);
            let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
            _mm512_store_si512(tile.add(j), _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even));
            _mm512_store_si512(tile.add(4 + j), _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd));
            _mm512_store_si512(tile.add(8 + j), _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even));
            _mm512_store_si512(tile.add(12 + j), _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd));
        }
    }
}
