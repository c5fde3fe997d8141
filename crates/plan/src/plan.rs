//! What a plan is made of.

use std::sync::Arc;

use restage_geometry::{Dtype, Fill, GatherError, OpError, Param, Region, ValueOp};
use restage_nest::{Nest, NestError, Run};
use thiserror::Error;

/// Where the bytes of a segment land.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A parameter, by index in [`Plan::params`].
    Param(usize),
    /// A staging buffer, by index in [`Plan::stagings`].
    Staging(usize),
}

/// Byte runs of one shard, and where they land.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Index in [`Plan::sessions`].
    pub session: usize,
    /// Index in [`Plan::sources`].
    pub source: usize,
    /// Where they land.
    pub target: Target,
    /// The runs, in bytes: source positions are addresses of the session, destinations offsets in the target.
    pub nest: Nest,
}

/// A buffer that bytes are read into before they are copied to their parameters. A source may have several;
/// they can be filled, replayed and freed one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staging {
    /// Index in [`Plan::sources`].
    pub source: usize,
    /// Size of the buffer, in bytes.
    pub bytes: u64,
    /// Why the source is not read straight to its parameters.
    pub reason: StagingReason,
    /// The copies that follow.
    pub replays: Vec<ReplayStep>,
}

/// Why something is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StagingReason {
    /// A copy needs more descriptors than the bound: stretches of the source, or all of it, are read and
    /// replayed.
    OverBound {
        /// Descriptors that the worst copy needs.
        descriptors: u64,
        /// The bound.
        bound: u64,
    },
    /// Bytes that do not fall on the alignment are read with their surroundings.
    Alignment,
    /// Read as stretches the source takes fewer bytes, because several copies need the same, or as many bytes in
    /// fewer descriptors.
    Cheaper,
    /// Values change on their way: a cast or another value operation.
    Conversion,
}

/// A local copy from a staging buffer to a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayStep {
    /// Index in [`Plan::params`].
    pub param: usize,
    /// Type of the staged elements.
    pub from: Dtype,
    /// What is done to each element, first to last, ending with elements of type `to`; nothing for a plain copy.
    pub values: Vec<ValueOp>,
    /// Type of the parameter's elements.
    pub to: Dtype,
    /// The copies, in elements of either side.
    pub nests: Vec<Nest>,
}

/// A write that a later one replaced, in part or as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Overwritten {
    /// Index in [`Plan::params`].
    pub param: usize,
    /// The source whose elements were replaced, or `a constant`.
    pub writer: String,
    /// Bytes of the parameter that do not hold what it wrote.
    pub bytes: u64,
}

/// A source that is not read, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The source.
    pub source: Arc<str>,
    /// Names of the parameters that lack it, sorted.
    pub params: Vec<String>,
    /// Why.
    pub reason: Reason,
}

