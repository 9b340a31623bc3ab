//! Matrix products on AMX tiles: blocks of both factors are packed in parallel into shared panels, then tasks multiply
//! fixed tiles of the result.
//!
//! The larger side of the result is walked in blocks of [`BLOCK`] rows, the smaller one in blocks too, k in stretches
//! whose packed size is bounded, and the packed block of the smaller side is used by all blocks of the larger one.
//! Scratch: at most 12 MiB + 12 MiB of panels (f32, k of 2048), and 4 MiB of f32 sums where a bf16 result is longer in k
//! than one stretch. Which sums are formed in which order depends on the shape only.

use super::amx::{PANEL, STEP, Tiles};
use super::amx_pack::{Packable, pack_panel, panel_words};
use super::factor::{Factor, Side};
use super::matmul::{Output, finish};
use super::{par, scratch::Scratch};
use megatrain_base::{DType, Element};

/// Rows of a packed block of either side.
const BLOCK: usize = 1024;
/// Panels a task multiplies: of the left factor...
const TASK_LEFT: usize = 4;
/// ... and of the right one, whose panels stay in the second-level cache meanwhile.
const TASK_RIGHT: usize = 8;

/// Longest stretch of k packed at once, and longest part of it multiplied before the next tile is taken up (so that a
/// task's right panels fit the second-level cache).
const fn stretch(planes: usize) -> (usize, usize) {
    if planes == 3 { (2048, 768) } else { (4096, 2048) }
}

/// A packed block of one factor.
struct Panels {
    words: Scratch<u16>,
    rows: usize,
    panel_words: usize,
}

impl Panels {
    fn empty() -> Self {
        Panels { words: Scratch::take(0), rows: 0, panel_words: 0 }
    }

    /// Packs `factor` in parallel, a few panels a task.
    fn pack<T: Packable>(&mut self, factor: &Factor<T>, side: Side, planes: usize) {
        let panels = factor.rows.div_ceil(PANEL);
        self.rows = factor.rows;
        self.panel_words = panel_words(factor.k, planes);
        if self.words.len() < panels * self.panel_words {
            self.words = Scratch::take(panels * self.panel_words);
        }
        let panel_words = self.panel_words;
        let together = par::rows_per_chunk(PANEL * factor.k);
        par::chunks(&mut self.words[..panels * panel_words], together * panel_words, |task, words| {
            for (i, words) in words.chunks_exact_mut(panel_words).enumerate() {
                let rows = factor.part((task * together + i) * PANEL, PANEL, 0, factor.k);
                // SAFETY: only reached where tiles are available, which includes the AVX-512 that packing needs; the
                // factor is borrowed by the op; panels of whole cache lines keep the scratch's alignment.
                unsafe { pack_panel(&rows, side, planes, words.as_mut_ptr()) };
            }
        });
    }

    fn panel(&self, i: usize, step: usize, planes: usize) -> *const u16 {
        self.words[i * self.panel_words + panel_words(step * STEP, planes)..].as_ptr()
    }
}

/// A rectangle of f32 or bf16 results that tasks write.
struct Target<C> {
    c: par::SharedMut<C>,
    stride: usize,
    rows: usize,
    cols: usize,
    accumulate: bool,
}

/// `out (+)= left right^T`.
pub(super) fn multiply<T: Packable, C: Element>(left: &Factor<T>, right: &Factor<T>, out: Output<C>) {
    let planes = if T::DTYPE == DType::F32 { 3 } else { 1 };
    let (m, n, k) = (left.rows, right.rows, left.k);
    let (longest, _) = stretch(planes);
    let left_is_smaller = m <= n;
    let (small, large) = if left_is_smaller { (left, right) } else { (right, left) };
    let (small_side, large_side) =
        if left_is_smaller { (Side::Left, Side::Right) } else { (Side::Right, Side::Left) };
    // A bf16 result cannot hold the sum of one stretch of k while the next is computed: then one block of f32 sums does.
    let sums_apart = C::DTYPE != DType::F32 && k > stretch(planes).1;
    let mut sums = Scratch::<f32>::take(if sums_apart { BLOCK * BLOCK } else { 0 });
    let group = if sums_apart { BLOCK } else { large.rows };
    let stretches = k.div_ceil(longest);
    let stretch = k.div_ceil(stretches).next_multiple_of(STEP);
    let (mut small_panels, mut large_panels) = (Panels::empty(), Panels::empty());
    let (c, ldc) = (out.c, out.n);
    let shared = par::SharedMut::new(c);

    for small_row in (0..small.rows).step_by(BLOCK) {
        for group_row in (0..large.rows).step_by(group) {
            for k0 in (0..k).step_by(stretch) {
                small_panels.pack(&small.part(small_row, BLOCK, k0, stretch), small_side, planes);
                for large_row in (group_row..(group_row + group).min(large.rows)).step_by(BLOCK) {
                    large_panels.pack(&large.part(large_row, BLOCK, k0, stretch), large_side, planes);
                    let (row, col) = if left_is_smaller { (small_row, large_row) } else { (large_row, small_row) };
                    let (a, b) =
                        if left_is_smaller { (&small_panels, &large_panels) } else { (&large_panels, &small_panels) };
                    let steps = stretch.min(k - k0).div_ceil(STEP);
                    let (rows, cols) = (a.rows, b.rows);
                    if sums_apart {
                        let c = par::SharedMut::new(&mut sums);
                        let target = Target { c, stride: BLOCK, rows, cols, accumulate: k0 > 0 };
                        block(a, b, steps, planes, &target);
                    } else {
                        // SAFETY: the block's corner lies inside the result.
                        let c = par::SharedMut::from_ptr(unsafe { shared.at(row * ldc + col) });
                        let target = Target { c, stride: ldc, rows, cols, accumulate: out.accumulate || k0 > 0 };
                        block(a, b, steps, planes, &target);
                    }
                }
            }
            if sums_apart {
                let (row, col) = if left_is_smaller { (small_row, group_row) } else { (group_row, small_row) };
                let (rows, cols) = (BLOCK.min(m - row), BLOCK.min(n - col));
                let per_task = par::rows_per_chunk(cols);
                let sums = &sums;
                par::each(rows.div_ceil(per_task), |task| {
                    for r in task * per_task..((task + 1) * per_task).min(rows) {
                        // SAFETY: row r of this block of the result, written by this task alone.
                        let c = unsafe { std::slice::from_raw_parts_mut(shared.at((row + r) * ldc + col), cols) };
                        finish(&sums[r * BLOCK..r * BLOCK + cols], c, out.accumulate);
                    }
                });
            }
        }
    }
}

