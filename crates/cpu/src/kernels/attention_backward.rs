//! Causal grouped-query attention, backward: scores are computed again by blocks from the forward's log sums
//! (Dao et al. 2022, arXiv 2205.14135, algorithm 4), without atomics.
//!
//! With `p = e^(scale q.k - lse)` and `delta_i = dout_i . out_i`: `ds = p (dout.v - delta) scale`, `dv = p^T dout`,
//! `dk = ds^T q`, `dq = ds k`. One task takes a block of keys of one document for the group of query heads that share
//! it, walks the queries that see them in order and owns their `dk` and `dv`. Where the block is the whole document, the
//! task has all of `dq` too. For longer documents `dq` comes from a second pass with a task a block of queries, which
//! computes scores once more: 7 block products instead of 5, and no order of additions depends on who runs when.
//!
//! Scratch a task at head_dim 64: about 2 MiB in f32, and 4 bytes a token and head for `delta`.

use super::attention::{Heads, Item, QUERIES, head, items, scale_row};
use super::block::{GRAIN, Packed, Unit};
use super::factor::{Factor, Side};
use super::{Packable, by_float, math, par, scratch::Scratch, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::AttentionBackward;

/// Keys of a block; documents up to this length take one pass. A multiple of [`QUERIES`].
const KEYS: usize = 512;

/// Runs the op.
pub(super) fn run(op: &AttentionBackward, operands: &Operands) {
    by_float!(op.qkv, T => typed::<T>(op, operands));
}

/// The op's inputs.
struct Inputs<'a, T> {
    qkv: &'a [T],
    dout: &'a [T],
    /// `[heads, tokens]`
    lse: &'a [f32],
    /// `[heads, tokens]`
    delta: &'a [f32],
    tokens: usize,
    heads: Heads,
    scale: f32,
}

/// Scratch of a task: scores and their gradients for one head, one block of queries and one of keys.
struct Scores {
    queries: Packed,
    douts: Packed,
    /// `[QUERIES, KEYS]`: weights `p`.
    p: Scratch<f32>,
    /// `[QUERIES, KEYS]`: `ds`.
    ds: Scratch<f32>,
}

fn typed<T: Packable>(op: &AttentionBackward, operands: &Operands) {
    let heads = Heads::new(op.heads, op.kv_heads, op.head_dim);
    let (dout, out) = (operands.read::<T>(&op.dout), operands.read::<T>(&op.out));
    let cu_seqlens = operands.read::<i32>(&op.cu_seqlens);
    let tokens = op.qkv.shape.rows();
    let dqkv = par::SharedMut::new(operands.write::<T>(&op.dqkv));
    let delta = deltas(dout, out, tokens, &heads);
    let inputs = Inputs {
        qkv: operands.read::<T>(&op.qkv),
        dout,
        lse: operands.read::<f32>(&op.lse),
        delta: &delta,
        tokens,
        heads,
        scale: op.scale,
    };
    let key_items = items(cu_seqlens, heads.kv_heads, KEYS);
    par::each(key_items.len(), |i| key_block(&inputs, &key_items[i], dqkv));
    let mut query_items = items(cu_seqlens, heads.kv_heads, QUERIES);
    query_items.retain(|item| item.len > KEYS);
    par::each(query_items.len(), |i| query_block(&inputs, &query_items[i], dqkv));
}

/// `dout . out` of every head and token, `[heads, tokens]`.
fn deltas<T: Packable>(dout: &[T], out: &[T], tokens: usize, heads: &Heads) -> Scratch<f32> {
    simd! {
        fn dot[T: Element](a: &[T], b: &[T]) -> f32 {
            math::sum2(a, b, |a, b| a.to_f32() * b.to_f32())
        }
    }
    let width = heads.heads * heads.dim;
    let mut delta = Scratch::take(heads.heads * tokens);
    let shared = par::SharedMut::new(&mut delta);
    let rows = par::rows_per_chunk(width);
    par::each(tokens.div_ceil(rows), |chunk| {
        for token in chunk * rows..((chunk + 1) * rows).min(tokens) {
            for h in 0..heads.heads {
                let at = token * width + h * heads.dim;
                // SAFETY: each token is visited by one task; the index is inside `[heads, tokens]`.
                unsafe {
                    *shared.at(h * tokens + token) = dot(&dout[at..][..heads.dim], &out[at..][..heads.dim]);
                }
            }
        }
    });
    delta
}

