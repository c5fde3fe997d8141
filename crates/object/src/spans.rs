//! Which ranges to ask for: near runs together, none longer than the largest request.
//!
//! The law: the spans cover every run of the tasks, each task lies in the span that it is in, no span is longer
//! than the largest request, and no span has a gap longer than the named one.

use std::ops::Range;

use restage_nest::Nest;
use restage_transport::Task;

use crate::Limits;

/// A range of one session, and what is gathered from it.
#[derive(Debug)]
pub(crate) struct Span<'d> {
    /// Index of the session in the batch.
    pub session: u32,
    /// Bytes of the object; never empty.
    pub range: Range<u64>,
    /// All of their sources lie in the range.
    pub tasks: Vec<Task<'d>>,
}

/// Cuts tasks and joins the parts to spans, in the order of session and address.
pub(crate) fn spans<'d>(tasks: Vec<Task<'d>>, limits: &Limits) -> Vec<Span<'d>> {
    let largest = limits.largest.max(1);
    let mut parts: Vec<(u32, Range<u64>, Task<'d>)> = Vec::with_capacity(tasks.len());
    let mut open = Vec::new();
    for task in tasks {
        open.push(task.by_source());
        while let Some(task) = open.pop() {
            let hull = hull(task.nest());
            let cut = match sparse(task.nest(), limits.gap) {
                Some(at) => Some(task.split_loop(at)),
                None if hull.end - hull.start <= largest => {
                    parts.push((task.session(), hull, task));
                    None
                }
                None => match longest(task.nest()) {
                    Some(at) => Some(task.split_loop(at)),
                    None => Some(task.split_run()),
                },
            };
            if let Some((first, second)) = cut {
                open.extend(second);
                open.push(first);
            }
        }
    }
    parts.sort_by_key(|(session, hull, _)| (*session, hull.start));
    let mut spans: Vec<Span<'d>> = Vec::new();
    for (session, hull, task) in parts {
        match spans.last_mut() {
            Some(last)
                if last.session == session
                    && hull.start.saturating_sub(last.range.end) <= limits.gap
                    && hull.end.max(last.range.end) - last.range.start <= largest =>
            {
                last.range.end = last.range.end.max(hull.end);
                last.tasks.push(task);
            }
            _ => spans.push(Span { session, range: hull, tasks: vec![task] }),
        }
    }
    spans
}

/// The range from the first to the last byte that is read.
fn hull(nest: &Nest) -> Range<u64> {
    // Both exist for what has been checked.
    nest.src_side().and_then(|s| Ok(s.start..s.end()?)).unwrap_or(0..u64::MAX)
}

/// A loop whose repetitions lie further apart than `gap`; the loops are in the order of their source strides.
fn sparse(nest: &Nest, gap: u64) -> Option<usize> {
    let mut inner = nest.run;
    let mut found = None;
    for (at, l) in nest.loops.iter().enumerate().rev() {
        if l.count > 1 && l.src.unsigned_abs() > inner.saturating_add(gap) {
            found = Some(at);
        }
        inner = inner.saturating_add(l.src.unsigned_abs().saturating_mul(l.count - 1));
    }
    found
}

/// The loop that reaches farthest in the source, if any moves at all.
fn longest(nest: &Nest) -> Option<usize> {
    let reach = |at: &usize| nest.loops[*at].src.unsigned_abs().saturating_mul(nest.loops[*at].count - 1);
    (0..nest.loops.len()).filter(|at| reach(at) > 0).max_by_key(reach)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use restage_nest::Loop;
    use restage_transport::{Batch, Entry, Extents, check};

    use super::*;

    /// Nests that read anywhere in 4096 bytes and write disjoint stretches.
    fn nests() -> impl Strategy<Value = Vec<Nest>> {
        let one = (1u64..40, prop::collection::vec((1u64..5, -300i64..300), 0..3));
        prop::collection::vec(one, 1..8).prop_map(|shapes| {
            let mut dst = 0;
            let mut nests = Vec::new();
            for (run, loops) in shapes {
                let mut step = run;
                let mut nest = Nest { src: 4096, dst, run, loops: Vec::new() };
                for (count, src) in loops {
                    nest.loops.push(Loop { count, src, dst: step as i64 });
                    step *= count;
                }
                dst += step;
                nests.push(nest);
            }
            nests
        })
    }

    proptest! {
        #[test]
        fn spans_keep_their_law(nests in nests(), gap in 0u64..200, largest in 1u64..300) {
            let limits = Limits { gap, largest, ..Limits::default() };
            let entries = nests.iter().map(|n| Entry { session: 0, dest: 0, nest: n.clone() }).collect();
            let batch = Batch { sessions: vec!["a".into()], entries };
            let mut dest = vec![0u8; 1 << 16];
            let mut dests = [dest.as_mut_slice()];
            let extents = |_: &str| Some(Extents::from_zero(1 << 16));
            let tasks = check(&batch, &extents, &mut dests).unwrap().into_tasks();
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for nest in &nests {
                expected.extend(nest.runs().flat_map(|r| (0..r.len).map(move |i| (r.src + i, r.dst + i))));
            }
            let mut found = Vec::new();
            for span in spans(tasks, &limits) {
                prop_assert!(span.range.end - span.range.start <= largest);
                let mut bytes = vec![false; (span.range.end - span.range.start) as usize];
                for task in &span.tasks {
                    for run in task.nest().runs() {
                        prop_assert!(span.range.start <= run.src && run.src + run.len <= span.range.end);
                        for i in 0..run.len {
                            found.push((run.src + i, run.dst + i));
                            bytes[(run.src + i - span.range.start) as usize] = true;
                        }
                    }
                }
                let longest = bytes.split(|wanted| *wanted).map(<[bool]>::len).max().unwrap_or(0);
                prop_assert!(longest as u64 <= gap, "a gap of {longest} in {:?}", span.range);
            }
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
