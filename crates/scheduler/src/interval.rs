//! [`IntervalMap`]: values on disjoint byte ranges of one region, split where an access begins or ends.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges with a value each. Bytes between ranges have none.
#[derive(Clone, Debug)]
pub(crate) struct IntervalMap<V> {
    /// Start -> (end, value).
    pieces: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for IntervalMap<V> {
    fn default() -> Self {
        IntervalMap { pieces: BTreeMap::new() }
    }
}

impl<V: Clone + PartialEq> IntervalMap<V> {
    /// Gives `range` a value. The caller sees to it that the range is not empty and that no byte of it has a value.
    pub(crate) fn insert(&mut self, range: Range<u64>, value: V) {
        debug_assert!(range.start < range.end);
        self.pieces.insert(range.start, (range.end, value));
    }

    /// Calls `each` on every piece of a non-empty `range` in address order, cut so that it lies inside; with `None` for
    /// a gap. Stops at the first error.
    pub(crate) fn visit<E>(
        &mut self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>, Option<&mut V>) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some((end, value)) = self.pieces.get_mut(&range.start)
            && *end == range.end
        {
            return each(range, Some(value));
        }
        self.split(range.start);
        self.split(range.end);
        let mut at = range.start;
        for (&start, (end, value)) in self.pieces.range_mut(range.clone()) {
            if at < start {
                each(at..start, None)?;
            }
            each(start..*end, Some(value))?;
            at = *end;
        }
        if at < range.end { each(at..range.end, None) } else { Ok(()) }
    }

    /// Joins neighbouring pieces of `range` with equal values, so that a whole write heals what parts have cut.
    pub(crate) fn merge(&mut self, range: Range<u64>) {
        let Some((&first, _)) = self.pieces.range(range.clone()).next() else { return };
        let mut current = first;
        while let Some((&next, _)) = self.pieces.range(current + 1..range.end.max(current + 1)).next() {
            if self.pieces[&current].0 == next && self.pieces[&current].1 == self.pieces[&next].1 {
                let (end, _) = self.pieces.remove(&next).expect("just found");
                self.pieces.get_mut(&current).expect("just read").0 = end;
            } else {
                current = next;
            }
        }
    }

    /// Cuts the piece that has `at` strictly inside, if one does.
    fn split(&mut self, at: u64) {
        if let Some((&start, (end, value))) = self.pieces.range_mut(..at).next_back()
            && at < *end
        {
            debug_assert!(start < at);
            let right = (*end, value.clone());
            *end = at;
            self.pieces.insert(at, right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(map: &mut IntervalMap<u8>, range: Range<u64>) -> Vec<(u64, u64, Option<u8>)> {
        let mut out = Vec::new();
        map.visit(range, |r, v| {
            out.push((r.start, r.end, v.copied()));
            Ok::<(), ()>(())
        })
        .unwrap();
        out
    }

    #[test]
    fn visits_cut_report_gaps_and_merge_heals() {
        let mut map = IntervalMap::default();
        map.insert(0..10, 1);
        map.insert(20..30, 2);
        assert_eq!(pieces(&mut map, 5..25), [(5, 10, Some(1)), (10, 20, None), (20, 25, Some(2))]);
        assert_eq!(pieces(&mut map, 30..31), [(30, 31, None)]);
        assert_eq!(pieces(&mut map, 25..26), [(25, 26, Some(2))]);
        map.merge(0..30);
        assert_eq!(pieces(&mut map, 0..30), [(0, 10, Some(1)), (10, 20, None), (20, 30, Some(2))]);
        map.insert(40..50, 2);
        map.merge(20..50);
        assert_eq!(pieces(&mut map, 20..50), [(20, 30, Some(2)), (30, 40, None), (40, 50, Some(2))]);
        let first_error = map.visit(0..30, |r, v| if v.is_none() { Err(r.start) } else { Ok(()) });
        assert_eq!(first_error, Err(10));
    }
}