impl Scores {
    fn new() -> Self {
        Scores {
            queries: Packed::empty(),
            douts: Packed::empty(),
            p: Scratch::take(QUERIES * KEYS),
            ds: Scratch::take(QUERIES * KEYS),
        }
    }

    /// Computes `p` and `ds` for head `h`, `rows` queries from `query` on and `count` keys from `key` on (both counted
    /// from the document's start).
    #[allow(clippy::too_many_arguments, reason = "a block is a rectangle of a head of a document")]
    fn compute<T: Packable>(
        &mut self,
        unit: &Unit,
        inputs: &Inputs<T>,
        document: usize,
        h: usize,
        (query, rows): (usize, usize),
        (key, count): (usize, usize),
        keys: &Packed,
        values: &Packed,
    ) {
        let heads = &inputs.heads;
        let (width, dout_width, first) = (heads.width(), heads.heads * heads.dim, document + query);
        let q = head(inputs.qkv, first * width + heads.q(h), rows, heads.dim, width, true);
        let dout = head(inputs.dout, first * dout_width + heads.q(h), rows, heads.dim, dout_width, true);
        // SAFETY: both tensors are borrowed.
        unsafe {
            unit.pack(&q, Side::Left, &mut self.queries);
            unit.pack(&dout, Side::Left, &mut self.douts);
        }
        unit.multiply(&self.queries, 0..rows, keys, count, &mut self.p, KEYS, false);
        unit.multiply(&self.douts, 0..rows, values, count, &mut self.ds, KEYS, false);
        let at = h * inputs.tokens + first;
        for row in 0..rows {
            let visible = count.min((query + row + 1).saturating_sub(key));
            let (p, ds) = (&mut self.p[row * KEYS..][..count], &mut self.ds[row * KEYS..][..count]);
            gradient_row(p, ds, visible, inputs.scale, inputs.lse[at + row], inputs.delta[at + row]);
        }
    }
}

simd! {
    /// In place: scores become weights, `dout.v` becomes `ds`; zero from `visible` on.
    fn gradient_row(p: &mut [f32], ds: &mut [f32], visible: usize, scale: f32, lse: f32, delta: f32) {
        let (seen, hidden) = p.split_at_mut(visible);
        let (ds_seen, ds_hidden) = ds.split_at_mut(visible);
        for (p, ds) in seen.iter_mut().zip(ds_seen) {
            *p = math::exp(*p * scale - lse);
            *ds = *p * (*ds - delta) * scale;
        }
        hidden.fill(0.0);
        ds_hidden.fill(0.0);
    }
}

/// `dk` and `dv` of a block of keys; `dq` too where the block is the whole document.
fn key_block<T: Packable>(inputs: &Inputs<T>, item: &Item, dqkv: par::SharedMut<T>) {
    let unit = Unit::new(T::DTYPE);
    let heads = &inputs.heads;
    let (width, dout_width, dim) = (heads.width(), heads.heads * heads.dim, heads.padded_dim());
    let count = KEYS.min(item.len - item.start);
    let lines = count.next_multiple_of(GRAIN);
    let whole = count == item.len;
    let at = (item.document + item.start) * width;
    let (k_at, v_at) = (at + heads.k(item.kv_head), at + heads.v(item.kv_head));
    let (mut keys, mut values, mut keys_by_key) = (Packed::empty(), Packed::empty(), Packed::empty());
    // SAFETY: `qkv` is borrowed.
    unsafe {
        unit.pack(&head(inputs.qkv, k_at, count, heads.dim, width, true), Side::Right, &mut keys);
        unit.pack(&head(inputs.qkv, v_at, count, heads.dim, width, true), Side::Right, &mut values);
        if whole {
            unit.pack(&head(inputs.qkv, k_at, count, heads.dim, width, false), Side::Right, &mut keys_by_key);
        }
    }
    let mut scores = Scores::new();
    let (mut left, mut right) = (Packed::empty(), Packed::empty());
    let mut dk = Scratch::<f32>::zeroed(lines * dim);
    let mut dv = Scratch::<f32>::zeroed(lines * dim);
    let mut dq = Scratch::<f32>::take(QUERIES * dim);
    for query in (item.start..item.len).step_by(QUERIES) {
        let rows = QUERIES.min(item.len - query);
        // Keys that some query of the block sees.
        let seen = count.min(query + rows - item.start);
        let first = item.document + query;
        for h in item.kv_head * heads.group..(item.kv_head + 1) * heads.group {
            let (queries, block) = ((query, rows), (item.start, seen));
            scores.compute(&unit, inputs, item.document, h, queries, block, &keys, &values);
            let q = head(inputs.qkv, first * width + heads.q(h), rows, heads.dim, width, false);
            let dout = head(inputs.dout, first * dout_width + heads.q(h), rows, heads.dim, dout_width, false);
            // SAFETY: scratch and tensors are borrowed for longer than the calls.
            unsafe {
                unit.pack(&Factor::strided(&scores.p, seen, rows, KEYS, false), Side::Left, &mut left);
                unit.pack(&dout, Side::Right, &mut right);
                unit.multiply(&left, 0..seen, &right, heads.dim, &mut dv, dim, true);
                unit.pack(&Factor::strided(&scores.ds, seen, rows, KEYS, false), Side::Left, &mut left);
                unit.pack(&q, Side::Right, &mut right);
                unit.multiply(&left, 0..seen, &right, heads.dim, &mut dk, dim, true);
                if whole {
                    unit.pack(&Factor::strided(&scores.ds, rows, seen, KEYS, true), Side::Left, &mut left);
                    unit.multiply(&left, 0..rows, &keys_by_key, heads.dim, &mut dq, dim, false);
                    store(&dq, dim, rows, heads, dqkv, first * width + heads.q(h));
                }
            }
        }
    }
    // SAFETY: these rows of key head and value head belong to this task alone.
    unsafe {
        store(&dk, dim, count, heads, dqkv, k_at);
        store(&dv, dim, count, heads, dqkv, v_at);
    }
}

