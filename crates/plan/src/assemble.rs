//! Sources that were served, put together to a plan: sessions renumbered, segments of one parameter merged
//! across copies and sources, everything sorted.

use std::collections::HashMap;

use restage_geometry::{Captured, Fill};
use restage_nest::{Nest, coalesce};

use crate::limits::Limits;
use crate::order::WriteOrder;
use crate::plan::{Overwritten, Plan, Segment, SourceSummary, Staging, Target};
use crate::serve::Served;
use crate::spread::Sessions;

/// A plan of these sources, in their order, without refusals and coverage.
pub(crate) fn assemble(
    served: Vec<Served>,
    all: &Sessions<'_>,
    captured: &Captured,
    order: &[usize],
    writes: &WriteOrder,
    limits: &Limits,
) -> Plan {
    // Sessions that nothing is read from are left out, and the others renumbered.
    let mut used = vec![usize::MAX; all.names.len()];
    for (session, _, _) in served.iter().flat_map(|s| &s.segments) {
        used[*session] = 0;
    }
    let mut sessions = Vec::new();
    for (at, number) in used.iter_mut().enumerate().filter(|(_, n)| **n == 0) {
        *number = sessions.len();
        sessions.push(all.names[at].clone());
    }
    let mut params = captured.params.clone();
    params.sort_by(|a, b| a.name.cmp(&b.name));
    let mut plan = Plan {
        sessions,
        params,
        sources: Vec::with_capacity(served.len()),
        segments: Vec::with_capacity(served.iter().map(|s| s.segments.len()).sum()),
        stagings: Vec::new(),
        fills: writes.fills(captured).map(|f| Fill { param: order[f.param], ..f }).collect(),
        overwritten: Vec::with_capacity(writes.overwritten.len()),
        refused: Vec::new(),
        coverage: Vec::new(),
        copies: 0,
        strided: limits.strided,
        staging_bytes: limits.staging_bytes,
    };
    plan.fills.sort_by_key(|f| (f.param, f.dest.offset));
    let lost = writes.overwritten.iter();
    plan.overwritten.extend(lost.map(|o| Overwritten { param: order[o.param], ..o.clone() }));
    plan.overwritten.sort();
    for (source, s) in served.into_iter().enumerate() {
        let first = plan.stagings.len();
        plan.copies += s.copies;
        let (name, copies, counters, unbounded) = (s.name, s.copies, s.counters, s.unbounded);
        plan.sources.push(SourceSummary { name, copies, counters, unbounded });
        for (bytes, reason, replays) in s.stagings {
            plan.stagings.push(Staging { source, bytes, reason, replays });
        }
        for (session, target, nest) in s.segments {
            let target = match target {
                Target::Staging(s) => Target::Staging(first + s),
                param => param,
            };
            plan.segments.push(Segment { session: used[session], source, target, nest });
        }
    }
    merge(&mut plan.segments);
    for s in &plan.segments {
        // Lowering has computed it without overflow, and merging does not add runs.
        let descriptors = if plan.strided { 1 } else { s.nest.run_count().unwrap_or(u64::MAX) };
        plan.sources[s.source].counters.descriptors += descriptors;
    }
    plan
}

/// Merges what continues each other in one session and one parameter, and sorts by target and position. A merged
/// segment belongs to the source whose bytes come first.
fn merge(segments: &mut Vec<Segment>) {
    segments.sort_by(|a, b| {
        (a.target, a.session, a.nest.dst, &a.nest).cmp(&(b.target, b.session, b.nest.dst, &b.nest))
    });
    let mut out: Vec<Segment> = Vec::with_capacity(segments.len());
    let mut group: Vec<Segment> = Vec::new();
    let mut rest = std::mem::take(segments).into_iter().peekable();
    while let Some(segment) = rest.next() {
        let last = rest.peek().is_none_or(|n| (n.target, n.session) != (segment.target, segment.session));
        group.push(segment);
        if last {
            join(&mut group);
            out.append(&mut group);
        }
    }
    out.sort_by(|a, b| (a.target, a.nest.dst, &a.nest).cmp(&(b.target, b.nest.dst, &b.nest)));
    *segments = out;
}

/// Joins the segments of one session and one target.
fn join(group: &mut Vec<Segment>) {
    let one_source = group.windows(2).all(|w| w[0].source == w[1].source);
    let staged = matches!(group[0].target, Target::Staging(_));
    if group.len() < 2 || one_source && staged || !any_continues(group) {
        return;
    }
    let mut nests: Vec<Nest> = group.iter().map(|s| s.nest.clone()).collect();
    coalesce(&mut nests);
    if nests.len() == group.len() {
        return;
    }
    let (session, target) = (group[0].session, group[0].target);
    let source: HashMap<(u64, u64), usize> =
        group.iter().map(|s| ((s.nest.src, s.nest.dst), s.source)).collect();
    let first = group[0].source;
    *group = nests
        .into_iter()
        .map(|nest| {
            // A merged nest starts where one of its parts did.
            let source = source.get(&(nest.src, nest.dst)).copied().unwrap_or(first);
            Segment { session, source, target, nest }
        })
        .collect();
}

/// True when a nest may begin where another ends, in its run or its outermost loop. The group is sorted by
/// destination.
fn any_continues(group: &[Segment]) -> bool {
    let starts = |nest: &Nest, src: i64, dst: i64| {
        let at = nest.src.checked_add_signed(src).zip(nest.dst.checked_add_signed(dst));
        at.is_some_and(|(src, dst)| {
            let from = group.partition_point(|s| s.nest.dst < dst);
            group[from..].iter().take_while(|s| s.nest.dst == dst).any(|s| s.nest.src == src)
        })
    };
    group.iter().map(|s| &s.nest).any(|nest| {
        let run = nest.run as i64;
        let outer = nest.loops.first().is_some_and(|l| {
            let count = l.count as i64;
            let after = starts(nest, l.src.wrapping_mul(count), l.dst.wrapping_mul(count));
            after || starts(nest, -l.src, -l.dst)
        });
        starts(nest, run, run) || outer
    })
}
