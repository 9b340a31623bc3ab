//! Rows of the embedding table: [`gather`] copies those that a batch names, [`scatter`] adds their gradients back. Both
//! use all threads of the current rayon pool.

use super::CHUNK_ELEMS;
use megatrain_base::Element;
use megatrain_scheduler::TaskError;
use rayon::prelude::*;

/// Elements of work in one row before it is cut by columns. A piece of every row is slower to read than whole rows one
/// after the other, so only the most frequent tokens of a large batch are cut: 8 MB of bf16.
const ROW_ELEMS: usize = 64 * CHUNK_ELEMS;

/// Columns below which a row is not cut further, however often its token occurs: 512 bytes of bf16.
const MIN_COLUMNS: usize = 256;

/// `rows[t] = table[ids[t]]`, with `table` of `[vocab, hidden]` and `rows` of `[tokens, hidden]`.
///
/// # Errors
/// The first id outside the table, before anything is written.
pub fn gather<T: Element>(ids: &[i32], table: &[T], rows: &mut [T]) -> Result<(), TaskError> {
    let Some(hidden) = hidden(ids, rows.len()) else { return Ok(()) };
    check(ids, table.len() / hidden)?;
    let tokens = rows.par_chunks_exact_mut(hidden).zip(ids).with_min_len(CHUNK_ELEMS.div_ceil(hidden));
    tokens.for_each(|(row, &id)| row.copy_from_slice(&table[id as usize * hidden..][..hidden]));
    Ok(())
}

/// `table[ids[t]] += rows[t]` in f32, with `table` of `[vocab, hidden]` and `rows` of `[tokens, hidden]`; `first`: the
/// table's contents do not count, it starts as zeros. Scratch: 8 bytes a token.
///
/// Every element's additions happen in the order of the batch, one after the other, so the bits are those of a plain
/// loop over tokens: threads share the table out among themselves, never the additions to one element.
///
/// # Errors
/// The first id outside the table, before anything is written.
pub fn scatter<T: Element>(ids: &[i32], rows: &[T], table: &mut [f32], first: bool) -> Result<(), TaskError> {
    let Some(hidden) = hidden(ids, rows.len()) else {
        if first {
            table.par_chunks_mut(CHUNK_ELEMS).for_each(|chunk| chunk.fill(0.0));
        }
        return Ok(());
    };
    check(ids, table.len() / hidden)?;
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    // A stable sort: the positions of one token stay in the order of the batch.
    order.par_sort_by_key(|&position| ids[position as usize]);
    Scatter { ids, rows, hidden, first }.table(0, table, &order);
    Ok(())
}

/// Elements of a row; `None` if there are no rows or they are empty.
fn hidden(ids: &[i32], elems: usize) -> Option<usize> {
    elems.checked_div(ids.len()).filter(|&hidden| hidden > 0)
}

/// Whether each id names a row.
fn check(ids: &[i32], vocab: usize) -> Result<(), TaskError> {
    match ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= vocab)) {
        Some(id) => Err(TaskError(format!("token id {id} is outside the vocabulary of {vocab}"))),
        None => Ok(()),
    }
}

/// A [`scatter`] under way: halves the table until a part is [`CHUNK_ELEMS`] elements of work or one row.
struct Scatter<'a, T> {
    ids: &'a [i32],
    rows: &'a [T],
    hidden: usize,
    first: bool,
}