/// `dq` of a block of queries of a long document.
fn query_block<T: Packable>(inputs: &Inputs<T>, item: &Item, dqkv: par::SharedMut<T>) {
    let unit = Unit::new(T::DTYPE);
    let heads = &inputs.heads;
    let (width, dim) = (heads.width(), heads.padded_dim());
    let rows = QUERIES.min(item.len - item.start);
    let mut scores = Scores::new();
    let (mut keys, mut values, mut keys_by_key) = (Packed::empty(), Packed::empty(), Packed::empty());
    let mut left = Packed::empty();
    let mut dq = Scratch::<f32>::take(heads.group * QUERIES * dim);
    let group = item.kv_head * heads.group..(item.kv_head + 1) * heads.group;
    let end = item.start + rows;
    for key in (0..end).step_by(KEYS) {
        let count = KEYS.min(end - key);
        let at = (item.document + key) * width;
        let (k_at, v_at) = (at + heads.k(item.kv_head), at + heads.v(item.kv_head));
        // SAFETY: `qkv` is borrowed.
        unsafe {
            unit.pack(&head(inputs.qkv, k_at, count, heads.dim, width, true), Side::Right, &mut keys);
            unit.pack(&head(inputs.qkv, v_at, count, heads.dim, width, true), Side::Right, &mut values);
            unit.pack(&head(inputs.qkv, k_at, count, heads.dim, width, false), Side::Right, &mut keys_by_key);
        }
        for (h, dq) in group.clone().zip(dq.chunks_exact_mut(QUERIES * dim)) {
            let (queries, block) = ((item.start, rows), (key, count));
            scores.compute(&unit, inputs, item.document, h, queries, block, &keys, &values);
            // SAFETY: the scratch is ours.
            unsafe { unit.pack(&Factor::strided(&scores.ds, rows, count, KEYS, true), Side::Left, &mut left) };
            unit.multiply(&left, 0..rows, &keys_by_key, heads.dim, dq, dim, key > 0);
        }
    }
    for (h, dq) in group.zip(dq.chunks_exact(QUERIES * dim)) {
        // SAFETY: these rows of query head `h` belong to this task alone.
        unsafe { store(dq, dim, rows, heads, dqkv, (item.document + item.start) * width + heads.q(h)) };
    }
}

/// Writes `rows` rows of sums, `dim` apart, to one head of `dqkv` that starts at element `at`.
///
/// # Safety
/// The rows lie inside `dqkv` and no other task touches them.
unsafe fn store<T: Element>(sums: &[f32], dim: usize, rows: usize, heads: &Heads, dqkv: par::SharedMut<T>, at: usize) {
    for (row, sums) in sums.chunks_exact(dim).take(rows).enumerate() {
        // SAFETY: by contract.
        let out = unsafe { std::slice::from_raw_parts_mut(dqkv.at(at + row * heads.width()), heads.dim) };
        scale_row(&sums[..heads.dim], 1.0, out);
    }
}