/// Multiplies two packed blocks, one task per tile of [`TASK_LEFT`] x [`TASK_RIGHT`] panels.
fn block<C: Element>(a: &Panels, b: &Panels, steps: usize, planes: usize, target: &Target<C>) {
    let (panels_a, panels_b) = (a.rows.div_ceil(PANEL), b.rows.div_ceil(PANEL));
    let (tasks_a, tasks_b) = (panels_a.div_ceil(TASK_LEFT), panels_b.div_ceil(TASK_RIGHT));
    let (_, longest) = stretch(planes);
    let parts = (steps * STEP).div_ceil(longest);
    let part = steps.div_ceil(parts);
    par::each(tasks_a * tasks_b, |task| {
        let Some(tiles) = Tiles::new() else { return };
        let (first_a, first_b) = (task % tasks_a * TASK_LEFT, task / tasks_a * TASK_RIGHT);
        for step in (0..steps).step_by(part) {
            let accumulate = target.accumulate || step > 0;
            for i in first_a..(first_a + TASK_LEFT).min(panels_a) {
                for j in first_b..(first_b + TASK_RIGHT).min(panels_b) {
                    let (a, b) = (a.panel(i, step, planes), b.panel(j, step, planes));
                    // SAFETY: tiles (i, j) of different tasks are disjoint; the panels hold `steps` steps.
                    unsafe { tile(&tiles, part.min(steps - step), planes, a, b, target, (i, j), accumulate) };
                }
            }
        }
    });
}

/// One 32 x 32 tile: straight into an f32 result where it fits, else by way of a tile of its own.
///
/// # Safety
/// The panels hold `steps` steps; no other task touches tile `at` of the target.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the innermost call of the loop nest")]
unsafe fn tile<C: Element>(
    tiles: &Tiles,
    steps: usize,
    planes: usize,
    a: *const u16,
    b: *const u16,
    target: &Target<C>,
    at: (usize, usize),
    accumulate: bool,
) {
    let (row, col) = (at.0 * PANEL, at.1 * PANEL);
    let (rows, cols) = (PANEL.min(target.rows - row), PANEL.min(target.cols - col));
    let product = |c: *mut f32, stride: usize, accumulate: bool| {
        // SAFETY: 32 rows of 32 f32 at `c`, and the panels, by the callers below.
        unsafe {
            if planes == 3 {
                tiles.product3(steps, a, b, c, stride * size_of::<f32>(), accumulate);
            } else {
                tiles.product1(steps, a, b, c, stride * size_of::<f32>(), accumulate);
            }
        }
    };
    // SAFETY: the tile's corner lies inside the target.
    let c = unsafe { target.c.at(row * target.stride + col) };
    if C::DTYPE == DType::F32 && rows == PANEL && cols == PANEL {
        product(c.cast(), target.stride, accumulate);
        return;
    }
    #[repr(C, align(64))]
    struct Tile([f32; PANEL * PANEL]);
    let mut own = std::mem::MaybeUninit::<Tile>::uninit();
    product(own.as_mut_ptr().cast(), PANEL, false);
    // SAFETY: the product wrote all of it.
    let own = unsafe { own.assume_init_ref() };
    for (r, sums) in own.0.chunks_exact(PANEL).take(rows).enumerate() {
        // SAFETY: row r of this task's tile, `cols` of it inside the target.
        let c = unsafe { std::slice::from_raw_parts_mut(c.add(r * target.stride), cols) };
        finish(&sums[..cols], c, accumulate);
    }
}
