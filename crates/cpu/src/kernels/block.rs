//! Small products inside one task, for attention: operands packed once ([`Packed`]), multiplied many times ([`Unit`]).
//! On AMX tiles where there are any, else by the `gemm` crate on f32 copies.

use super::Packable;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx::{PANEL, STEP, Tiles};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx_pack::{pack, panel_words};
use super::factor::{Factor, Side};
use super::matmul::{gemm_f32, widen};
use super::scratch::Scratch;
use megatrain_base::DType;
use std::ops::Range;

/// Rows and columns of a result's scratch are multiples of this, because tiles are written whole.
pub(super) const GRAIN: usize = 32;

/// What multiplies, for as long as one task runs.
pub(super) struct Unit {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    tiles: Option<Tiles>,
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    planes: usize,
}

/// An operand in the form that the unit wants: one plane of bf16 or, when the op computes in f32, what f32 needs.
pub(super) struct Packed {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    words: Scratch<u16>,
    wide: Scratch<f32>,
    rows: usize,
    k: usize,
    /// Whether k is contiguous in `wide`.
    k_last: bool,
}

impl Packed {
    /// Holds nothing yet.
    pub(super) fn empty() -> Self {
        Packed {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            words: Scratch::take(0),
            wide: Scratch::take(0),
            rows: 0,
            k: 0,
            k_last: true,
        }
    }
}

impl Unit {
    /// The unit for an op whose tensors have this dtype.
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_os = "linux")),
        allow(unused_variables, reason = "f32 copies serve either dtype")
    )]
    pub(super) fn new(dtype: DType) -> Self {
        Unit {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            tiles: Tiles::new(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            planes: if dtype == DType::F32 { 3 } else { 1 },
        }
    }

    /// Packs a factor into `into`, replacing what it held.
    ///
    /// # Safety
    /// The factor is readable.
    pub(super) unsafe fn pack<T: Packable>(&self, factor: &Factor<T>, side: Side, into: &mut Packed) {
        into.rows = factor.rows;
        into.k = factor.k;
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if self.tiles.is_some() {
            let panel = panel_words(factor.k, self.planes);
            let panels = factor.rows.div_ceil(PANEL);
            if into.words.len() < panels * panel {
                into.words = Scratch::take(panels * panel);
            }
            // SAFETY: there are tiles, hence the AVX-512 that packing needs; the factor is readable by contract; scratch
            // is aligned.
            unsafe { pack(factor, side, self.planes, &mut into.words) };
            return;
        }
        let _ = side; // Copies have no side.
        if into.wide.len() < factor.rows * factor.k {
            into.wide = Scratch::take(factor.rows * factor.k);
        }
        into.k_last = factor.k_stride == 1;
        widen(factor, &mut into.wide);
    }

    /// `c (+)= a[rows] b[..cols]^T` over `a`'s k, which may be shorter than `b`'s. `c` has lines `ldc` apart and room for
    /// rows and columns rounded up to [`GRAIN`]; what lies between the result and that may be overwritten.
    #[allow(clippy::too_many_arguments, reason = "two operands, a result and which part of each")]
    pub(super) fn multiply(
        &self,
        a: &Packed,
        rows: Range<usize>,
        b: &Packed,
        cols: usize,
        c: &mut [f32],
        ldc: usize,
        accumulate: bool,
    ) {
        assert!(rows.start.is_multiple_of(GRAIN) && rows.end <= a.rows && cols <= b.rows && a.k <= b.k && a.k > 0);
        let whole = (rows.len().next_multiple_of(GRAIN), cols.next_multiple_of(GRAIN));
        assert!(rows.is_empty() || cols == 0 || (whole.0 - 1) * ldc + whole.1 <= c.len());
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let Some(tiles) = &self.tiles {
            let steps = a.k.div_ceil(STEP);
            let (panel_a, panel_b) = (panel_words(a.k, self.planes), panel_words(b.k, self.planes));
            for i in 0..whole.0 / PANEL {
                for j in 0..whole.1 / PANEL {
                    let a = a.words[(rows.start / PANEL + i) * panel_a..].as_ptr();
                    let b = b.words[j * panel_b..].as_ptr();
                    let c = c[i * PANEL * ldc + j * PANEL..].as_mut_ptr();
                    // SAFETY: both panels hold at least `steps` steps (a.k <= b.k); the tile lies inside `c` (asserted).
                    unsafe {
                        if self.planes == 3 {
                            tiles.product3(steps, a, b, c, ldc * size_of::<f32>(), accumulate, a);
                        } else {
                            tiles.product1(steps, a, b, c, ldc * size_of::<f32>(), accumulate, a);
                        }
                    }
                }
            }
            return;
        }
        let wide = |p: &Packed| Factor::matrix(&p.wide[..p.rows * p.k], p.rows, p.k, p.k_last);
        let (left, right) = (wide(a).part(rows.start, rows.len(), 0, a.k), wide(b).part(0, cols, 0, a.k));
        // SAFETY: both copies are alive; `c` has room (asserted) and is ours.
        unsafe { gemm_f32(&left, &right, c.as_mut_ptr(), ldc, accumulate) };
    }
}
