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

/// A plan of these sources, without refusals and coverage.
pub(crate) fn assemble(
    mut served: Vec<Served>,
    mut segments: Vec<Segment>,
    all: &Sessions<'_>,
    captured: &Captured,
    order: &[usize],
    writes: &WriteOrder,
    limits: &Limits,
) -> Plan {
    // Sessions that nothing is read from are left out, and the others renumbered.
    let mut used = vec![usize::MAX; all.names.len()];
    for segment in &segments {
        used[segment.session] = 0;
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
        segments: Vec::new(),
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
    // Number in the plan, and first staging, of each source by the number that it was served under.
    let mut numbers = vec![(0, 0); served.len()];
    served.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    for (source, s) in served.into_iter().enumerate() {
        numbers[s.number] = (source, plan.stagings.len());
        plan.copies += s.copies;
        let (name, copies, counters, unbounded) = (s.name, s.copies, s.counters, s.unbounded);
        plan.sources.push(SourceSummary { name, copies, counters, unbounded });
        for (bytes, reason, replays) in s.stagings {
            plan.stagings.push(Staging { source, bytes, reason, replays });
        }
    }
    for segment in &mut segments {
        let (source, first) = numbers[segment.source];
        segment.session = used[segment.session];
        segment.source = source;
        if let Target::Staging(s) = &mut segment.target {
            *s += first;
        }
    }
    plan.segments = segments;
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
    segments.sort_unstable_by(|a, b| {
        (a.target, a.session, a.nest.dst, &a.nest, a.source)
            .cmp(&(b.target, b.session, b.nest.dst, &b.nest, b.source))
    });
    // What is kept gathers at the front, so that the segments are in memory once.
    let (mut kept, mut from) = (0, 0);
    let mut first_of_target = 0;
    while let Some(Segment { target, session, .. }) = segments.get(from) {
        let of_group = |s: &&Segment| s.target == *target && s.session == *session;
        let to = from + segments[from..].iter().take_while(of_group).count();
        let target = *target;
        match joined(&segments[from..to]) {
            None => {
                for at in from..to {
                    segments.swap(kept, at);
                    kept += 1;
                }
            }
            Some(fewer) => {
                for segment in fewer {
                    segments[kept] = segment;
                    kept += 1;
                }
            }
        }
        from = to;
        if segments.get(from).is_none_or(|s| s.target != target) {
            segments[first_of_target..kept].sort_unstable_by(|a, b| {
                (a.nest.dst, &a.nest, a.session).cmp(&(b.nest.dst, &b.nest, b.session))
            });
            first_of_target = kept;
        }
    }
    segments.truncate(kept);
}

/// The segments of one session and one target in fewer, where some continue each other.
fn joined(group: &[Segment]) -> Option<Vec<Segment>> {
    let one_source = group.windows(2).all(|w| w[0].source == w[1].source);
    let first = group.first()?;
    let staged = matches!(first.target, Target::Staging(_));
    if group.len() < 2 || one_source && staged || !any_continues(group) {
        return None;
    }
    let mut nests: Vec<Nest> = group.iter().map(|s| s.nest.clone()).collect();
    coalesce(&mut nests);
    if nests.len() == group.len() {
        return None;
    }
    let source: HashMap<(u64, u64), usize> =
        group.iter().map(|s| ((s.nest.src, s.nest.dst), s.source)).collect();
    let segment = |nest: Nest| {
        // A merged nest starts where one of its parts did.
        let source = source.get(&(nest.src, nest.dst)).copied().unwrap_or(first.source);
        Segment { session: first.session, source, target: first.target, nest }
    };
    Some(nests.into_iter().map(segment).collect())
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
