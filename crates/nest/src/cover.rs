//! Proof that destinations are disjoint, and what they leave uncovered.
//!
//! The cost is near-linear in the number of nests wherever their hulls do not interleave, or interleave as
//! tiles of one pitch do. Only other interleavings are decided by walking their runs, in the order of their
//! positions and without building a list.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::Strided;

/// Two destinations that share a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// Index of one of the two in the slice that was checked.
    pub first: usize,
    /// Index of the other; equal to `first` when a nest overlaps itself.
    pub second: usize,
    /// A position near which they meet.
    pub at: u64,
}

/// Checks that no position is covered twice.
///
/// # Errors
/// The first [`Overlap`] found. Which of several is reported is deterministic for equal input.
pub fn disjoint(items: &[Strided]) -> Result<(), Overlap> {
    let live: Vec<(usize, &Strided)> = items.iter().enumerate().filter(|(_, s)| s.run > 0).collect();
    for &(i, s) in &live {
        if !nested(s) {
            walk(&[(i, s)], |_, overlap| overlap.map_or(Ok(()), Err))?;
        }
    }
    clusters(live)
}

/// The ranges of `0..len` that no item covers; items must lie inside `0..len` and be disjoint.
///
/// The cost grows with the number of runs: meant for naming what is missing once a sum has shown that
/// something is.
pub fn holes(items: &[Strided], len: u64) -> Vec<Range<u64>> {
    let live: Vec<(usize, &Strided)> = items.iter().enumerate().filter(|(_, s)| s.run > 0).collect();
    let mut holes = Vec::new();
    let mut covered = 0;
    let _: Result<(), ()> = walk(&live, |run, _| {
        if run.start > covered {
            holes.push(covered..run.start);
        }
        covered = covered.max(run.end);
        Ok(())
    });
    if covered < len {
        holes.push(covered..len);
    }
    holes
}

/// True when each loop steps over the whole extent of the loops inside it, so that no two runs can meet.
fn nested(s: &Strided) -> bool {
    let mut extent = s.run;
    for &(count, stride) in s.loops.iter().rev() {
        if stride < extent {
            return false;
        }
        extent += stride * (count - 1);
    }
    true
}

fn end(s: &Strided) -> u64 {
    // Sides are built with a checked end.
    s.end().unwrap_or(u64::MAX)
}

/// Groups items whose hulls overlap and checks each group of two or more.
fn clusters(mut items: Vec<(usize, &Strided)>) -> Result<(), Overlap> {
    items.sort_by_key(|(i, s)| (s.start, *i));
    let mut from = 0;
    let mut reach = 0;
    for at in 0..=items.len() {
        if at == items.len() || items[at].1.start >= reach {
            if at - from > 1 {
                cluster_disjoint(&items[from..at])?;
            }
            from = at;
        }
        if at < items.len() {
            reach = reach.max(end(items[at].1));
        }
    }
    Ok(())
}

fn cluster_disjoint(cluster: &[(usize, &Strided)]) -> Result<(), Overlap> {
    // Tiles of one pitch: when all share the outermost loop and fit into one period of it, then no
    // repetition meets another, and one period decides.
    let outer = cluster[0].1.loops.first().copied();
    let pitch = outer.filter(|_| cluster.iter().all(|(_, s)| s.loops.first().copied() == outer));
    if let Some((_, stride)) = pitch {
        let inner: Vec<Strided> = cluster
            .iter()
            .map(|(_, s)| Strided { start: s.start, run: s.run, loops: s.loops[1..].to_vec() })
            .collect();
        let low = inner.iter().map(|s| s.start).min().unwrap_or(0);
        let high = inner.iter().map(end).max().unwrap_or(0);
        if high - low <= stride {
            let index = |i: usize| cluster[i].0;
            return disjoint(&inner).map_err(|o| Overlap {
                first: index(o.first),
                second: index(o.second),
                at: o.at,
            });
        }
    }
    walk(cluster, |_, overlap| overlap.map_or(Ok(()), Err))
}

/// Visits all runs in the order of their positions, with the overlap of each with those before it, if any.
fn walk<E>(
    items: &[(usize, &Strided)],
    mut visit: impl FnMut(Range<u64>, Option<Overlap>) -> Result<(), E>,
) -> Result<(), E> {
    let mut heads: BinaryHeap<Reverse<(u64, usize, usize)>> = BinaryHeap::new();
    let mut sources: Vec<(usize, u64, SortedRuns)> = Vec::with_capacity(items.len());
    for (slot, &(index, s)) in items.iter().enumerate() {
        let mut runs = SortedRuns::new(s);
        if let Some(start) = runs.next() {
            heads.push(Reverse((start, index, slot)));
        }
        sources.push((index, s.run, runs));
    }
    let mut covered: Option<(u64, usize)> = None;
    while let Some(Reverse((start, index, slot))) = heads.pop() {
        let (_, run, runs) = &mut sources[slot];
        let stop = start + *run;
        let overlap = covered.filter(|&(reach, _)| start < reach).map(|(_, other)| Overlap {
            first: other.min(index),
            second: other.max(index),
            at: start,
        });
        visit(start..stop, overlap)?;
        if covered.is_none_or(|(reach, _)| stop > reach) {
            covered = Some((stop, index));
        }
        if let Some(next) = runs.next() {
            heads.push(Reverse((next, index, slot)));
        }
    }
    Ok(())
}

