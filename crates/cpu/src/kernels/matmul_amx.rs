//! Matrix products on AMX tiles.
//!
//! The smaller side of the result is packed into shared panels, in parallel, a block of [`BLOCK`] rows and a stretch of k
//! at a time. The larger side is cut into strips: a task packs its own strip, which then stays in its second-level cache
//! while the shared panels stream past, and collects a few panels' worth of f32 sums in scratch before it writes them out
//! in long rows. Panels in the first-level cache decide the speed in bf16, hence the short [`Cut::part`].
//!
//! Strips depend on the number of threads; bits do not: every element of the result is the same sequence of tile products
//! whatever the strip, cut along k by the shape alone.
//!
//! Scratch in all: shared panels of at most 4.5 MiB; 1.6 MiB a thread; 4 MiB of sums where a bf16 result is longer in k
//! than one stretch.

use super::amx::{PANEL, PLANE_WORDS, STEP, Tiles};
use super::amx_pack::{Packable, pack, panel_words};
use super::factor::{Factor, Side};
use super::matmul::{Output, finish};
use super::{par, scratch::Scratch, simd::simd};
use megatrain_base::{DType, Element};
use std::arch::x86_64::{_mm_sfence, _mm512_loadu_ps, _mm512_stream_ps};

/// Rows of a packed block of the smaller side, and of the groups in which long bf16 results are summed.
const BLOCK: usize = 1024;
/// Most rows of a strip of the larger side.
const STRIP: usize = 256;
/// Results from this size on are written past the caches.
const STREAM_BYTES: usize = 32 << 20;
/// f32 of a tile of sums, and bytes of one of its rows.
const TILE: usize = PANEL * PANEL;
const TILE_STRIDE: usize = PANEL * size_of::<f32>();

/// How k and the shared panels are cut; by dtype.
#[derive(Clone, Copy)]
struct Cut {
    /// Planes of a step.
    planes: usize,
    /// Longest stretch of k that is packed at once.
    stretch: usize,
    /// Longest part of it that one tile product runs over.
    part: usize,
    /// Shared panels whose sums are collected before they are written.
    together: usize,
}

const CUT_F32: Cut = Cut { planes: 3, stretch: 768, part: 768, together: 2 };
const CUT_BF16: Cut = Cut { planes: 1, stretch: 2048, part: 320, together: 4 };

/// `count` split into equal pieces of at most `most`, each a multiple of `grain`: the length of a piece.
fn even(count: usize, most: usize, grain: usize) -> usize {
    count.div_ceil(count.div_ceil(most)).next_multiple_of(grain)
}

/// Packed panels of one factor.
struct Panels {
    words: Scratch<u16>,
    rows: usize,
    panel_words: usize,
}

impl Panels {
    /// Packs `factor` in parallel, a few panels a task, reusing the memory of `self`.
    fn pack<T: Packable>(&mut self, factor: &Factor<T>, side: Side, planes: usize) {
        self.rows = factor.rows;
        self.panel_words = panel_words(factor.k, planes);
        let (panel_words, panels) = (self.panel_words, factor.rows.div_ceil(PANEL));
        if self.words.len() < panels * panel_words {
            self.words = Scratch::take(panels * panel_words);
        }
        let together = par::rows_per_chunk(PANEL * factor.k);
        par::chunks(&mut self.words[..panels * panel_words], together * panel_words, |task, words| {
            let rows = factor.part(task * together * PANEL, together * PANEL, 0, factor.k);
            // SAFETY: only reached where tiles are available, which includes the AVX-512 that packing needs; the factor
            // is borrowed by the op; panels of whole cache lines keep the scratch's alignment.
            unsafe { pack(&rows, side, planes, words) };
        });
    }

    fn address(&self, panel: usize, step: usize, planes: usize) -> *const u16 {
        self.words[panel * self.panel_words + panel_words(step * STEP, planes)..].as_ptr()
    }
}

/// Where a block of results goes.
struct Target<C> {
    c: par::SharedMut<C>,
    stride: usize,
    accumulate: bool,
    /// Write past the caches: f32 results that are overwritten and too large to stay there.
    stream: bool,
}

