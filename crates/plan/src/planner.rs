//! Captures and a catalog to a plan.
//!
//! resolve (replay each chain) -> intersect (needed nests x tiles) -> spread (replicas over sessions) ->
//! serve (bytes; exact or staged, by cost) -> assemble (merged across copies) -> prove (coverage).

use std::collections::{BTreeMap, BTreeSet};
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
use crate::source::Catalog;
use crate::spread::{Sessions, Spread};

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
    let sessions = Sessions::new(by_source.keys().filter_map(|name| catalog.get(name)));
    let mut spread = Spread::new(&sessions);
    let server = Server { order: &order, limits, sessions: &sessions };
    let mut served = Vec::with_capacity(by_source.len());
    let mut refused = Vec::new();
    let mut refuse = |name: &Arc<str>, params: &mut dyn Iterator<Item = usize>, mut reason| {
        if let Reason::Gap { absent, .. } = &mut reason {
            *absent = catalog.sessions_without(name);
        }
        refused.push(refusal(name, params, captured, reason));
    };
    // Sources with a choice of sessions wait until all load without one is known; the others are done with at once.
    let (mut waiting, mut places) = (Vec::new(), Vec::new());
    for (name, mut copies) in by_source {
        if captured.unsupported.contains_key(name) {
            continue;
        }
        copies.sort_by_key(|(_, c)| (order[c.param], c.dest.offset));
        let found = need(name, &copies, captured, &writes, catalog.get(name), limits);
        let found = found.and_then(|need| {
            let first = spread.first(&need);
            if need.tiles.have_replicas() {
                waiting.push(need);
                places.push(first);
                return Ok(());
            }
            served.push(server.serve(&need, &first)?);
            Ok(())
        });
        if let Err(reason) = found {
            refuse(name, &mut copies.iter().map(|(_, c)| c.param), reason);
        }
    }
    spread.choose(&waiting, &mut places);
    for (need, places) in waiting.iter().zip(&places) {
        match server.serve(need, places) {
            Ok(source) => served.push(source),
            Err(reason) => refuse(&need.name, &mut need.copies.iter().map(|c| c.param), reason),
        }
    }
    served.sort_by(|a, b| a.name.cmp(&b.name));
    for (name, unsupported) in &captured.unsupported {
        let reason = Reason::Unsupported { op: unsupported.op.clone() };
        let copies = captured.copies.iter().filter(|c| c.source == *name).map(|c| c.param);
        refuse(name, &mut unsupported.params.iter().copied().chain(copies), reason);
    }
    refused.sort_by(|a, b| a.source.cmp(&b.source));
    let mut plan = assemble(served, &sessions, captured, &order, &writes, limits);
    plan.refused = refused;
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
