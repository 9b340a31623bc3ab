//! Causal grouped-query attention, forward: blocks of queries against blocks of keys with a running maximum and sum
//! (online softmax: Milakov and Gimelshein 2018, arXiv 1805.02867; by blocks: Dao et al. 2022, arXiv 2205.14135). Scores
//! are only ever held for one block.
//!
//! One task takes a block of queries of one document for all query heads that share a key head, so that keys and values
//! are packed once for the group. Scratch a task at head_dim 64 and three heads a group: about 0.8 MiB in f32.

use super::block::{GRAIN, Packed, Unit};
use super::factor::{Factor, Side};
use super::{Packable, by_float, math, par, scratch::Scratch, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::Attention;

/// Queries of a block. [`KEYS`] is a multiple of it.
pub(super) const QUERIES: usize = 128;
/// Keys of a block.
const KEYS: usize = 256;

/// Where heads lie in `qkv`.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Query heads a key head.
    pub(super) group: usize,
    /// Query heads.
    pub(super) heads: usize,
    /// Key heads.
    pub(super) kv_heads: usize,
    /// Elements a head.
    pub(super) dim: usize,
}

impl Heads {
    /// From an op's scalars.
    pub(super) fn new(heads: u32, kv_heads: u32, head_dim: u32) -> Self {
        let (heads, kv_heads) = (heads as usize, kv_heads as usize);
        Heads { group: heads / kv_heads.max(1), heads, kv_heads, dim: head_dim as usize }
    }
    /// Elements of a row of `qkv`.
    pub(super) fn width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }
    /// First element of query head `h` in a row.
    pub(super) fn q(&self, h: usize) -> usize {
        h * self.dim
    }
    /// First element of key head `g` in a row.
    pub(super) fn k(&self, g: usize) -> usize {
        (self.heads + g) * self.dim
    }
    /// First element of value head `g` in a row.
    pub(super) fn v(&self, g: usize) -> usize {
        (self.heads + self.kv_heads + g) * self.dim
    }
    /// Head dimension rounded up to what tiles write.
    pub(super) fn padded_dim(&self) -> usize {
        self.dim.next_multiple_of(GRAIN)
    }
}

/// A block of rows (queries or keys) of one document, for one key head.
#[derive(Clone, Copy)]
pub(super) struct Item {
    /// First token of the document.
    pub(super) document: usize,
    /// Its tokens.
    pub(super) len: usize,
    /// Key head.
    pub(super) kv_head: usize,
    /// First row of the block, counted from the document's start.
    pub(super) start: usize,
}

/// Every block of `block` rows of every document and key head. Long blocks of work come first: the last rows of a
/// document see most keys.
pub(super) fn items(cu_seqlens: &[i32], kv_heads: usize, block: usize) -> Vec<Item> {
    let mut items = Vec::new();
    for borders in cu_seqlens.windows(2) {
        let (document, end) = (borders[0] as usize, borders[1] as usize);
        for start in (document..end).step_by(block).rev() {
            let start = start - document;
            items.extend((0..kv_heads).map(|kv_head| Item { document, len: end - document, kv_head, start }));
        }
    }
    items
}

/// `rows` rows of one head that starts at `data[at]`, `width` elements apart, as a factor whose k is the head dimension
/// (`k_last`) or the row.
pub(super) fn head<T>(data: &[T], at: usize, rows: usize, dim: usize, width: usize, k_last: bool) -> Factor<T> {
    let (factor_rows, k) = if k_last { (rows, dim) } else { (dim, rows) };
    Factor::strided(&data[at..], factor_rows, k, width, k_last)
}

/// Runs the op.
pub(super) fn run(op: &Attention, operands: &Operands) {
    by_float!(op.qkv, T => typed::<T>(op, operands));
}

fn typed<T: Packable>(op: &Attention, operands: &Operands) {
    let heads = Heads::new(op.heads, op.kv_heads, op.head_dim);
    let (qkv, cu_seqlens) = (operands.read::<T>(&op.qkv), operands.read::<i32>(&op.cu_seqlens));
    let tokens = op.qkv.shape.rows();
    let out = par::SharedMut::new(operands.write::<T>(&op.out));
    let lse = par::SharedMut::new(operands.write::<f32>(&op.lse));
    let items = items(cu_seqlens, heads.kv_heads, QUERIES);
    par::each(items.len(), |i| {
        let item = items[i];
        let rows = QUERIES.min(item.len - item.start);
        let first = item.document + item.start;
        query_block(qkv, &heads, op.scale, &item, rows, |h, row, o, log_sum| {
            // SAFETY: token `first + row` and head `h` belong to this task alone, and lie inside the tensors.
            let (out, lse) = unsafe {
                let at = (first + row) * heads.heads * heads.dim + heads.q(h);
                (std::slice::from_raw_parts_mut(out.at(at), heads.dim), &mut *lse.at(h * tokens + first + row))
            };
            scale_row(&o[..heads.dim], 1.0 / log_sum.1, out);
            *lse = log_sum.0 + log_sum.1.ln();
        });
    });
}

