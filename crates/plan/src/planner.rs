//! Captures and a catalog to a plan.
//!
//! resolve (replay each chain) -> intersect (needed nests x tiles) -> spread (replicas over sessions) ->
//! bound (exact, or the whole source staged) -> lower (bytes) -> prove (coverage).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use restage_geometry::{Captured, Copy, Fill};
use restage_nest::{Nest, NestError, coalesce, merged_runs};
use thiserror::Error;

use crate::lower::{CopyNeed, Need, need};
use crate::order::WriteOrder;
use crate::plan::{
    Counters, Overwritten, Plan, Reason, Refusal, ReplayStep, Segment, SourceSummary, Staging, StagingReason,
    Target,
};
use crate::prove::prove;
use crate::source::Catalog;

/// Copies whose nests have at most this many runs are also merged run by run. Neighbours that no loop
/// expresses are rare (the end of one tile continuing in the next of the same session), and finding them costs
/// time that grows with rows.
const MERGE_RUNS: u64 = 1024;

/// What a plan may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Descriptors that one copy may need before its whole source is staged instead.
    pub max_descriptors: u64,
    /// True when the transport takes a strided segment as one descriptor.
    pub strided: bool,
    /// True when casts and other value operations may be carried out locally, on what was read; false refuses
    /// the sources that need them, by name.
    pub convert: bool,
}

impl Default for Limits {
    /// 64 descriptors a copy, flat, no conversion.
    fn default() -> Self {
        Limits { max_descriptors: 64, strided: false, convert: false }
    }
}

/// Input that no plan can be made from.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A parameter has more bytes than 64 bits can count, or cuts a block of its dtype.
    #[error("parameter {param}: shape {shape:?} is no whole number of blocks, or too large")]
    Param {
        /// The parameter.
        param: String,
        /// Its shape, in elements.
        shape: Vec<i64>,
    },
    /// Two writes meet in a parameter.
    #[error("parameter {param}: {first} and {second} both write byte {at}")]
    WrittenTwice {
        /// The parameter.
        param: String,
        /// One of the writers: a source, or a fill.
        first: String,
        /// The other.
        second: String,
        /// A byte of the parameter near which they meet.
        at: u64,
    },
    /// A fill that leaves its parameter.
    #[error("parameter {param}: {problem}")]
    Fill {
        /// The parameter.
        param: String,
        /// What is wrong.
        problem: restage_geometry::GatherError,
    },
}

/// Plans the transfer of everything that was captured from what the catalog publishes.
///
/// Sources that cannot be provided exactly are refused by name and not read; the others are planned. The
/// result does not depend on the order of parameters or shards, and on that of copies only where two write to
/// the same bytes: then the later one wins, and what it replaced is in [`Plan::overwritten`].
///
/// # Errors
/// [`PlanError`] where the capture itself is impossible: a parameter too large, a copy that writes a byte twice.
pub fn plan(captured: &Captured, catalog: &Catalog, limits: &Limits) -> Result<Plan, PlanError> {
    let order = param_order(captured);
    let writes = WriteOrder::new(captured);
    let mut by_source: BTreeMap<&Arc<str>, Vec<(usize, &Copy)>> = BTreeMap::new();
    for (at, copy) in captured.copies.iter().enumerate() {
        by_source.entry(&copy.source).or_default().push((at, copy));
    }
    let mut needs = Vec::with_capacity(by_source.len());
    let mut refused = Vec::new();
    for (name, mut copies) in by_source {
        if captured.unsupported.contains_key(name) {
            continue;
        }
        copies.sort_by_key(|(_, c)| (order[c.param], c.dest.offset));
        match need(name, &copies, captured, &writes, catalog.get(name), limits) {
            Ok(need) => needs.push(need),
            Err(reason) => {
                let params = copies.iter().map(|(_, c)| c.param);
                refused.push(refusal(name, params, captured, reason));
            }
        }
    }
    for (name, unsupported) in &captured.unsupported {
        let reason = Reason::Unsupported { op: unsupported.op.clone() };
        let copies = captured.copies.iter().filter(|c| c.source == *name).map(|c| c.param);
        refused.push(refusal(name, unsupported.params.iter().copied().chain(copies), captured, reason));
    }

    let sessions = Sessions::new(&needs);
    let chosen = spread(&needs, &sessions);
    let mut builder = Builder { order: &order, limits, sessions: &sessions, sources: Vec::new() };
    for (need, places) in needs.iter().zip(&chosen) {
        match builder.source(need, places) {
            Ok(built) => builder.sources.push((built, need.copies.len())),
            Err(error) => {
                let params = need.copies.iter().map(|c| c.param);
                refused.push(refusal(&need.name, params, captured, Reason::Bytes(error)));
            }
        }
    }
    refused.sort_by(|a, b| a.source.cmp(&b.source));
    let mut plan = builder.finish(captured, &writes, refused);
    prove(&mut plan)?;
    Ok(plan)
}

