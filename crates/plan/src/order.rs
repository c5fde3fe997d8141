//! The order of writes: where two meet in a parameter, the later one wins.
//!
//! Most parameters are written once, which a sweep over the destinations shows. Only where writes meet are they
//! taken apart, run by run from the last to the first, each keeping what no later one covers.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use restage_geometry::{Captured, Dest, Fill};
use restage_nest::{Loop, Nest, Strided, coalesce, cover};

use crate::plan::Overwritten;

/// Runs of one parameter's writes that are taken apart at most. Beyond, the writes are refused as meeting each
/// other instead of growing the plan without bound.
const MOST_RUNS: u64 = 1 << 24;

/// One write of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Write {
    Copy(usize),
    Fill(usize),
}

/// What of the writes is kept. Writes that nothing replaces are not listed.
#[derive(Debug, Default)]
pub(crate) struct WriteOrder {
    kept: HashMap<Write, Vec<Range<u64>>>,
    /// Parameters by their index in the capture.
    pub overwritten: Vec<Overwritten>,
}

impl WriteOrder {
    /// Compares the writes of each parameter. Destinations that leave their parameter are passed over: they
    /// are refused where they are planned.
    pub fn new(captured: &Captured) -> Self {
        let mut order = WriteOrder::default();
        let mut writes: Vec<Vec<Write>> = vec![Vec::new(); captured.params.len()];
        // Fills come before the copy whose position they have.
        let mut fills: Vec<usize> = (0..captured.fills.len()).collect();
        fills.sort_by_key(|&f| captured.fills[f].after);
        let mut fills = fills.into_iter().peekable();
        for at in 0..=captured.copies.len() {
            while let Some(f) =
                fills.next_if(|&f| captured.fills[f].after <= at || at == captured.copies.len())
            {
                writes[captured.fills[f].param].push(Write::Fill(f));
            }
            if let Some(copy) = captured.copies.get(at) {
                writes[copy.param].push(Write::Copy(at));
            }
        }
        for (param, writes) in writes.iter().enumerate().filter(|(_, w)| w.len() > 1) {
            let numel: i64 = captured.params[param].shape.iter().product();
            let sides: Vec<(Write, Strided)> = writes
                .iter()
                .filter(|w| w.dest(captured).check(numel).is_ok())
                .filter_map(|w| Some((*w, w.dest(captured).nest().dst_side().ok()?)))
                .collect();
            let only: Vec<Strided> = sides.iter().map(|(_, s)| s.clone()).collect();
            if cover::disjoint(&only).is_err()
                && only.iter().map(Strided::run_count).sum::<u64>() <= MOST_RUNS
            {
                order.resolve(param, &sides, captured);
            }
        }
        order
    }

    fn resolve(&mut self, param: usize, sides: &[(Write, Strided)], captured: &Captured) {
        let mut covered = Ranges::default();
        for (write, _) in sides.iter().rev() {
            let nest = write.dest(captured).nest();
            let mut runs: Vec<Range<u64>> = nest.runs().map(|r| r.dst..r.dst + r.len).collect();
            runs.sort_unstable_by_key(|r| r.start);
            let kept: Vec<Range<u64>> = runs.iter().flat_map(|r| covered.outside(r)).collect();
            let length = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
            let lost = length(&runs) - length(&kept);
            runs.into_iter().for_each(|r| covered.insert(r));
            if lost > 0 {
                let writer = match *write {
                    Write::Copy(c) => captured.copies[c].source.to_string(),
                    Write::Fill(_) => "a constant".to_owned(),
                };
                // The parameter's size in bytes was or will be checked; a part of it fits.
                let bytes = captured.params[param].dtype.bytes(lost).unwrap_or(0);
                self.overwritten.push(Overwritten { param, writer, bytes });
                self.kept.insert(*write, kept);
            }
        }
    }

    /// The ranges of the parameter, in elements, that a copy still provides; `None` for all that it writes.
    pub fn of_copy(&self, copy: usize) -> Option<&[Range<u64>]> {
        self.kept.get(&Write::Copy(copy)).map(Vec::as_slice)
    }

    /// The constants that are left, in as many fills as it takes.
    pub fn fills<'a>(&'a self, captured: &'a Captured) -> impl Iterator<Item = Fill> + 'a {
        captured.fills.iter().enumerate().flat_map(|(f, fill)| match self.kept.get(&Write::Fill(f)) {
            None => vec![Fill { after: 0, ..fill.clone() }],
            Some(kept) => {
                let part = |nest: Nest| Fill { dest: dest(&nest), after: 0, ..fill.clone() };
                within(&[fill.dest.nest()], kept).into_iter().map(part).collect()
            }
        })
    }
}

impl Write {
    fn dest(self, captured: &Captured) -> &Dest {
        match self {
            Write::Copy(c) => &captured.copies[c].dest,
            Write::Fill(f) => &captured.fills[f].dest,
        }
    }
}

