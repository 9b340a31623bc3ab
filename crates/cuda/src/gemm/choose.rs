//! Which candidate wins, given times: pure functions of them.

/// A candidate this much slower than the fastest in its first timing is not timed again.
const FINAL_MARGIN: f64 = 1.10;
/// Most candidates that are timed again, beside the heuristic's first.
const FINALISTS: usize = 3;
/// Medians closer than this are taken as equal: repeated timings of one algorithm differ by as much.
const TIE: f64 = 1.015;

/// Candidates worth timing again, given one time each in the heuristic's order (`None`: did not run), in that order. The
/// first that ran is always among them, so that nothing else wins by one unlucky timing of the favourite.
pub(super) fn finalists(times_us: &[Option<f64>]) -> Vec<usize> {
    let ran = || times_us.iter().enumerate().filter_map(|(i, us)| us.map(|us| (i, us)));
    let fastest = ran().map(|(_, us)| us).fold(f64::INFINITY, f64::min);
    let mut near: Vec<(usize, f64)> = ran().filter(|&(_, us)| us <= FINAL_MARGIN * fastest).collect();
    near.sort_by(|a, b| a.1.total_cmp(&b.1));
    near.truncate(FINALISTS);
    let mut finalists: Vec<usize> = near.into_iter().map(|(i, _)| i).chain(ran().next().map(|(i, _)| i)).collect();
    finalists.sort_unstable();
    finalists.dedup();
    finalists
}

/// The winner among `(candidate, median time)` in the heuristic's order: the first whose time ties with the fastest, so that
/// noise does not change the choice. `None` for none.
pub(super) fn winner(medians_us: &[(usize, f64)]) -> Option<(usize, f64)> {
    let fastest = medians_us.iter().map(|&(_, us)| us).fold(f64::INFINITY, f64::min);
    medians_us.iter().copied().find(|&(_, us)| us <= TIE * fastest)
}

/// The median, the lower one of an even number; `None` for none.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_wins_but_ties_go_to_the_heuristics_order() {
        assert_eq!(winner(&[(0, 100.0), (1, 90.0), (2, 95.0)]), Some((1, 90.0)));
        assert_eq!(winner(&[(0, 100.0), (3, 99.0), (5, 98.6)]), Some((0, 100.0)));
        assert_eq!(winner(&[(0, 102.0), (3, 101.0), (5, 100.0)]), Some((3, 101.0)));
        assert_eq!(winner(&[(4, 7.0)]), Some((4, 7.0)));
        assert_eq!(winner(&[]), None);
    }

    #[test]
    fn jitter_within_a_tie_never_changes_the_choice() {
        for jitter in [-0.007, 0.0, 0.007] {
            let times =
                [(0, 100.0 * (1.0 + jitter)), (1, 100.0 * (1.0 - jitter)), (2, 80.0), (3, 80.0 * (1.0 - jitter))];
            assert_eq!(winner(&times).unwrap().0, 2, "{times:?}");
        }
    }

    #[test]
    fn finalists_are_the_near_ones_and_the_first_that_ran() {
        let some = |times: &[f64]| times.iter().map(|&us| Some(us)).collect::<Vec<_>>();
        assert_eq!(finalists(&some(&[100.0, 50.0, 54.0, 56.0, 51.0])), [0, 1, 2, 4]);
        assert_eq!(finalists(&some(&[50.0, 100.0])), [0]);
        assert_eq!(finalists(&some(&[52.0, 54.0, 53.0, 50.0, 51.0])), [0, 3, 4]);
        assert_eq!(finalists(&[None, None, Some(9.0), None, Some(8.5)]), [2, 4]);
        assert!(finalists(&[None, None]).is_empty() && finalists(&[]).is_empty());
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }
}
