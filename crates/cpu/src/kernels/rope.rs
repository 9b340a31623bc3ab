//! Rotary position embedding. Sines and cosines come from a table of positions that is kept from call to call.

use super::{by_float, par, simd::simd};
use megatrain_base::{Element, Operands};
use megatrain_ops::{Rope, RopeParams};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs the op.
pub(super) fn run(op: &Rope, operands: &Operands) {
    by_float!(op.qkv, T => typed::<T>(op, operands));
}

fn typed<T: Element>(op: &Rope, operands: &Operands) {
    let positions = operands.read::<i32>(&op.positions);
    let qkv = operands.write::<T>(&op.qkv);
    let (head_dim, width) = (op.head_dim as usize, op.qkv.shape.last());
    let turned = (op.heads + op.kv_heads) as usize * head_dim;
    if qkv.is_empty() || turned == 0 {
        return;
    }
    let table = Table::for_positions(&op.rope, op.head_dim, positions);
    let rows = par::rows_per_chunk(width);
    par::chunks(qkv, rows * width, |chunk, qkv| {
        let mut own = vec![0.0; head_dim];
        for (row, &position) in qkv.chunks_exact_mut(width).zip(&positions[chunk * rows..]) {
            let turn = match table.row(position) {
                Some(turn) => turn,
                None => {
                    fill_row(&table.inv_freq, position, &mut own);
                    &own
                }
            };
            let (cos, sin) = turn.split_at(head_dim / 2);
            for head in row[..turned].chunks_exact_mut(head_dim) {
                let (low, high) = head.split_at_mut(head_dim / 2);
                turn_head(low, high, cos, sin, if op.inverse { -1.0 } else { 1.0 });
            }
        }
    });
}

simd! {
    fn turn_head[T: Element](low: &mut [T], high: &mut [T], cos: &[f32], sin: &[f32], sign: f32) {
        for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
            let (x, y, sin) = (low.to_f32(), high.to_f32(), sin * sign);
            *low = T::from_f32(x * cos - y * sin);
            *high = T::from_f32(y * cos + x * sin);
        }
    }
}

/// `[position][cos of head_dim / 2 angles, then their sines]` for positions from 0 on.
struct Table {
    rope: RopeParams,
    head_dim: u32,
    inv_freq: Vec<f64>,
    rows: Vec<f32>,
}

/// The table of the last call: a model calls with the same frequencies in every layer. At most 4 bytes x head_dim a
/// position: 16 MiB at 32k positions and a head_dim of 128.
static LAST: Mutex<Option<Arc<Table>>> = Mutex::new(None);

/// Positions beyond this are computed where they occur instead of being kept.
const MAX_POSITIONS: usize = 1 << 17;

impl Table {
    fn for_positions(rope: &RopeParams, head_dim: u32, positions: &[i32]) -> Arc<Table> {
        let last = positions.iter().copied().max().unwrap_or(0).max(0) as usize;
        // A few tokens far into a sequence (generation) do not pay for a table of everything before them.
        let dense = last < MAX_POSITIONS && last <= 16 * positions.len();
        let need = if dense { last + 1 } else { 0 };
        if let Some(table) = LAST.lock().unwrap_or_else(PoisonError::into_inner).as_ref()
            && table.rope == *rope
            && table.head_dim == head_dim
            && table.rows.len() >= need * head_dim as usize
        {
            return table.clone();
        }
        let inv_freq = rope.inv_freq(head_dim);
        let mut rows = vec![0.0; need * head_dim as usize];
        let step = par::rows_per_chunk(head_dim as usize * 16);
        let width = head_dim as usize;
        if need > 0 {
            par::chunks(&mut rows, step * width, |chunk, rows| {
                for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                    fill_row(&inv_freq, (chunk * step + i) as i32, row);
                }
            });
        }
        let table = Arc::new(Table { rope: *rope, head_dim, inv_freq, rows });
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(table.clone());
        table
    }

    fn row(&self, position: i32) -> Option<&[f32]> {
        let width = self.head_dim as usize;
        self.rows.get(usize::try_from(position).ok()? * width..)?.get(..width)
    }
}

/// Angles in f64, so that far positions lose nothing; then f32.
fn fill_row(inv_freq: &[f64], position: i32, row: &mut [f32]) {
    let (cos, sin) = row.split_at_mut(inv_freq.len());
    for ((cos, sin), freq) in cos.iter_mut().zip(sin).zip(inv_freq) {
        let (s, c) = (f64::from(position) * freq).sin_cos();
        (*cos, *sin) = (c as f32, s as f32);
    }
}