/// Position of each captured parameter in the order of names.
fn param_order(captured: &Captured) -> Vec<usize> {
    let mut by_name: Vec<usize> = (0..captured.params.len()).collect();
    by_name.sort_by_key(|&p| &captured.params[p].name);
    let mut order = vec![0; by_name.len()];
    for (at, &p) in by_name.iter().enumerate() {
        order[p] = at;
    }
    order
}

fn refusal(
    name: &Arc<str>,
    params: impl Iterator<Item = usize>,
    captured: &Captured,
    reason: Reason,
) -> Refusal {
    let params: BTreeSet<&str> = params.map(|p| captured.params[p].name.as_str()).collect();
    Refusal { source: name.clone(), params: params.into_iter().map(str::to_owned).collect(), reason }
}

/// Every session that is published by, numbered in the order of their names.
struct Sessions<'a> {
    names: Vec<&'a Arc<str>>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Sessions<'a> {
    fn new(needs: &'a [Need<'_>]) -> Self {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut names: Vec<&Arc<str>> = Vec::new();
        for shard in needs.iter().flat_map(|n| &n.source.shards) {
            numbers.entry(&shard.session).or_insert_with(|| {
                names.push(&shard.session);
                0
            });
        }
        names.sort();
        for (at, name) in names.iter().enumerate() {
            numbers.insert(name, at);
        }
        Sessions { names, numbers }
    }

    fn number(&self, name: &str) -> usize {
        // Every session of the needs was numbered.
        self.numbers[name]
    }
}

/// Where a tile is read: the session's number and the shard's address in bytes.
type Place = (usize, u64);

/// Chooses a replica for every tile: the largest need first, each to the session that has least so far.
fn spread(needs: &[Need<'_>], sessions: &Sessions<'_>) -> Vec<Vec<Place>> {
    let mut load = vec![0u128; sessions.names.len()];
    let mut open = Vec::new();
    let mut chosen: Vec<Vec<Place>> = Vec::with_capacity(needs.len());
    for (n, need) in needs.iter().enumerate() {
        let packing = need.source.dtype.packing();
        let mut places = Vec::with_capacity(need.load.len());
        for (t, &elements) in need.load.iter().enumerate() {
            let bytes = elements as u128 * packing.bytes as u128 / packing.elements as u128;
            let replicas = need.tiles.replicas(t);
            let first = (sessions.number(&replicas[0].session), replicas[0].addr);
            if replicas.len() == 1 {
                load[first.0] += bytes;
            } else if bytes > 0 {
                open.push((Reverse(bytes), n, t));
            }
            places.push(first);
        }
        chosen.push(places);
    }
    open.sort_unstable();
    for (Reverse(bytes), n, t) in open {
        let places = needs[n].tiles.replicas(t).iter().map(|s| (sessions.number(&s.session), s.addr));
        if let Some(least) = places.min_by_key(|&(session, addr)| (load[session], session, addr)) {
            load[least.0] += bytes;
            chosen[n][t] = least;
        }
    }
    chosen
}

/// A source on its way into the plan: sessions by number, stagings counted from 0.
struct Built {
    name: Arc<str>,
    segments: Vec<(usize, Target, Nest)>,
    stagings: Vec<(u64, StagingReason, Vec<ReplayStep>)>,
    counters: Counters,
    unbounded: bool,
}

struct Builder<'a> {
    order: &'a [usize],
    limits: &'a Limits,
    sessions: &'a Sessions<'a>,
    sources: Vec<(Built, usize)>,
}

