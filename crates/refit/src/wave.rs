//! One wave: some parameters and the stagings that they need, read in one batch and finished locally.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use restage_geometry::Fill;
use restage_nest::Nest;
use restage_plan::{Plan, ReplayStep, Target};
use restage_transport::{Batch, Entry, MemoryTransport, Transport, TransportError};

use crate::convert::convert;
use crate::report::{PullError, Report};

/// Session name under which a staging buffer is replayed from.
const STAGING: &str = "staging";

/// Parameters that are read together. No staging serves parameters of two waves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wave {
    /// Indices of parameters, ascending.
    pub params: Vec<usize>,
    /// Indices of stagings, ascending.
    pub stagings: Vec<usize>,
    /// Indices of the plan's segments, ascending.
    pub segments: Vec<usize>,
    /// Bytes of parameters and stagings together.
    pub bytes: u64,
}

/// Groups all parameters into waves of at most `most` bytes each, or of one group of parameters that share
/// stagings where that alone is larger.
pub(crate) fn waves(plan: &Plan, most: u64) -> Vec<Wave> {
    // Parameters joined by stagings, as a forest of representatives.
    let mut root: Vec<usize> = (0..plan.params.len()).collect();
    fn find(root: &mut [usize], mut p: usize) -> usize {
        while root[p] != p {
            root[p] = root[root[p]];
            p = root[p];
        }
        p
    }
    for staging in &plan.stagings {
        let mut params = staging.replays.iter().map(|r| r.param);
        if let Some(first) = params.next() {
            for other in params {
                let (a, b) = (find(&mut root, first), find(&mut root, other));
                root[a.max(b)] = a.min(b);
            }
        }
    }
    let mut groups: Vec<Wave> = vec![Wave::default(); plan.params.len()];
    for p in 0..plan.params.len() {
        let group = &mut groups[find(&mut root, p)];
        group.params.push(p);
        group.bytes += plan.coverage[p].bytes;
    }
    let mut home = vec![0; plan.stagings.len()];
    for (s, staging) in plan.stagings.iter().enumerate() {
        if let Some(step) = staging.replays.first() {
            home[s] = find(&mut root, step.param);
            groups[home[s]].stagings.push(s);
            groups[home[s]].bytes += staging.bytes;
        }
    }
    for (i, segment) in plan.segments.iter().enumerate() {
        let group = match segment.target {
            Target::Param(p) => find(&mut root, p),
            Target::Staging(s) => home[s],
        };
        groups[group].segments.push(i);
    }
    let mut out: Vec<Wave> = Vec::new();
    for group in groups.into_iter().filter(|g| !g.params.is_empty()) {
        match out.last_mut() {
            Some(wave) if wave.bytes.saturating_add(group.bytes) <= most => {
                wave.params.extend(group.params);
                wave.stagings.extend(group.stagings);
                wave.segments.extend(group.segments);
                wave.bytes += group.bytes;
            }
            _ => out.push(group),
        }
    }
    out
}

/// What is read in one batch: stagings, all at the same time in memory, and segments.
#[derive(Debug, Default)]
struct Part {
    stagings: Vec<usize>,
    segments: Vec<usize>,
}

impl Wave {
    /// The wave in parts whose stagings keep the plan's limit. What goes straight to parameters is in the first.
    fn parts(&self, plan: &Plan) -> Vec<Part> {
        let most = plan.staging_bytes.unwrap_or(u64::MAX);
        let mut parts = vec![Part::default()];
        let mut home = HashMap::with_capacity(self.stagings.len());
        let mut used = 0u64;
        for &s in &self.stagings {
            let bytes = plan.stagings[s].bytes;
            if used > 0 && used.saturating_add(bytes) > most {
                parts.push(Part::default());
                used = 0;
            }
            used += bytes;
            home.insert(s, parts.len() - 1);
            let last = parts.len() - 1;
            parts[last].stagings.push(s);
        }
        for &i in &self.segments {
            let part = match plan.segments[i].target {
                Target::Param(_) => 0,
                Target::Staging(s) => home[&s],
            };
            parts[part].segments.push(i);
        }
        parts
    }
}

/// Reads a wave into its parameters' buffers, in the order of `wave.params`.
pub(crate) fn run(
    plan: &Plan,
    wave: &Wave,
    transport: &dyn Transport,
    params: &mut [&mut [u8]],
    report: &mut Report,
) -> Result<(), PullError> {
    let start = Instant::now();
    for part in wave.parts(plan) {
        let size = |&s: &usize| plan.stagings[s].bytes;
        let mut staging: Vec<Vec<u8>> = part.stagings.iter().map(|s| vec![0; size(s) as usize]).collect();
        report.staged_bytes = report.staged_bytes.max(part.stagings.iter().map(size).sum());
        let work = Work { plan, params: &wave.params, part: &part };
        work.read(transport, params, &mut staging, report)?;
        work.replay(params, &staging, report)?;
    }
    for fill in &plan.fills {
        if let Some(slot) = slot(&wave.params, fill.param) {
            set(fill, params[slot]);
        }
    }
    report.reading += start.elapsed();
    Ok(())
}