/// Computes one block of queries for all heads of the group, then calls `store(head, row, unnormalised output,
/// (maximum, sum))` for each of its rows.
fn query_block<T: Packable>(
    qkv: &[T],
    heads: &Heads,
    scale: f32,
    item: &Item,
    rows: usize,
    mut store: impl FnMut(usize, usize, &[f32], (f32, f32)),
) {
    let unit = Unit::new(T::DTYPE);
    let (width, dim) = (heads.width(), heads.padded_dim());
    let lines = rows.next_multiple_of(GRAIN);
    let mut scores = Scratch::<f32>::take(lines * KEYS);
    let mut sums = Scratch::<f32>::take(heads.group * lines * dim);
    // Running maximum and sum of every row.
    let mut running = vec![(f32::NEG_INFINITY, 0.0f32); heads.group * lines];
    let mut queries: Vec<Packed> = (0..heads.group).map(|_| Packed::empty()).collect();
    let (mut keys, mut values, mut weights) = (Packed::empty(), Packed::empty(), Packed::empty());
    let group = item.kv_head * heads.group..(item.kv_head + 1) * heads.group;
    for (h, queries) in group.clone().zip(&mut queries) {
        let at = (item.document + item.start) * width + heads.q(h);
        // SAFETY: `qkv` is borrowed.
        unsafe { unit.pack(&head(qkv, at, rows, heads.dim, width, true), Side::Left, queries) };
    }
    let end = item.start + rows;
    for key in (0..end).step_by(KEYS) {
        let count = KEYS.min(end - key);
        let at = (item.document + key) * width;
        // SAFETY: `qkv` is borrowed.
        unsafe {
            unit.pack(&head(qkv, at + heads.k(item.kv_head), count, heads.dim, width, true), Side::Right, &mut keys);
            unit.pack(&head(qkv, at + heads.v(item.kv_head), count, heads.dim, width, false), Side::Right, &mut values);
        }
        for (i, queries) in queries.iter().enumerate() {
            let sums = &mut sums[i * lines * dim..][..lines * dim];
            unit.multiply(queries, 0..rows, &keys, count, &mut scores, KEYS, false);
            for row in 0..rows {
                // Blocks start at multiples of QUERIES, so every row sees at least one key of every block it meets.
                let visible = count.min(item.start + row + 1 - key);
                let line = &mut scores[row * KEYS..][..count];
                let shrink = softmax_row(line, visible, scale, &mut running[i * lines + row]);
                if key > 0 {
                    shrink_row(&mut sums[row * dim..][..heads.dim], shrink);
                }
            }
            // SAFETY: `scores` is ours and outlives the call.
            unsafe { unit.pack(&Factor::strided(&scores, rows, count, KEYS, true), Side::Left, &mut weights) };
            unit.multiply(&weights, 0..rows, &values, heads.dim, sums, dim, key > 0);
        }
    }
    for (i, h) in group.enumerate() {
        for row in 0..rows {
            store(h, row, &sums[(i * lines + row) * dim..][..dim], running[i * lines + row]);
        }
    }
}

simd! {
    /// Turns scores into weights relative to the running maximum, which it raises, and adds them to the running sum.
    /// Returns what earlier weights have to be multiplied by.
    fn softmax_row(scores: &mut [f32], visible: usize, scale: f32, running: &mut (f32, f32)) -> f32 {
        let (seen, hidden) = scores.split_at_mut(visible);
        let max = math::max(running.0, math::reduce(seen, f32::NEG_INFINITY, math::max, |x| x * scale));
        let sum = math::map_sum(seen, |x| math::exp(x * scale - max));
        hidden.fill(0.0);
        let shrink = math::exp(running.0 - max);
        *running = (max, running.1 * shrink + sum);
        shrink
    }
}

simd! {
    fn shrink_row(row: &mut [f32], factor: f32) {
        for x in row {
            *x *= factor;
        }
    }
}

simd! {
    /// `out = row * factor` in `out`'s dtype.
    pub(super) fn scale_row[T: Element](row: &[f32], factor: f32, out: &mut [T]) {
        for (out, x) in out.iter_mut().zip(row) {
            *out = T::from_f32(x * factor);
        }
    }
}