/// Starts of the runs of one side in ascending order. Nested loops are walked; loops that interleave are
/// merged by a heap over the outer iterations that can still come next.
struct SortedRuns {
    loops: Vec<(u64, u64)>,
    heap: BinaryHeap<Reverse<(u64, Vec<u64>)>>,
}

impl SortedRuns {
    fn new(s: &Strided) -> Self {
        let mut heap = BinaryHeap::new();
        if s.run > 0 {
            heap.push(Reverse((s.start, vec![0; s.loops.len()])));
        }
        SortedRuns { loops: s.loops.clone(), heap }
    }

    fn next(&mut self) -> Option<u64> {
        let Reverse((start, index)) = self.heap.pop()?;
        // Successors: advance loop k where all loops inside it (after it) stand at 0. Each index is reached once.
        for k in (0..self.loops.len()).rev() {
            let (count, stride) = self.loops[k];
            if index[k] + 1 < count {
                let mut next = index.clone();
                next[k] += 1;
                self.heap.push(Reverse((start + stride, next)));
            }
            if index[k] != 0 {
                break;
            }
        }
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn s(start: u64, run: u64, loops: &[(u64, u64)]) -> Strided {
        Strided { start, run, loops: loops.to_vec() }
    }

    fn positions(items: &[Strided]) -> Vec<u64> {
        let mut all = Vec::new();
        for s in items.iter().filter(|s| s.run > 0) {
            let mut starts = vec![s.start];
            for &(count, stride) in &s.loops {
                starts = starts.iter().flat_map(|&p| (0..count).map(move |i| p + i * stride)).collect();
            }
            all.extend(starts.iter().flat_map(|&p| p..p + s.run));
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn tiles_of_one_pitch_are_disjoint_without_walking() {
        // A billion rows: walking them would not end.
        let items = [s(0, 4, &[(1 << 30, 8)]), s(4, 4, &[(1 << 30, 8)])];
        assert_eq!(disjoint(&items), Ok(()));
        let items = [s(0, 5, &[(1 << 30, 8)]), s(4, 4, &[(1 << 30, 8)])];
        assert_eq!(disjoint(&items), Err(Overlap { first: 0, second: 1, at: 4 }));
    }

    #[test]
    fn a_nest_that_meets_itself_is_refused() {
        let items = [s(0, 2, &[(3, 1)])];
        assert_eq!(disjoint(&items), Err(Overlap { first: 0, second: 0, at: 1 }));
        // Strides below the extent can still be disjoint: 0, 3, 2, 5.
        assert_eq!(disjoint(&[s(0, 1, &[(2, 3), (2, 2)])]), Ok(()));
    }

    #[test]
    fn holes_are_named() {
        assert_eq!(holes(&[s(2, 2, &[(2, 4)])], 10), [0..2, 4..6, 8..10]);
        assert_eq!(holes(&[], 3), vec![0u64..3]);
        assert_eq!(holes(&[s(0, 3, &[])], 3), []);
    }

    fn side() -> impl Strategy<Value = Strided> {
        (0u64..24, 0u64..4, proptest::collection::vec((2u64..4, 0u64..12), 0..3)).prop_map(
            |(start, run, mut loops)| {
                loops.sort_by_key(|l| Reverse(l.1));
                Strided { start, run, loops }
            },
        )
    }

    proptest! {
        #[test]
        fn disjoint_agrees_with_enumeration(items in proptest::collection::vec(side(), 0..4)) {
            let all = positions(&items);
            let twice = all.windows(2).any(|w| w[0] == w[1]);
            prop_assert_eq!(disjoint(&items).is_err(), twice);
        }

        #[test]
        fn holes_are_the_complement(items in proptest::collection::vec(side(), 0..4)) {
            let all = positions(&items);
            let len = all.last().map_or(5, |p| p + 3);
            let missing: Vec<u64> = holes(&items, len).into_iter().flatten().collect();
            let expect: Vec<u64> = (0..len).filter(|p| all.binary_search(p).is_err()).collect();
            prop_assert_eq!(missing, expect);
        }
    }
}