/// One copy lowered to bytes, by session.
struct Lowered {
    nests: Vec<(usize, Vec<Nest>)>,
    /// Runs after merging within the copy.
    exact: u64,
    /// Entries that the transport is given.
    descriptors: u64,
    bytes: u64,
}

/// Adds a nest to those of its session. There are few sessions to a copy, and pieces come in their order.
fn by_session(nests: &mut Vec<(usize, Vec<Nest>)>, session: usize, nest: Nest) {
    match nests.iter_mut().rev().find(|(s, _)| *s == session) {
        Some((_, nests)) => nests.push(nest),
        None => nests.push((session, vec![nest])),
    }
}

impl Builder<'_> {
    fn source(&self, need: &Need<'_>, places: &[Place]) -> Result<Built, NestError> {
        let lowered =
            need.copies.iter().map(|copy| self.lower(need, copy, places)).collect::<Result<Vec<_>, _>>()?;
        let mut built = Built {
            name: need.name.clone(),
            segments: Vec::new(),
            stagings: Vec::new(),
            counters: Counters::default(),
            unbounded: false,
        };
        for l in &lowered {
            built.counters.exact_descriptors += l.exact;
            built.counters.exact_bytes += l.bytes;
        }
        // A conversion is staged in any case; the bound is about what goes straight to a parameter.
        let bound = self.limits.max_descriptors;
        let direct = need.copies.iter().zip(&lowered).filter(|(c, _)| !c.converts());
        let worst = direct.map(|(_, l)| l.descriptors).max().unwrap_or(0);
        if worst > bound && need.tiles.are_row_blocks(&need.source.shape) {
            self.full_pull(need, places, StagingReason::OverBound { descriptors: worst, bound }, &mut built)?;
        } else {
            built.unbounded = worst > bound;
            self.exact(need, lowered, &mut built);
        }
        for (_, _, nest) in &built.segments {
            built.counters.bytes += nest.total()?;
            built.counters.descriptors += if self.limits.strided { 1 } else { nest.run_count()? };
        }
        Ok(built)
    }

    fn lower(&self, need: &Need<'_>, copy: &CopyNeed, places: &[Place]) -> Result<Lowered, NestError> {
        let packing = need.source.dtype.packing();
        let mut out =
            Lowered { nests: Vec::with_capacity(copy.pieces.len()), exact: 0, descriptors: 0, bytes: 0 };
        for (t, nest) in &copy.pieces {
            let (session, addr) = places[*t];
            let nest = nest.scaled(packing.elements, packing.bytes, addr)?;
            nest.src_side()?;
            by_session(&mut out.nests, session, nest);
        }
        for (_, nests) in &mut out.nests {
            coalesce(nests);
            let mut runs = 0;
            for nest in nests.iter() {
                runs += nest.run_count()?;
                out.bytes += nest.total()?;
            }
            let single = nests.len() == 1 && nests[0].loops.len() < 2;
            if let Some(merged) = if single { None } else { merged_runs(nests, MERGE_RUNS) } {
                let fewer = (merged.len() as u64) < runs;
                runs = merged.len() as u64;
                if fewer && !self.limits.strided {
                    *nests = merged.iter().map(|r| Nest::contiguous(r.src, r.dst, r.len)).collect();
                }
            }
            out.exact += runs;
            out.descriptors += if self.limits.strided { nests.len() as u64 } else { runs };
        }
        Ok(out)
    }

    fn exact(&self, need: &Need<'_>, lowered: Vec<Lowered>, built: &mut Built) {
        let packing = need.source.dtype.packing();
        for (copy, lowered) in need.copies.iter().zip(lowered) {
            let target = if copy.converts() {
                // The number of staged bytes fits: its elements were counted in 63 bits and floats have no blocks.
                let bytes = copy.numel.saturating_mul(packing.bytes);
                let step = ReplayStep {
                    param: self.order[copy.param],
                    from: need.source.dtype,
                    values: copy.values.clone(),
                    to: copy.dtype,
                    nests: copy.convert.clone(),
                };
                built.stagings.push((bytes, StagingReason::Conversion, vec![step]));
                Target::Staging(built.stagings.len() - 1)
            } else {
                Target::Param(self.order[copy.param])
            };
            for (session, nests) in lowered.nests {
                built.segments.extend(nests.into_iter().map(|n| (session, target, n)));
            }
        }
    }

    /// Reads every row block as a whole into staging and replays the copies from there.
    fn full_pull(
        &self,
        need: &Need<'_>,
        places: &[Place],
        reason: StagingReason,
        built: &mut Built,
    ) -> Result<(), NestError> {
        let dtype = need.source.dtype;
        let bytes_of = |elements: i64| dtype.bytes(elements as u64).ok_or(NestError::Overflow);
        let row: i64 = need.source.shape.iter().skip(1).product();
        let mut nests = Vec::with_capacity(places.len());
        let mut total = 0;
        for (t, (tile, &(session, addr))) in need.tiles.tiles.iter().zip(places).enumerate() {
            let base = need.tiles.replicas(t)[0].region.start();
            let (start, end) = (tile.region.start(), tile.region.end());
            let rows = end.first().map_or(1, |&end| end - start[0]);
            let first = start.first().map_or(0, |&s| s - base[0]);
            let len = bytes_of(rows * row)?;
            let src = bytes_of(first * row)?.checked_add(addr).ok_or(NestError::Overflow)?;
            by_session(&mut nests, session, Nest::contiguous(src, total, len));
            total += len;
        }
        for (session, mut nests) in nests {
            coalesce(&mut nests);
            built.segments.extend(nests.into_iter().map(|n| (session, Target::Staging(0), n)));
        }
        let step = |copy: &CopyNeed| ReplayStep {
            param: self.order[copy.param],
            from: dtype,
            values: copy.values.clone(),
            to: copy.dtype,
            nests: copy.whole.clone(),
        };
        built.stagings.push((total, reason, need.copies.iter().map(step).collect()));
        Ok(())
    }

    fn finish(self, captured: &Captured, writes: &WriteOrder, refused: Vec<Refusal>) -> Plan {
        // Sessions that nothing is read from are left out, and the others renumbered.
        let mut used = vec![usize::MAX; self.sessions.names.len()];
        for (session, _, _) in self.sources.iter().flat_map(|(built, _)| &built.segments) {
            used[*session] = 0;
        }
        let mut sessions = Vec::new();
        for (at, number) in used.iter_mut().enumerate().filter(|(_, n)| **n == 0) {
            *number = sessions.len();
            sessions.push(self.sessions.names[at].clone());
        }
        let mut params = captured.params.clone();
        params.sort_by(|a, b| a.name.cmp(&b.name));
        let mut plan = Plan {
            sessions,
            params,
            sources: Vec::with_capacity(self.sources.len()),
            segments: Vec::new(),
            stagings: Vec::new(),
            fills: writes.fills(captured).map(|f| Fill { param: self.order[f.param], ..f }).collect(),
            overwritten: Vec::with_capacity(writes.overwritten.len()),
            refused,
            coverage: Vec::new(),
            copies: 0,
            strided: self.limits.strided,
        };
        plan.fills.sort_by_key(|f| (f.param, f.dest.offset));
        let lost = writes.overwritten.iter();
        plan.overwritten.extend(lost.map(|o| Overwritten { param: self.order[o.param], ..o.clone() }));
        plan.overwritten.sort();
        for (source, (built, copies)) in self.sources.into_iter().enumerate() {
            let first = plan.stagings.len();
            plan.copies += copies;
            plan.sources.push(SourceSummary {
                name: built.name,
                copies,
                counters: built.counters,
                unbounded: built.unbounded,
            });
            for (bytes, reason, replays) in built.stagings {
                plan.stagings.push(Staging { source, bytes, reason, replays });
            }
            for (session, target, nest) in built.segments {
                let target = match target {
                    Target::Staging(s) => Target::Staging(first + s),
                    param => param,
                };
                plan.segments.push(Segment { session: used[session], source, target, nest });
            }
        }
        plan.segments.sort_by(|a, b| (a.target, a.nest.dst, &a.nest).cmp(&(b.target, b.nest.dst, &b.nest)));
        plan
    }
}