/// Why a source is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reason {
    /// The loader used an operation that needs values, and it is not known or not to be replayed.
    #[error("the loader applies {op}, which moves no data as it is")]
    Unsupported {
        /// The operation.
        op: String,
    },
    /// No session publishes it.
    #[error("is not published")]
    NotPublished,
    /// The loader took it for something else than what is published.
    #[error("expected {expected_dtype} {expected_shape:?}, found {found_dtype} {found_shape:?}")]
    Differs {
        /// Type that the loader expects.
        expected_dtype: Dtype,
        /// Shape that it expects, in elements.
        expected_shape: Vec<i64>,
        /// Published type.
        found_dtype: Dtype,
        /// Published shape, in elements.
        found_shape: Vec<i64>,
    },
    /// torch rejects the chain.
    #[error("{0}")]
    Rejected(OpError),
    /// The copy cannot be written down.
    #[error("{0}")]
    Gather(GatherError),
    /// Some elements lie in no shard.
    #[error("{missing} of the elements needed by {param} lie in no shard: {}{}", boxes(.holes), without(.absent))]
    Gap {
        /// The parameter.
        param: String,
        /// Elements needed that no shard holds.
        missing: i64,
        /// Boxes of the source that no shard holds, in elements.
        holes: Vec<Region>,
        /// Sessions of the catalog that publish nothing of the source, sorted: the ones to look at first.
        absent: Vec<Arc<str>>,
    },
    /// Two sessions publish the same box and say that its bytes differ.
    #[error("replicas of {region} differ: {} has digest {}, {} has {}", sessions[0], digests[0], sessions[1], digests[1])]
    Digests {
        /// The box, in elements.
        region: Region,
        /// Two sessions that hold it.
        sessions: [Arc<str>; 2],
        /// What each says of its bytes.
        digests: [Arc<str>; 2],
    },
    /// Bytes that no aligned descriptor can reach.
    #[error(
        "byte {addr} of session {session} cannot be read at an alignment of {alignment} without leaving its shard"
    )]
    Alignment {
        /// The session.
        session: Arc<str>,
        /// Address of the byte.
        addr: u64,
        /// The alignment asked for, in bytes.
        alignment: u64,
    },
    /// What has to be staged does not fit.
    #[error("{needed} bytes have to be staged at once, and the limit is {limit}")]
    Staging {
        /// Bytes of the smallest part that cannot be divided.
        needed: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A cut falls inside a block of a packed dtype, or a position does not fit in 64 bits.
    #[error("{0}")]
    Bytes(NestError),
    /// The parameter has another dtype, and conversion was not asked for or is not possible.
    #[error("{param} holds {to} and the source {from}: conversion {}", if *.possible { "was not asked for" } else { "is not possible" })]
    Conversion {
        /// The parameter.
        param: String,
        /// Type of the elements that the loader copies.
        from: Dtype,
        /// Type of the parameter.
        to: Dtype,
        /// Whether it could be converted.
        possible: bool,
    },
    /// What a plan that was made before and written down says, where its file has only the words.
    #[error("{text}")]
    Recorded {
        /// Which kind of reason it is, in one word.
        kind: String,
        /// The reason.
        text: String,
    },
}

/// Items shown of a list in a reason.
const SHOWN: usize = 4;

fn boxes(holes: &[Region]) -> String {
    list(holes.iter().map(Region::to_string), holes.len())
}

fn without(sessions: &[Arc<str>]) -> String {
    match sessions.len() {
        0 => String::new(),
        n => format!("; nothing of it is published by {}", list(sessions.iter().map(|s| s.to_string()), n)),
    }
}

fn list(items: impl Iterator<Item = String>, len: usize) -> String {
    let shown: Vec<String> = items.take(SHOWN).collect();
    let more = len.saturating_sub(shown.len());
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// Counters of a transfer. Exact counts what the copies need, planned what is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Contiguous runs that the copies need, merged within each copy.
    pub exact_descriptors: u64,
    /// Bytes that the copies need.
    pub exact_bytes: u64,
    /// Entries that the transport is given: flat runs, or strided segments where it takes them whole.
    pub descriptors: u64,
    /// Bytes that are read.
    pub bytes: u64,
}

impl Counters {
    /// Descriptors that staging saves.
    pub fn descriptors_saved(&self) -> u64 {
        self.exact_descriptors.saturating_sub(self.descriptors)
    }

    /// Bytes that are read beyond those needed.
    pub fn extra_wire_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.exact_bytes)
    }

    pub(crate) fn add(&mut self, other: &Counters) {
        self.exact_descriptors += other.exact_descriptors;
        self.exact_bytes += other.exact_bytes;
        self.descriptors += other.descriptors;
        self.bytes += other.bytes;
    }
}

/// A source that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSummary {
    /// Its name.
    pub name: Arc<str>,
    /// Copies that take from it.
    pub copies: usize,
    /// Its counters.
    pub counters: Counters,
    /// True when a copy exceeds the descriptor bound and staging the source would not help, or may not be done,
    /// so that it stays above the bound all the same.
    pub unbounded: bool,
}