/// `out (+)= left right^T`.
pub(super) fn multiply<T: Packable, C: Element>(left: &Factor<T>, right: &Factor<T>, out: Output<C>) {
    let cut = if T::DTYPE == DType::F32 { CUT_F32 } else { CUT_BF16 };
    let (m, n, k) = (left.rows, right.rows, left.k);
    let shared_is_left = m <= n;
    let (shared, large) = if shared_is_left { (left, right) } else { (right, left) };
    let side = if shared_is_left { Side::Left } else { Side::Right };
    let stretch = even(k, cut.stretch, STEP);
    // A bf16 result cannot hold the sum of one stretch of k while the next is computed: then f32 sums of a group do.
    let apart = C::DTYPE != DType::F32 && k > stretch;
    let mut sums = Scratch::<f32>::take(if apart { BLOCK * BLOCK } else { 0 });
    let group = if apart { BLOCK } else { large.rows };
    let mut panels = Panels { words: Scratch::take(0), rows: 0, panel_words: 0 };
    let ldc = out.n;
    let large_result = C::DTYPE == DType::F32 && size_of_val(out.c) >= STREAM_BYTES;
    let c = par::SharedMut::new(out.c);
    let corner = |shared_row, large_row| if shared_is_left { (shared_row, large_row) } else { (large_row, shared_row) };

    for shared_row in (0..shared.rows).step_by(BLOCK) {
        for group_row in (0..large.rows).step_by(group) {
            let (row, col) = corner(shared_row, group_row);
            // SAFETY: the corner lies inside the result.
            let c_block = par::SharedMut::from_ptr(unsafe { c.at(row * ldc + col) });
            for k0 in (0..k).step_by(stretch) {
                panels.pack(&shared.part(shared_row, BLOCK, k0, stretch), side, cut.planes);
                let large = large.part(group_row, group, k0, stretch);
                if apart {
                    let target =
                        Target { c: par::SharedMut::new(&mut sums), stride: BLOCK, accumulate: k0 > 0, stream: false };
                    strips(&panels, side, &large, cut, &target);
                } else {
                    let accumulate = out.accumulate || k0 > 0;
                    let stream = large_result && !accumulate && k <= stretch;
                    let target = Target { c: c_block, stride: ldc, accumulate, stream };
                    strips(&panels, side, &large, cut, &target);
                }
            }
            if apart {
                let (rows, cols) = (BLOCK.min(m - row), BLOCK.min(n - col));
                let per_task = par::rows_per_chunk(cols);
                let sums = &sums;
                par::each(rows.div_ceil(per_task), |task| {
                    for r in task * per_task..((task + 1) * per_task).min(rows) {
                        // SAFETY: row r of this block of the result, written by this task alone.
                        let c = unsafe { std::slice::from_raw_parts_mut(c_block.at(r * ldc), cols) };
                        finish(&sums[r * BLOCK..][..cols], c, out.accumulate);
                    }
                });
            }
        }
    }
}

/// Multiplies the shared panels with every strip of the larger side.
fn strips<T: Packable, C: Element>(shared: &Panels, side: Side, large: &Factor<T>, cut: Cut, target: &Target<C>) {
    // As many strips for every thread, if they can be wide enough to pay for streaming the shared panels.
    let count = large.rows.div_ceil(STRIP).next_multiple_of(rayon::current_num_threads());
    let width = large.rows.div_ceil(count).next_multiple_of(PANEL).max(2 * PANEL);
    par::each(large.rows.div_ceil(width), |i| {
        strip(shared, side, &large.part(i * width, width, 0, large.k), i * width, cut, target)
    });
}

