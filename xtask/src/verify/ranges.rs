//! Byte ranges of sessions: what holds a source, and what was read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use restage_plan::Source;
use restage_transport::Read;

/// Sorted ranges of each session, in bytes; those that touch are one.
pub type Ranges = BTreeMap<Arc<str>, Vec<Range<u64>>>;

/// Joins ranges. Empty ones hold nothing and are left out.
pub fn join(ranges: impl IntoIterator<Item = (Arc<str>, Range<u64>)>) -> Ranges {
    let mut all = Ranges::new();
    for (session, range) in ranges.into_iter().filter(|(_, range)| !range.is_empty()) {
        all.entry(session).or_default().push(range);
    }
    for list in all.values_mut() {
        list.sort_unstable_by_key(|range| range.start);
        list.dedup_by(|next, before| {
            let joined = next.start <= before.end;
            if joined {
                before.end = before.end.max(next.end);
            }
            joined
        });
    }
    all
}

/// Where sources lie, by their names.
///
/// # Errors
///
/// A shard whose size does not fit in 64 bits.
pub fn of_sources<'a>(sources: impl IntoIterator<Item = (&'a str, &'a Source)>) -> Result<Ranges> {
    let mut all = Vec::new();
    for (name, source) in sources {
        for shard in &source.shards {
            let length = shard.region.numel().and_then(|n| source.dtype.bytes(n as u64));
            let end = length.and_then(|n| shard.addr.checked_add(n));
            let end = end.with_context(|| format!("a shard of {name} is too large"))?;
            all.push((shard.session.clone(), shard.addr..end));
        }
    }
    Ok(join(all))
}

/// What was read.
pub fn of_reads<'a>(reads: impl IntoIterator<Item = &'a Read>) -> Ranges {
    join(reads.into_iter().map(|r| (r.session.clone(), r.src..r.src.saturating_add(r.len))))
}

/// The first range of `inner` that is not inside of one of `outer`, in words.
pub fn first_outside(inner: &Ranges, outer: &Ranges) -> Option<String> {
    inner.iter().find_map(|(session, list)| {
        let holds = |range: &Range<u64>| {
            let around = outer.get(session).into_iter().flatten();
            around.into_iter().any(|o| o.start <= range.start && range.end <= o.end)
        };
        let outside = list.iter().find(|range| !holds(range))?;
        Some(format!("bytes {}..{} of {session}", outside.start, outside.end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &[(u64, u64)]) -> Ranges {
        join(list.iter().map(|&(start, end)| ("s".into(), start..end)))
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_joined() {
        let joined = ranges(&[(8, 12), (0, 4), (4, 6), (2, 3), (20, 20)]);
        assert_eq!(joined["s"], [0..6, 8..12]);
        assert_eq!(ranges(&[(3, 3)]), Ranges::new());
    }

    #[test]
    fn what_is_outside_is_named() {
        let outer = ranges(&[(0, 6), (8, 12)]);
        assert_eq!(first_outside(&ranges(&[(1, 6), (8, 9)]), &outer), None);
        assert_eq!(first_outside(&ranges(&[(5, 9)]), &outer).unwrap(), "bytes 5..9 of s");
        assert_eq!(first_outside(&ranges(&[(0, 1)]), &Ranges::new()).unwrap(), "bytes 0..1 of s");
    }
}