/// How much of a parameter the plan provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Bytes of the parameter.
    pub bytes: u64,
    /// Bytes that are read, replayed or filled, each exactly once.
    pub covered: u64,
}

impl Coverage {
    /// True when nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.covered == self.bytes
    }
}

/// A transfer plan. See the crate's documentation for what it is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Sessions that are read from, sorted.
    pub sessions: Vec<Arc<str>>,
    /// Parameters, sorted by name.
    pub params: Vec<Param>,
    /// Sources that are read, sorted by name.
    pub sources: Vec<SourceSummary>,
    /// What is read, sorted by target and position in it.
    pub segments: Vec<Segment>,
    /// Staging buffers, in the order of their sources.
    pub stagings: Vec<Staging>,
    /// Constants, by parameter index of this plan. They meet nothing else that is written, so that their order
    /// does not matter.
    pub fills: Vec<Fill>,
    /// Writes of the loader that a later one replaced, sorted; the plan does not carry them out.
    pub overwritten: Vec<Overwritten>,
    /// Sources that are not read, sorted by name.
    pub refused: Vec<Refusal>,
    /// Coverage of each parameter, in the order of `params`.
    pub coverage: Vec<Coverage>,
    /// Number of copies that are planned.
    pub copies: usize,
    /// True when the transport takes strided segments whole.
    pub strided: bool,
    /// Most bytes of staging at any one time, where there is a limit. No single staging is larger.
    pub staging_bytes: Option<u64>,
}

impl Plan {
    /// Counters of the whole plan.
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for source in &self.sources {
            all.add(&source.counters);
        }
        all
    }

    /// Bytes and descriptors that are read from each session, in the order of [`Plan::sessions`].
    pub fn session_counters(&self) -> Vec<(u64, u64)> {
        let mut out = vec![(0, 0); self.sessions.len()];
        for s in &self.segments {
            // Lowering has computed both without overflow.
            out[s.session].0 += s.nest.total().unwrap_or(u64::MAX);
            out[s.session].1 += if self.strided { 1 } else { s.nest.run_count().unwrap_or(u64::MAX) };
        }
        out
    }

    /// Names of the sources that stay exact above the descriptor bound.
    pub fn unbounded(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().filter(|s| s.unbounded).map(|s| &*s.name)
    }

    /// The stagings of sources over the descriptor bound, with the sources' names.
    pub fn full_pulls(&self) -> impl Iterator<Item = (&str, &Staging)> {
        let over = |s: &&Staging| matches!(s.reason, StagingReason::OverBound { .. });
        self.stagings.iter().filter(over).map(|s| (&*self.sources[s.source].name, s))
    }

    /// Covered bytes over wanted bytes; 1 when nothing is wanted.
    pub fn coverage_ratio(&self) -> f64 {
        let (covered, bytes) = self
            .coverage
            .iter()
            .fold((0u128, 0u128), |(c, b), x| (c + x.covered as u128, b + x.bytes as u128));
        if bytes == 0 { 1.0 } else { covered as f64 / bytes as f64 }
    }

    /// Names of the parameters that are not provided in full.
    pub fn incomplete(&self) -> impl Iterator<Item = &str> {
        self.params.iter().zip(&self.coverage).filter(|(_, c)| !c.is_complete()).map(|(p, _)| p.name.as_str())
    }

    /// True when nothing is refused and every parameter is provided in full.
    pub fn is_complete(&self) -> bool {
        self.refused.is_empty() && self.coverage.iter().all(Coverage::is_complete)
    }

    /// The flat form: one contiguous (session, target, run) at a time, in the order of the segments.
    pub fn descriptors(&self) -> impl Iterator<Item = (&str, Target, Run)> {
        self.segments
            .iter()
            .flat_map(move |s| s.nest.runs().map(move |run| (&*self.sessions[s.session], s.target, run)))
    }

    /// Bytes of all parameters.
    pub fn param_bytes(&self) -> u64 {
        self.coverage.iter().map(|c| c.bytes).sum()
    }
}