/// Multiplies the shared panels with one strip, whose first row is row `first` of the target on its side.
fn strip<T: Packable, C: Element>(
    shared: &Panels,
    side: Side,
    strip: &Factor<T>,
    first: usize,
    cut: Cut,
    target: &Target<C>,
) {
    let tiles = Tiles::new().expect("only called where tiles are available");
    let planes = cut.planes;
    let strip_panels = strip.rows.div_ceil(PANEL);
    let panel_words = panel_words(strip.k, planes);
    let mut own = Scratch::<u16>::take(strip_panels * panel_words);
    // SAFETY: there are tiles, hence the AVX-512 that packing needs; the factor is borrowed; scratch is aligned.
    unsafe { pack(strip, if side == Side::Left { Side::Right } else { Side::Left }, planes, &mut own) };
    // Tile by tile, each contiguous: rows of tiles of the left factor.
    let mut sums = Scratch::<f32>::take(cut.together * strip_panels * TILE);
    let shared_panels = shared.rows.div_ceil(PANEL);
    let steps = strip.k.div_ceil(STEP);
    let part = even(strip.k, cut.part, STEP) / STEP;

    for panel in (0..shared_panels).step_by(cut.together) {
        let together = cut.together.min(shared_panels - panel);
        let tiles_a_row = if side == Side::Left { strip_panels } else { together };
        for i in 0..together {
            let next = (panel + i + 1).min(shared_panels - 1);
            for step in (0..steps).step_by(part) {
                let steps = part.min(steps - step);
                let theirs = shared.address(panel + i, step, planes);
                let ahead = shared.address(next, step, planes);
                for j in 0..strip_panels {
                    let ours = own[j * panel_words + step * planes * PLANE_WORDS..].as_ptr();
                    // Each product fetches an eighth of the next shared panel.
                    let ahead = ahead.wrapping_add(j * steps * planes * PLANE_WORDS / 8);
                    let (a, b, tile) = if side == Side::Left {
                        (theirs, ours, i * tiles_a_row + j)
                    } else {
                        (ours, theirs, j * tiles_a_row + i)
                    };
                    let c = sums[tile * TILE..][..TILE].as_mut_ptr();
                    // SAFETY: the panels hold these steps; `c` is a whole tile, holding sums of earlier parts, if any.
                    unsafe {
                        if planes == 3 {
                            tiles.product3(steps, a, b, c, TILE_STRIDE, step > 0, ahead);
                        } else {
                            tiles.product1(steps, a, b, c, TILE_STRIDE, step > 0, ahead);
                        }
                    }
                }
            }
        }
        let shared_rows = (together * PANEL).min(shared.rows - panel * PANEL);
        let (row, col, rows, cols) = if side == Side::Left {
            (panel * PANEL, first, shared_rows, strip.rows)
        } else {
            (first, panel * PANEL, strip.rows, shared_rows)
        };
        for r in 0..rows {
            // SAFETY: this rectangle of the target lies inside it and belongs to this task alone.
            let c = unsafe { std::slice::from_raw_parts_mut(target.c.at((row + r) * target.stride + col), cols) };
            let first = r / PANEL * tiles_a_row * TILE + r % PANEL * PANEL;
            if target.stream && c.as_ptr().addr().is_multiple_of(64) && cols.is_multiple_of(16) {
                // SAFETY: there are tiles, hence AVX-512; `stream` is only set for f32, and `c` is aligned lines of it.
                unsafe { stream_tiles(&sums[first..], c.as_mut_ptr().cast(), cols) };
            } else {
                finish_tiles(&sums[first..], c, target.accumulate);
            }
        }
    }
    if target.stream {
        // Streamed stores are weakly ordered: they have to be done before another thread learns that the task is.
        // SAFETY: every x86-64 has this instruction.
        unsafe { _mm_sfence() };
    }
}

/// Writes one row of a row of tiles past the caches.
///
/// # Safety
/// AVX-512F is there; `c` is `cols` f32, 64-byte aligned, `cols` a multiple of 16, written by this task alone.
#[target_feature(enable = "avx512f")]
unsafe fn stream_tiles(sums: &[f32], c: *mut f32, cols: usize) {
    for (col, sums) in (0..cols).step_by(16).zip(sums.chunks(TILE).flat_map(|tile| tile[..PANEL].chunks(16))) {
        // SAFETY: `sums` is 16 f32; the store is aligned and inside `c` by contract.
        unsafe { _mm512_stream_ps(c.add(col), _mm512_loadu_ps(sums.as_ptr())) };
    }
}

simd! {
    /// Writes one row of a row of tiles, whose parts are a tile apart in `sums`.
    fn finish_tiles[C: Element](sums: &[f32], c: &mut [C], accumulate: bool) {
        for (sums, c) in sums.chunks(TILE).zip(c.chunks_mut(PANEL)) {
            for (c, &s) in c.iter_mut().zip(sums) {
                *c = C::from_f32(if accumulate { c.to_f32() + s } else { s });
            }
        }
    }
}
