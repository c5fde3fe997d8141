//! Captures and a catalog to a plan.
//!
//! resolve (replay each chain) -> intersect (needed nests x tiles) -> spread (replicas over sessions) ->
//! serve (bytes; exact or staged, by cost) -> assemble (merged across copies) -> prove (coverage).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use restage_geometry::{Captured, Copy};
use thiserror::Error;

use crate::assemble::assemble;
use crate::limits::Limits;
use crate::need::need;
use crate::order::WriteOrder;
use crate::plan::{Plan, Reason, Refusal};
use crate::prove::prove;
use crate::serve::Server;
use crate::source::{Catalog, Source};
use crate::spread::{ByPlace, Sessions, Spread};

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
    let by_source = by_source(captured, catalog);
    let sessions = Sessions::new(by_source.iter().filter_map(|s| s.published));
    let mut spread = Spread::new(&sessions);
    let server = Server { order: &order, limits, sessions: &sessions };
    let mut served = Vec::with_capacity(by_source.len());
    let mut segments = Vec::new();
    let mut refused = Vec::new();
    let mut refuse = |name: &Arc<str>, params: &mut dyn Iterator<Item = usize>, mut reason| {
        if let Reason::Gap { absent, .. } = &mut reason {
            *absent = catalog.sessions_without(name);
        }
        refused.push(refusal(name, params, captured, reason));
    };
    // Sources with a choice of sessions wait until all load without one is known; the others are done with at once.
    let (mut waiting, mut places) = (Vec::new(), Vec::new());
    for Taken { name, mut copies, published } in by_source {
        if captured.unsupported.contains_key(name) {
            continue;
        }
        copies.sort_by_key(|(_, c)| (order[c.param], c.dest.offset));
        let found = need(name, &copies, captured, &writes, published, limits);
        let found = found.and_then(|need| {
            let first = spread.first(&need);
            if need.tiles.have_replicas() {
                waiting.push(need);
                places.push(first);
                return Ok(());
            }
            served.push(server.serve(&need, &first, served.len(), &mut segments)?);
            Ok(())
        });
        if let Err(reason) = found {
            refuse(name, &mut copies.iter().map(|(_, c)| c.param), reason);
        }
    }
    spread.choose(&waiting, &mut places);
    for (need, places) in waiting.iter().zip(&places) {
        match server.serve(need, places, served.len(), &mut segments) {
            Ok(source) => served.push(source),
            Err(reason) => refuse(&need.name, &mut need.copies.iter().map(|c| c.param), reason),
        }
    }
    for (name, unsupported) in &captured.unsupported {
        let reason = Reason::Unsupported { op: unsupported.op.clone() };
        let copies = captured.copies.iter().filter(|c| c.source == *name).map(|c| c.param);
        refuse(name, &mut unsupported.params.iter().copied().chain(copies), reason);
    }
    refused.sort_by(|a, b| a.source.cmp(&b.source));
    let mut plan = assemble(served, segments, &sessions, captured, &order, &writes, limits);
    plan.refused = refused;
    prove(&mut plan)?;
    Ok(plan)
}

/// A source that copies are taken from.
struct Taken<'a> {
    name: &'a Arc<str>,
    /// Copies with their index in the capture.
    copies: Vec<(usize, &'a Copy)>,
    published: Option<&'a Source>,
}

/// The copies by their sources, in the order of names. The capture's own list of sources and the catalog are in that
/// order too and are walked beside each other: names are long and much alike, so that looking each up costs more.
fn by_source<'a>(captured: &'a Captured, catalog: &'a Catalog) -> Vec<Taken<'a>> {
    let known = captured.sources.keys().map(|name| Taken { name, copies: Vec::new(), published: None });
    let mut all: Vec<Taken<'a>> = known.collect();
    let mut numbers: ByPlace = all.iter().enumerate().map(|(at, s)| (s.name.as_ptr(), at)).collect();
    let mut unlisted: HashMap<&str, usize> = HashMap::new();
    for (at, copy) in captured.copies.iter().enumerate() {
        let number = *numbers.entry(copy.source.as_ptr()).or_insert_with(|| {
            let listed = all[..captured.sources.len()].binary_search_by(|s| s.name.cmp(&copy.source));
            listed.unwrap_or_else(|_| {
                *unlisted.entry(&copy.source).or_insert_with(|| {
                    all.push(Taken { name: &copy.source, copies: Vec::new(), published: None });
                    all.len() - 1
                })
            })
        });
        all[number].copies.push((at, copy));
    }
    all.retain(|s| !s.copies.is_empty());
    all.sort_by(|a, b| a.name.cmp(b.name));
    let mut published = catalog.iter().peekable();
    for source in &mut all {
        while published.next_if(|(name, _)| *name < &**source.name).is_some() {}
        source.published = published.next_if(|(name, _)| *name == &**source.name).map(|(_, found)| found);
    }
    all
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
