//! How each parameter gets its bytes.

use std::collections::BTreeMap;
use std::fmt;

use restage_nest::Nest;

use super::name::{Name, counted, group};
use crate::plan::{Plan, StagingReason, Target};

/// Everything that one parameter gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Index in [`Plan::params`].
    pub param: usize,
    /// What it gets, by source and way; constants last.
    pub parts: Vec<Part>,
    /// Bytes that nothing provides.
    pub missing: u64,
}

/// What one parameter gets from one source in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Index in [`Plan::sources`]; none for a constant.
    pub source: Option<usize>,
    /// In which way.
    pub how: How,
    /// Entries of the transport that read straight to the parameter; local copies where it is staged.
    pub descriptors: u64,
    /// Bytes of the parameter that it fills.
    pub bytes: u64,
    /// Sessions that they come from.
    pub sessions: usize,
}

/// A way in which bytes come to a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum How {
    /// Contiguous runs that are read straight to it.
    Exact,
    /// Strided segments that are read straight to it.
    Strided,
    /// A local copy from a staging that holds more than is needed, or other bytes in between.
    Staged,
    /// A local copy from a staging that changes values: a cast or another operation.
    Converted,
    /// A constant.
    Constant,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            How::Exact => "exact",
            How::Strided => "strided",
            How::Staged => "staged",
            How::Converted => "converted",
            How::Constant => "constant",
        })
    }
}

/// How every parameter is served, in the order of [`Plan::params`].
pub fn served(plan: &Plan) -> Vec<Served> {
    type Sums = (u64, u64, Vec<usize>);
    let mut parts: Vec<BTreeMap<(Option<usize>, How), Sums>> = vec![BTreeMap::new(); plan.params.len()];
    let mut add = |param: usize, key, descriptors: u64, bytes: u64, sessions: &[usize]| {
        let sums = parts[param].entry(key).or_default();
        sums.0 = sums.0.saturating_add(descriptors);
        sums.1 = sums.1.saturating_add(bytes);
        sums.2.extend_from_slice(sessions);
    };
    let mut staged_from: Vec<Vec<usize>> = vec![Vec::new(); plan.stagings.len()];
    for s in &plan.segments {
        match s.target {
            Target::Param(p) => {
                let how = if s.nest.loops.is_empty() { How::Exact } else { How::Strided };
                let bytes = s.nest.total().unwrap_or(u64::MAX);
                add(p, (Some(s.source), how), plan.entries(&s.nest), bytes, &[s.session]);
            }
            Target::Staging(at) => staged_from[at].push(s.session),
        }
    }
    for (staging, sessions) in plan.stagings.iter().zip(&mut staged_from) {
        sessions.sort_unstable();
        sessions.dedup();
        for step in &staging.replays {
            let how = if step.values.is_empty() { How::Staged } else { How::Converted };
            let elements: u64 = step.nests.iter().filter_map(|n| n.total().ok()).fold(0, u64::saturating_add);
            let bytes = step.to.bytes(elements).unwrap_or(u64::MAX);
            add(step.param, (Some(staging.source), how), step.nests.len() as u64, bytes, sessions);
        }
    }
    for fill in &plan.fills {
        let bytes = (fill.dest.numel() as u64).saturating_mul(fill.element.len() as u64);
        // After every source.
        add(fill.param, (None, How::Constant), 1, bytes, &[]);
    }
    let one = |(param, map): (usize, BTreeMap<(Option<usize>, How), Sums>)| {
        let mut list: Vec<Part> = map
            .into_iter()
            .map(|((source, how), (descriptors, bytes, mut sessions))| {
                sessions.sort_unstable();
                sessions.dedup();
                Part { source, how, descriptors, bytes, sessions: sessions.len() }
            })
            .collect();
        list.sort_by_key(|part| (part.source.is_none(), part.source, part.how));
        let coverage = plan.coverage[param];
        Served { param, parts: list, missing: coverage.bytes.saturating_sub(coverage.covered) }
    };
    parts.into_iter().enumerate().map(one).collect()
}

impl Plan {
    /// Entries that a segment of this nest gives to the transport.
    pub(crate) fn entries(&self, nest: &Nest) -> u64 {
        if self.strided { 1 } else { nest.run_count().unwrap_or(u64::MAX) }
    }
}

impl Part {
    /// One line: the way, the descriptors, the bytes and the source.
    pub(super) fn line(&self, plan: &Plan) -> String {
        let bytes = group(self.bytes);
        let Some(source) = self.source.and_then(|s| plan.sources.get(s)) else {
            return format!("{} {bytes} bytes", self.how);
        };
        let (name, n) = (Name(&source.name), self.descriptors);
        let entries = match self.how {
            How::Staged | How::Converted => counted(n, "local copy", "local copies"),
            _ => counted(n, "descriptor", "descriptors"),
        };
        let sessions = counted(self.sessions as u64, "session", "sessions");
        format!("{} {bytes} bytes in {entries} of {name}, {sessions}", self.how)
    }
}

/// Why a staging exists, in words.
pub(super) fn why(reason: StagingReason) -> String {
    match reason {
        StagingReason::OverBound { descriptors, bound } => {
            format!("a copy needs {} descriptors, over {}", group(descriptors), group(bound))
        }
        StagingReason::Alignment => "its bytes do not fall on the alignment".to_owned(),
        StagingReason::Cheaper => "read as stretches it costs less".to_owned(),
        StagingReason::Conversion => "values are changed on their way".to_owned(),
    }
}
