//! Merging of nests that continue each other.

use std::collections::HashMap;

use crate::{Loop, Nest, Run};

/// Merges nests that continue each other on both sides, and leaves them sorted by destination.
///
/// The law: the pairs (source position, destination position) stay the same, and neither the number of nests
/// nor that of flat runs grows. Only whole nests are merged, so that the cost never grows with rows;
/// [`merged_runs`] also finds neighbours that no loop expresses.
///
/// ```
/// use restage_nest::{coalesce, Nest};
/// let mut nests = vec![Nest::contiguous(32, 32, 32), Nest::contiguous(0, 0, 32)];
/// coalesce(&mut nests);
/// assert_eq!(nests, [Nest::contiguous(0, 0, 64)]);
/// ```
pub fn coalesce(nests: &mut Vec<Nest>) {
    for nest in nests.iter_mut() {
        *nest = std::mem::replace(nest, Nest::contiguous(0, 0, 0)).canonical();
    }
    nests.retain(|n| !n.is_empty());
    nests.sort_unstable_by(|a, b| (a.dst, a).cmp(&(b.dst, b)));
    if nests.iter().all(|n| n.loops.is_empty()) {
        // Plain runs can only continue the one before them, and two of them make no loop.
        return nests.dedup_by(|next, last| {
            let end = last.src.checked_add(last.run).zip(last.dst.checked_add(last.run));
            let touches = end == Some((next.src, next.dst));
            if touches {
                last.run += next.run;
            }
            touches
        });
    }
    while nests.len() > 1 && (join_runs(nests) | join_outer(nests)) {}
}

/// Joins nests of equal loops whose runs touch: tiles that lie side by side.
fn join_runs(nests: &mut Vec<Nest>) -> bool {
    if !any_touch(nests) {
        return false;
    }
    let before = nests.len();
    let mut ends: HashMap<(u64, u64, Vec<Loop>), usize> = HashMap::with_capacity(before);
    let mut out: Vec<Nest> = Vec::with_capacity(before);
    for nest in nests.drain(..) {
        let start = (nest.src, nest.dst, nest.loops);
        let at = match ends.remove(&start) {
            Some(at) => {
                out[at].run += nest.run;
                at
            }
            None => {
                out.push(Nest { src: start.0, dst: start.1, run: nest.run, loops: start.2 });
                out.len() - 1
            }
        };
        let joined = &out[at];
        if let (Some(src), Some(dst)) =
            (joined.src.checked_add(joined.run), joined.dst.checked_add(joined.run))
        {
            ends.insert((src, dst, joined.loops.clone()), at);
        }
    }
    let changed = out.len() != before;
    *nests = out.into_iter().map(Nest::canonical).collect();
    changed
}

/// True when the run of one nest ends where that of another with equal loops begins. The nests are sorted by
/// destination.
fn any_touch(nests: &[Nest]) -> bool {
    nests.iter().any(|nest| {
        let end = nest.src.checked_add(nest.run).zip(nest.dst.checked_add(nest.run));
        end.is_some_and(|(src, dst)| {
            let from = nests.partition_point(|n| n.dst < dst);
            let here = nests[from..].iter().take_while(|n| n.dst == dst);
            here.into_iter().any(|n| n.src == src && n.loops == nest.loops)
        })
    })
}

/// Joins a nest with the next one where that continues its outermost loop: tiles that lie one below the other.
fn join_outer(nests: &mut Vec<Nest>) -> bool {
    let before = nests.len();
    nests.dedup_by(|next, last| continue_with(last, next).is_some());
    nests.len() != before
}

/// Makes the first of two nests both, where the second continues its outermost loop, or is a repetition of it, or has
/// it as a repetition.
fn continue_with(a: &mut Nest, b: &mut Nest) -> Option<()> {
    if a.run != b.run {
        return None;
    }
    let step = |l: &Loop| {
        let count = l.count as i64;
        Some((l.src.checked_mul(count)?, l.dst.checked_mul(count)?))
    };
    let (src, dst) = (a.src, a.dst);
    let at = |by: (i64, i64)| Some((src.checked_add_signed(by.0)?, dst.checked_add_signed(by.1)?));
    let next = (b.src, b.dst);
    match (a.loops.as_mut_slice(), b.loops.as_mut_slice()) {
        ([x, inner @ ..], [y, rest @ ..])
            if inner == rest && (x.src, x.dst) == (y.src, y.dst) && at(step(x)?)? == next =>
        {
            x.count += y.count;
        }
        ([x, inner @ ..], rest) if inner == rest && at(step(x)?)? == next => x.count += 1,
        (rest, [y, inner @ ..]) if inner == rest && at((y.src, y.dst))? == next => {
            y.count += 1;
            a.loops = std::mem::take(&mut b.loops);
        }
        _ => return None,
    }
    Some(())
}