fn slot(list: &[usize], item: usize) -> Option<usize> {
    // Groups are joined in order, yet a group's own parameters may lie past the next group's first.
    list.iter().position(|&x| x == item)
}

/// A part of a wave at work.
struct Work<'a> {
    plan: &'a Plan,
    /// Indices of the wave's parameters, in the order of their buffers.
    params: &'a [usize],
    part: &'a Part,
}

impl Work<'_> {
    fn read(
        &self,
        transport: &dyn Transport,
        params: &mut [&mut [u8]],
        staging: &mut [Vec<u8>],
        report: &mut Report,
    ) -> Result<(), PullError> {
        let Work { plan, part, .. } = self;
        let mut dest = vec![u32::MAX; plan.params.len() + plan.stagings.len()];
        let key = |target: Target| match target {
            Target::Param(p) => p,
            Target::Staging(s) => plan.params.len() + s,
        };
        let targets = self.params.iter().map(|&p| Target::Param(p));
        for (at, target) in targets.chain(part.stagings.iter().map(|&s| Target::Staging(s))).enumerate() {
            dest[key(target)] = at as u32;
        }
        let mut batch = Batch { sessions: plan.sessions.clone(), entries: Vec::new() };
        let mut planned = 0u64;
        for &i in &part.segments {
            let s = &plan.segments[i];
            planned += s.nest.total().unwrap_or(u64::MAX);
            let entry = Entry { session: s.session as u32, dest: dest[key(s.target)], nest: s.nest.clone() };
            batch.entries.push(entry);
        }
        let mut dests: Vec<&mut [u8]> = params.iter_mut().map(|p| &mut **p).collect();
        dests.extend(staging.iter_mut().map(Vec::as_mut_slice));
        let name = transport.name();
        let receipt = transport
            .read(&batch, &mut dests)
            .map_err(|error| PullError::Refused { transport: name, error })?;
        for (outcome, &i) in receipt.outcomes.iter().zip(&part.segments) {
            if let Err(error) = outcome {
                let s = &plan.segments[i];
                let target = match s.target {
                    Target::Param(p) => plan.params[p].name.clone(),
                    Target::Staging(_) => format!("the staging of {}", plan.sources[s.source].name),
                };
                let source_name = plan.sources[s.source].name.clone();
                return Err(PullError::Read { source_name, target, error: error.clone() });
            }
        }
        let moved = receipt.bytes();
        if moved != planned {
            return Err(PullError::Moved { planned, moved });
        }
        report.bytes += moved;
        report.entries += batch.entries.len() as u64;
        report.requests += receipt.requests;
        receipt.moves.into_iter().for_each(|m| m.add_to(&mut report.moves));
        Ok(())
    }

    /// Copies what was staged to its parameters. Plain copies are one more batch, whose source is the staging.
    fn replay(
        &self,
        params: &mut [&mut [u8]],
        staging: &[Vec<u8>],
        report: &mut Report,
    ) -> Result<(), PullError> {
        if self.part.stagings.is_empty() {
            return Ok(());
        }
        let plan = self.plan;
        let mut memory = MemoryTransport::new();
        let mut batch = Batch::default();
        for (at, (&s, bytes)) in self.part.stagings.iter().zip(staging).enumerate() {
            let session: Arc<str> = format!("{STAGING} {s}").into();
            memory.register(session.clone(), 0, &bytes[..]).map_err(PullError::Replay)?;
            batch.sessions.push(session);
            for step in &plan.stagings[s].replays {
                let Some(dest) = slot(self.params, step.param) else { continue };
                if step.values.is_empty() {
                    plain(step, at, dest, &mut batch)?;
                    continue;
                }
                convert(step, bytes, params[dest]).map_err(|error| PullError::Conversion {
                    param: plan.params[step.param].name.clone(),
                    error,
                })?;
            }
        }
        let receipt = memory.read(&batch, params).and_then(|r| r.into_result()).map_err(PullError::Replay)?;
        report.replayed_bytes += receipt.bytes();
        Ok(())
    }
}

fn plain(step: &ReplayStep, session: usize, dest: usize, batch: &mut Batch) -> Result<(), PullError> {
    let packing = step.to.packing();
    for nest in &step.nests {
        let nest = nest.scaled(packing.elements, packing.bytes, 0).map_err(|_| {
            let session: Arc<str> = STAGING.into();
            let (address, length, offset) = (nest.src, nest.run, nest.dst);
            PullError::Replay(TransportError::WrapAround {
                entry: batch.entries.len(),
                session,
                address,
                length,
                dest: dest as u32,
                offset,
            })
        })?;
        batch.entries.push(Entry { session: session as u32, dest: dest as u32, nest });
    }
    Ok(())
}

/// Writes a constant.
fn set(fill: &Fill, param: &mut [u8]) {
    let size = fill.element.len();
    let nest: Nest = fill.dest.nest();
    for run in nest.runs() {
        let out = &mut param[run.dst as usize * size..][..run.len as usize * size];
        match fill.element.iter().all(|&b| b == fill.element[0]) {
            true => out.fill(fill.element[0]),
            false => out.chunks_exact_mut(size).for_each(|c| c.copy_from_slice(&fill.element)),
        }
    }
}