/// The parts of nests whose destinations lie in one of some sorted, disjoint ranges.
pub(crate) fn within(nests: &[Nest], ranges: &[Range<u64>]) -> Vec<Nest> {
    let mut out = Vec::new();
    for run in nests.iter().flat_map(Nest::runs) {
        let end = run.dst + run.len;
        let first = ranges.partition_point(|r| r.end <= run.dst);
        for r in ranges[first..].iter().take_while(|r| r.start < end) {
            let (from, to) = (r.start.max(run.dst), r.end.min(end));
            out.push(Nest::contiguous(run.src + (from - run.dst), from, to - from));
        }
    }
    coalesce(&mut out);
    out
}

/// The destination side of a nest as a view.
fn dest(nest: &Nest) -> Dest {
    let unit = Loop { count: nest.run, src: 1, dst: 1 };
    let loops = nest.loops.iter().chain([&unit]);
    Dest {
        offset: nest.dst as i64,
        shape: loops.clone().map(|l| l.count as i64).collect(),
        strides: loops.map(|l| l.dst).collect(),
    }
}

/// Disjoint ranges: start to end.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range, joined with all that it meets.
    fn insert(&mut self, mut range: Range<u64>) {
        while let Some((&start, &end)) = self.0.range(..=range.end).next_back() {
            if end < range.start {
                break;
            }
            self.0.remove(&start);
            range = start.min(range.start)..end.max(range.end);
        }
        self.0.insert(range.start, range.end);
    }

    /// The parts of a range that lie in none.
    fn outside(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..range.start).next_back().map_or(0, |(_, &end)| end);
        let mut from = range.start.max(before);
        let mut out = Vec::new();
        for (&start, &end) in self.0.range(range.start..range.end) {
            if start > from {
                out.push(from..start);
            }
            from = from.max(end);
        }
        if from < range.end {
            out.push(from..range.end);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restage_geometry::{Copy, Dtype, Param};

    fn captured(numel: i64, writes: &[(bool, Dest)]) -> Captured {
        let mut c = Captured::default();
        c.params.push(Param { name: "p".into(), dtype: Dtype::U8, shape: vec![numel] });
        for (fill, dest) in writes {
            if *fill {
                let after = c.copies.len();
                c.fills.push(Fill { param: 0, dest: dest.clone(), element: vec![0], after });
            } else {
                c.copies.push(Copy { source: "w".into(), ops: vec![], param: 0, dest: dest.clone() });
            }
        }
        c
    }

    fn positions(dest: &Dest) -> Vec<u64> {
        dest.nest().runs().flat_map(|r| r.dst..r.dst + r.len).collect()
    }

    proptest! {
        #[test]
        fn the_last_writer_of_each_element_keeps_it(
            writes in prop::collection::vec((any::<bool>(), 0i64..20, 1i64..5, 1i64..5, 4i64..7), 1..6)
        ) {
            let writes: Vec<(bool, Dest)> = writes
                .into_iter()
                .map(|(fill, offset, rows, cols, pitch)| {
                    (fill, Dest { offset, shape: vec![rows, cols], strides: vec![pitch, 1] })
                })
                .collect();
            let c = captured(60, &writes);
            let mut last = vec![None; 60];
            for (w, (_, dest)) in writes.iter().enumerate() {
                positions(dest).into_iter().for_each(|p| last[p as usize] = Some(w));
            }
            let order = WriteOrder::new(&c);
            let mut lost = 0;
            let (mut copies, mut fills) = (0, 0);
            for (w, (fill, dest)) in writes.iter().enumerate() {
                let expect: Vec<u64> = (0..60).filter(|&p| last[p as usize] == Some(w)).collect();
                let all = positions(dest);
                lost += all.len() - expect.len();
                let write = if *fill { Write::Fill(fills) } else { Write::Copy(copies) };
                (copies, fills) = (copies + usize::from(!fill), fills + usize::from(*fill));
                let mut got: Vec<u64> = match order.kept.get(&write) {
                    None => all,
                    Some(kept) => within(&[dest.nest()], kept)
                        .iter()
                        .flat_map(Nest::runs)
                        .flat_map(|r| r.dst..r.dst + r.len)
                        .collect(),
                };
                got.sort_unstable();
                prop_assert_eq!(got, expect);
            }
            let filled: Vec<u64> = order.fills(&c).flat_map(|f| positions(&f.dest)).collect();
            let expect = (0..60).filter(|&p| last[p as usize].is_some_and(|w| writes[w].0)).count();
            prop_assert_eq!(filled.len(), expect);
            prop_assert_eq!(order.overwritten.iter().map(|o| o.bytes).sum::<u64>(), lost as u64);
        }
    }
}