/// The flat form with every pair of neighbouring runs merged, sorted by destination: the fewest runs possible
/// where destinations are written once. The last run of one nest may continue in the first of another, which
/// no merging of whole nests can express.
///
/// `None` when there are more than `most` runs before merging: the cost grows with their number.
pub fn merged_runs(nests: &[Nest], most: u64) -> Option<Vec<Run>> {
    let total = nests.iter().try_fold(0u64, |n, x| n.checked_add(x.run_count().ok()?))?;
    if total > most {
        return None;
    }
    let mut runs: Vec<Run> = nests.iter().flat_map(Nest::runs).collect();
    runs.sort_unstable_by_key(|r| (r.dst, r.src));
    runs.dedup_by(|next, run| {
        let touches =
            run.dst.checked_add(run.len) == Some(next.dst) && run.src.checked_add(run.len) == Some(next.src);
        if touches {
            run.len += next.len;
        }
        touches
    });
    Some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(nests: &[Nest]) -> Vec<(u64, u64)> {
        let mut v: Vec<_> = nests
            .iter()
            .flat_map(Nest::runs)
            .flat_map(|r| (0..r.len).map(move |i| (r.src + i, r.dst + i)))
            .collect();
        v.sort_unstable();
        v
    }

    fn nest(src: u64, dst: u64, run: u64, loops: &[(u64, i64, i64)]) -> Nest {
        let loops = loops.iter().map(|&(count, src, dst)| Loop { count, src, dst }).collect();
        Nest { src, dst, run, loops }
    }

    #[test]
    fn tiles_side_by_side_become_wider_rows() {
        let mut v = vec![nest(0, 0, 2, &[(8, 8, 4)]), nest(2, 2, 2, &[(8, 8, 4)])];
        coalesce(&mut v);
        assert_eq!(v, [nest(0, 0, 4, &[(8, 8, 4)])]);
    }

    #[test]
    fn tiles_one_below_the_other_become_more_rows() {
        let mut v = vec![nest(24, 8, 2, &[(5, 8, 2)]), nest(0, 2, 2, &[(3, 8, 2)])];
        coalesce(&mut v);
        assert_eq!(v, [nest(0, 2, 2, &[(8, 8, 2)])]);
        let mut v = vec![nest(0, 0, 2, &[]), nest(8, 4, 2, &[(3, 8, 4)]), nest(32, 16, 2, &[])];
        coalesce(&mut v);
        assert_eq!(v, [nest(0, 0, 2, &[(5, 8, 4)])]);
    }

    #[test]
    fn a_seam_between_two_nests_is_found() {
        // Single units; the last of the first nest and the first of the second touch on both sides.
        let mut v = vec![nest(0, 0, 1, &[(2, 3, 4)]), nest(4, 5, 1, &[(2, 9, 9)])];
        coalesce(&mut v);
        assert_eq!(v.len(), 2);
        assert_eq!(merged_runs(&v, 4).map(|runs| runs.len()), Some(3));
        assert_eq!(merged_runs(&v, 3), None);
    }

    proptest! {
        #[test]
        fn coalescing_keeps_every_pair(
            parts in proptest::collection::vec(
                (0u64..40, 0u64..40, 0u64..4, proptest::collection::vec((0u64..4, -6i64..9, -6i64..9), 0..3)),
                0..5,
            )
        ) {
            // Shift up so that backwards strides stay above zero.
            let mut v: Vec<_> = parts.iter().map(|(s, d, r, l)| nest(s + 60, d + 60, *r, l)).collect();
            let before = pairs(&v);
            let runs = v.iter().map(|n| n.run_count().unwrap()).sum::<u64>();
            coalesce(&mut v);
            prop_assert_eq!(before, pairs(&v));
            prop_assert!(v.iter().map(|n| n.run_count().unwrap()).sum::<u64>() <= runs);
        }
    }
}