impl<T: Element> Scatter<'_, T> {
    fn id(&self, position: u32) -> usize {
        self.ids[position as usize] as usize
    }

    /// The rows of the table from row `from` on; `order`: the positions of their tokens, by token and then in order.
    fn table(&self, from: usize, table: &mut [f32], order: &[u32]) {
        let filled = if self.first { table.len() } else { 0 };
        let count = table.len() / self.hidden;
        if count > 1 && filled + order.len() * self.hidden > CHUNK_ELEMS {
            let middle = from + count / 2;
            let (low, high) = table.split_at_mut(count / 2 * self.hidden);
            let (low_order, high_order) = order.split_at(order.partition_point(|&p| self.id(p) < middle));
            rayon::join(|| self.table(from, low, low_order), || self.table(middle, high, high_order));
            return;
        }
        let (mut untouched_from, mut rest) = (from, table);
        for positions in order.chunk_by(|&a, &b| self.id(a) == self.id(b)) {
            let id = self.id(positions[0]);
            let (untouched, with_row) = rest.split_at_mut((id - untouched_from) * self.hidden);
            let (row, behind) = with_row.split_at_mut(self.hidden);
            self.clear(untouched);
            self.columns(0, row, positions);
            (untouched_from, rest) = (id + 1, behind);
        }
        self.clear(rest);
    }

    /// The elements of one row from column `from` on; `positions`: those of its token.
    fn columns(&self, from: usize, sums: &mut [f32], positions: &[u32]) {
        if sums.len() > MIN_COLUMNS && sums.len() * positions.len() > ROW_ELEMS {
            let middle = sums.len() / 2;
            let (left, right) = sums.split_at_mut(middle);
            rayon::join(|| self.columns(from, left, positions), || self.columns(from + middle, right, positions));
            return;
        }
        self.clear(sums);
        let width = sums.len();
        let gradient = |position: u32| &self.rows[position as usize * self.hidden + from..][..width];
        let fours = positions.chunks_exact(4);
        let rest = fours.remainder();
        for four in fours {
            // Four rows read side by side hide memory's latency; the additions to an element keep their order.
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| gradient(four[i]));
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = *sum + a[i].to_f32() + b[i].to_f32() + c[i].to_f32() + d[i].to_f32();
            }
        }
        for &position in rest {
            for (sum, g) in sums.iter_mut().zip(gradient(position)) {
                *sum += g.to_f32();
            }
        }
    }

    fn clear(&self, sums: &mut [f32]) {
        if self.first {
            sums.fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megatrain_base::bf16;
    use megatrain_data::Random;
    use proptest::prelude::*;

    /// The definition: token by token.
    fn plain<T: Element>(ids: &[i32], rows: &[T], table: &mut [f32], first: bool) {
        if first {
            table.fill(0.0);
        }
        let hidden = rows.len() / ids.len();
        for (gradient, &id) in rows.chunks_exact(hidden).zip(ids) {
            for (t, g) in table[id as usize * hidden..][..hidden].iter_mut().zip(gradient) {
                *t += g.to_f32();
            }
        }
    }

    /// Numbers of very different sizes, so that another order of additions gives other bits; zeros of both signs.
    fn numbers<T: Element>(random: &mut Random, len: usize) -> Vec<T> {
        let mut number = || match random.below(8) {
            0 => -0.0,
            _ => (random.below(1 << 20) as f32 - (1 << 19) as f32) * (random.below(24) as f32 - 12.0).exp2(),
        };
        (0..len).map(|_| T::from_f32(number())).collect()
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    fn with_threads(threads: usize, work: impl FnOnce() + Send) {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work);
    }

    /// Scatters and gathers on 1, 2 and 3 threads, and compares with the plain loops.
    fn agree<T: Element>(ids: &[i32], vocab: usize, hidden: usize) {
        let mut random = Random::new(ids.len() as u64, hidden as u64);
        let rows: Vec<T> = numbers(&mut random, ids.len() * hidden);
        let before: Vec<f32> = numbers(&mut random, vocab * hidden);
        for threads in [1, 2, 3] {
            for first in [true, false] {
                // What a first scatter finds may be anything.
                let start = if first { vec![f32::NAN; before.len()] } else { before.clone() };
                let (mut ours, mut expected) = (start.clone(), start);
                plain(ids, &rows, &mut expected, first);
                with_threads(threads, || scatter(ids, &rows, &mut ours, first).unwrap());
                assert_eq!(bits(&ours), bits(&expected), "{} tokens, first {first}, {threads} threads", ids.len());
            }
            let mut gathered = vec![f32::NAN; rows.len()];
            with_threads(threads, || gather(ids, &before, &mut gathered).unwrap());
            let expected: Vec<f32> =
                ids.iter().flat_map(|&id| &before[id as usize * hidden..][..hidden]).copied().collect();
            assert_eq!(bits(&gathered), bits(&expected));
        }
    }

    /// `count` ids; the lower ones are more frequent, as in text.
    fn skewed(count: usize, vocab: usize) -> Vec<i32> {
        let mut random = Random::new(count as u64, vocab as u64);
        (0..count).map(|_| random.below(vocab as u64).min(random.below(vocab as u64)) as i32 / 2).collect()
    }

    #[test]
    fn sums_are_those_of_the_plain_loop() {
        // Below and above a chunk; one token; one row; a row per token; columns that do not halve evenly.
        agree::<f32>(&[3], 5, 7);
        agree::<bf16>(&[0], 1, 1);
        agree::<bf16>(&skewed(500, 300), 300, 97);
        agree::<f32>(&skewed(3000, 50), 50, 131);
        agree::<f32>(&(0..700).collect::<Vec<_>>(), 700, 200);
        agree::<bf16>(&(0..700).rev().collect::<Vec<_>>(), 1500, 200);
    }

    /// The worst case of sharing work out by rows.
    #[test]
    fn one_token_alone_is_still_summed_in_order() {
        // Cut by columns: more than twice the elements of work at which a row is cut.
        let often = 2 * ROW_ELEMS / 900 + 3;
        agree::<bf16>(&vec![4; often], 9, 901);
        agree::<f32>(&vec![0; often], 1, 901);
        let mostly: Vec<i32> = (0..often as i32).map(|i| if i % 10 == 0 { i % 9 } else { 8 }).collect();
        agree::<bf16>(&mostly, 9, 901);
    }

    #[test]
    fn no_tokens_and_empty_rows_are_no_work() {
        let mut table = [7.0f32; 6];
        scatter::<f32>(&[], &[], &mut table, false).unwrap();
        gather::<f32>(&[], &table, &mut []).unwrap();
        gather::<f32>(&[1, 2], &table, &mut []).unwrap();
        assert_eq!(table, [7.0; 6]);
        scatter::<f32>(&[], &[], &mut table, true).unwrap();
        assert_eq!(table, [0.0; 6]);
    }

    #[test]
    fn a_bad_id_is_named_and_nothing_is_written() {
        for (ids, bad) in
            [([0, -1, 9], "-1"), ([1, 2, 3], "3"), ([0, i32::MAX, -5], "2147483647"), ([0, 1, i32::MIN], "-2147483648")]
        {
            let message = format!("token id {bad} is outside the vocabulary of 3");
            let (mut table, mut rows) = ([5.0f32; 6], [6.0f32; 6]);
            assert_eq!(scatter(&ids, &rows, &mut table, true).unwrap_err().0, message);
            assert_eq!(gather(&ids, &table, &mut rows).unwrap_err().0, message);
            assert_eq!((table, rows), ([5.0; 6], [6.0; 6]));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        #[test]
        fn any_batch(ids in proptest::collection::vec(0..40i32, 1..400), spread in 1..40i32, hidden in 1usize..700) {
            let ids: Vec<i32> = ids.into_iter().map(|id| id % spread).collect();
            agree::<bf16>(&ids, 40, hidden);
        }
    }
}
