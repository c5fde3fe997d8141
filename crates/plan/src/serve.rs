//! One source served: exact, or staged where that is within the limits and costs less.
//!
//! The law: of the ways that keep the bound on descriptors, the one that reads fewest bytes; of those the one in
//! fewest descriptors; of those the more direct one. Where no way keeps the bound, the one that comes nearest.

use std::sync::Arc;

use restage_nest::{Nest, NestError, coalesce, cover, merged_runs};

use crate::limits::{Limits, StagingMode};
use crate::need::{CopyNeed, Need, Piece, clip};
use crate::plan::{Counters, Reason, ReplayStep, Segment, StagingReason, Target};
use crate::spread::{Place, Sessions};
use crate::stretch::{Staged, by_rows, by_stretches};
use crate::tiles::over_shard;

/// Copies whose nests have at most this many runs are also merged run by run. Neighbours that no loop
/// expresses are rare (the end of one tile continuing in the next of the same session), and finding them costs
/// time that grows with rows.
const MERGE_RUNS: u64 = 1024;

/// A source on its way into the plan. Its segments are apart, with those of all sources.
pub(crate) struct Served {
    pub name: Arc<str>,
    /// What its segments call it.
    pub number: usize,
    pub copies: usize,
    pub stagings: Vec<(u64, StagingReason, Vec<ReplayStep>)>,
    pub counters: Counters,
    pub unbounded: bool,
}

/// Serves sources.
pub(crate) struct Server<'a> {
    /// Position of each captured parameter in the plan.
    pub order: &'a [usize],
    pub limits: &'a Limits,
    pub sessions: &'a Sessions<'a>,
}

/// One copy lowered to bytes.
struct Lowered {
    /// Nests with their sessions, those of a session side by side.
    nests: Vec<(usize, Nest)>,
    /// Runs after merging within the copy.
    exact: u64,
    /// Entries that the transport is given.
    descriptors: u64,
    bytes: u64,
    /// An address that is read and does not fall on the alignment, with its session.
    crooked: Option<(usize, u64)>,
}

/// Which copies are staged, as what, and why.
struct Choice {
    staged: Vec<bool>,
    stretches: Staged,
    reason: StagingReason,
}

/// A segment of the source at hand.
type Found = (usize, Target, Nest);

/// Bytes read and descriptors: less is better, bytes first.
type Cost = (u64, u64);

impl Server<'_> {
    /// Serves a source and adds its segments to those of others: their sessions by number, the source by `number`, its
    /// stagings counted from 0.
    pub fn serve(
        &self,
        need: &Need<'_>,
        places: &[Place<'_>],
        number: usize,
        segments: &mut Vec<Segment>,
    ) -> Result<Served, Reason> {
        let lowered = need
            .copies
            .iter()
            .map(|copy| self.lower(need, copy, places))
            .collect::<Result<Vec<_>, _>>()
            .map_err(Reason::Bytes)?;
        let mut served = Served {
            name: need.name.clone(),
            number,
            copies: need.copies.len(),
            stagings: Vec::new(),
            counters: Counters::default(),
            unbounded: false,
        };
        for l in &lowered {
            served.counters.exact_descriptors += l.exact;
            served.counters.exact_bytes += l.bytes;
        }
        let choice = match self.limits.staging {
            StagingMode::RowShards => self.whole_source(need, &lowered, places, &mut served)?,
            StagingMode::Tiles => self.cheapest(need, &lowered, places, &mut served)?,
        };
        let staged = choice.as_ref().map_or(&[][..], |c| &c.staged);
        let mut found = Vec::new();
        self.exact(need, lowered, staged, &mut served, &mut found)?;
        if let Some(choice) = choice {
            self.staged(need, choice, &mut served, &mut found);
        }
        for (_, _, nest) in &found {
            served.counters.bytes += nest.total().map_err(Reason::Bytes)?;
        }
        let segment = |(session, target, nest)| Segment { session, source: number, target, nest };
        segments.extend(found.into_iter().map(segment));
        Ok(served)
    }

    fn lower(&self, need: &Need<'_>, copy: &CopyNeed, places: &[Place<'_>]) -> Result<Lowered, NestError> {
        let packing = need.source.dtype.packing();
        let mut nests = Vec::with_capacity(copy.pieces.len());
        for (t, piece) in &copy.pieces {
            let (session, shard) = places[*t];
            let nest = over_shard(piece, &shard.region);
            let nest = nest.into_scaled(packing.elements, packing.bytes, shard.addr)?;
            nest.src_hull()?;
            nests.push((session, nest));
        }
        if !nests.is_sorted_by_key(|(session, _)| *session) {
            nests.sort_by_key(|(session, _)| *session);
        }
        let mut out = Lowered { nests, exact: 0, descriptors: 0, bytes: 0, crooked: None };
        if out.nests.windows(2).any(|w| w[0].0 == w[1].0) {
            self.merge(&mut out)?;
            return Ok(out);
        }
        for (session, nest) in &out.nests {
            let runs = nest.run_count()?;
            out.bytes += nest.total()?;
            out.exact += runs;
            out.descriptors += if self.limits.strided { 1 } else { runs };
            if !self.is_aligned(nest) {
                out.crooked = out.crooked.or(Some((*session, nest.src)));
            }
        }
        Ok(out)
    }

    /// Merges what continues each other in one session, and counts.
    fn merge(&self, out: &mut Lowered) -> Result<(), NestError> {
        let mut rest = std::mem::take(&mut out.nests).into_iter().peekable();
        while let Some((session, first)) = rest.next() {
            let mut nests = vec![first];
            while let Some((_, nest)) = rest.next_if(|(s, _)| *s == session) {
                nests.push(nest);
            }
            coalesce(&mut nests);
            let mut runs = 0;
            for nest in &nests {
                runs += nest.run_count()?;
                out.bytes += nest.total()?;
            }
            let single = nests.len() == 1 && nests[0].loops.len() < 2;
            if let Some(merged) = if single { None } else { merged_runs(&nests, MERGE_RUNS) } {
                let fewer = (merged.len() as u64) < runs;
                runs = merged.len() as u64;
                if fewer && !self.limits.strided {
                    nests = merged.iter().map(|r| Nest::contiguous(r.src, r.dst, r.len)).collect();
                }
            }
            if let Some(nest) = nests.iter().find(|nest| !self.is_aligned(nest)) {
                out.crooked = out.crooked.or(Some((session, nest.src)));
            }
            out.exact += runs;
            out.descriptors += if self.limits.strided { nests.len() as u64 } else { runs };
            out.nests.extend(nests.into_iter().map(|nest| (session, nest)));
        }
        Ok(())
    }

    fn is_aligned(&self, nest: &Nest) -> bool {
        let to = self.limits.alignment;
        let falls = |n: u64| n.is_multiple_of(to);
        to <= 1
            || falls(nest.src) && falls(nest.run) && nest.loops.iter().all(|l| falls(l.src.unsigned_abs()))
    }

    /// The seed's rule: what is over the bound is read whole, if it is cut by rows.
    fn whole_source(
        &self,
        need: &Need<'_>,
        lowered: &[Lowered],
        places: &[Place<'_>],
        served: &mut Served,
    ) -> Result<Option<Choice>, Reason> {
        let bound = self.limits.max_descriptors;
        // A conversion is staged in any case; the bound is about what goes straight to a parameter.
        let direct = need.copies.iter().zip(lowered).filter(|(c, _)| !c.converts());
        let worst = direct.map(|(_, l)| l.descriptors).max().unwrap_or(0);
        let crooked = lowered.iter().any(|l| l.crooked.is_some());
        let may = need.tiles.are_row_blocks(&need.source.shape) && !self.limits.stages_nothing();
        if may && (worst > bound || crooked) {
            let crossing = self.crossing(need)?;
            let copies = pieces(need, &crossing, |_| true);
            let reason = match worst > bound {
                true => StagingReason::OverBound { descriptors: worst, bound },
                false => StagingReason::Alignment,
            };
            if let Some(stretches) = by_rows(need, &copies, places, self.limits)? {
                return Ok(Some(Choice { staged: vec![true; need.copies.len()], stretches, reason }));
            }
        }
        served.unbounded = worst > bound;
        self.refuse_crooked(lowered)?;
        self.refuse_large(need)?;
        Ok(None)
    }

    /// Exact, stretches for what is over the bound, or stretches for everything: whichever costs least.
    fn cheapest(
        &self,
        need: &Need<'_>,
        lowered: &[Lowered],
        places: &[Place<'_>],
        served: &mut Served,
    ) -> Result<Option<Choice>, Reason> {
        let bound = self.limits.max_descriptors;
        let worst = lowered.iter().map(|l| l.descriptors).max().unwrap_or(0);
        let exact: Cost = cost(lowered.iter());
        let must: Vec<bool> = need
            .copies
            .iter()
            .zip(lowered)
            .map(|(c, l)| l.descriptors > bound || l.crooked.is_some() || self.too_large(need, c))
            .collect();
        let forced = lowered.iter().any(|l| l.crooked.is_some())
            || need.copies.iter().any(|c| self.too_large(need, c));
        if self.limits.stages_nothing() {
            self.refuse_crooked(lowered)?;
            self.refuse_large(need)?;
            served.unbounded = worst > bound;
            return Ok(None);
        }
        if !must.contains(&true) {
            if !may_be_cheaper(need, lowered) {
                return Ok(None);
            }
            let choice = self.staging(need, places, vec![true; must.len()], StagingReason::Cheaper)?;
            let staged = (choice.stretches.bytes(), choice.stretches.descriptors());
            return Ok((staged < exact).then_some(choice));
        }
        let reason = match worst > bound {
            true => StagingReason::OverBound { descriptors: worst, bound },
            false if lowered.iter().any(|l| l.crooked.is_some()) => StagingReason::Alignment,
            false => StagingReason::Conversion,
        };
        let mut best: Option<(Cost, Choice)> = None;
        let all = vec![true; must.len()];
        for staged in if must == all { vec![must] } else { vec![must, all] } {
            let direct = cost(lowered.iter().zip(&staged).filter(|(_, s)| !**s).map(|(l, _)| l));
            let choice = self.staging(need, places, staged, reason)?;
            let s = &choice.stretches;
            let cost = (direct.0 + s.bytes(), direct.1 + s.descriptors());
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, choice));
            }
        }
        let Some((cost, choice)) = best else { return Ok(None) };
        let helps = cost.1 < exact.1;
        if !forced && !helps {
            served.unbounded = true;
            return Ok(None);
        }
        let copies = choice.staged.iter().filter(|s| **s).count() as u64;
        served.unbounded = choice.stretches.descriptors() > bound.saturating_mul(copies);
        Ok(Some(choice))
    }

    fn staging(
        &self,
        need: &Need<'_>,
        places: &[Place<'_>],
        staged: Vec<bool>,
        reason: StagingReason,
    ) -> Result<Choice, Reason> {
        let crossing = self.crossing(need)?;
        let copies = pieces(need, &crossing, |c| staged[c]);
        let stretches = by_stretches(need, &copies, places, self.limits)?;
        Ok(Choice { staged, stretches, reason })
    }

    /// Per copy that changes values, its pieces to the parameter; those of the others go there anyway.
    fn crossing(&self, need: &Need<'_>) -> Result<Vec<Vec<Piece>>, Reason> {
        let to_param = |copy: &CopyNeed| {
            let mut pieces = Vec::new();
            clip(&copy.whole, need.source, &need.tiles, &mut |t, piece| pieces.push((t, piece)))?;
            Ok(pieces)
        };
        need.copies.iter().map(to_param).collect()
    }

    /// True when a copy that changes values does not fit into a staging of its own.
    fn too_large(&self, need: &Need<'_>, copy: &CopyNeed) -> bool {
        copy.converts() && self.limits.staging_bytes.is_some_and(|most| view_bytes(need, copy) > most)
    }

    fn refuse_large(&self, need: &Need<'_>) -> Result<(), Reason> {
        match need.copies.iter().find(|c| self.too_large(need, c)) {
            None => Ok(()),
            Some(copy) => Err(Reason::Staging {
                needed: view_bytes(need, copy),
                limit: self.limits.staging_bytes.unwrap_or(u64::MAX),
            }),
        }
    }

    fn refuse_crooked(&self, lowered: &[Lowered]) -> Result<(), Reason> {
        match lowered.iter().find_map(|l| l.crooked) {
            None => Ok(()),
            Some((session, addr)) => Err(Reason::Alignment {
                session: self.sessions.names[session].clone(),
                addr,
                alignment: self.limits.alignment,
            }),
        }
    }

    /// Copies that are not staged by stretches: straight to the parameter, or to a staging of their view where
    /// values change.
    fn exact(
        &self,
        need: &Need<'_>,
        lowered: Vec<Lowered>,
        staged: &[bool],
        served: &mut Served,
        found: &mut Vec<Found>,
    ) -> Result<(), Reason> {
        for (c, (copy, lowered)) in need.copies.iter().zip(lowered).enumerate() {
            if staged.get(c) == Some(&true) {
                continue;
            }
            let target = if copy.converts() {
                let steps = vec![self.step(need, copy, copy.convert.clone())];
                served.stagings.push((view_bytes(need, copy), StagingReason::Conversion, steps));
                Target::Staging(served.stagings.len() - 1)
            } else {
                Target::Param(self.order[copy.param])
            };
            found.extend(lowered.nests.into_iter().map(|(session, nest)| (session, target, nest)));
        }
        Ok(())
    }

    fn staged(&self, need: &Need<'_>, choice: Choice, served: &mut Served, found: &mut Vec<Found>) {
        let first = served.stagings.len();
        let Staged { stretches, buffers, replays } = choice.stretches;
        for s in stretches {
            let nest = Nest::contiguous(s.start, s.at, s.end - s.start);
            found.push((s.session, Target::Staging(first + s.buffer), nest));
        }
        for (bytes, replays) in buffers.into_iter().zip(replays) {
            let step = |(c, nests): (usize, Vec<Nest>)| self.step(need, &need.copies[c], nests);
            served.stagings.push((bytes, choice.reason, replays.into_iter().map(step).collect()));
        }
    }

    fn step(&self, need: &Need<'_>, copy: &CopyNeed, nests: Vec<Nest>) -> ReplayStep {
        ReplayStep {
            param: self.order[copy.param],
            from: need.source.dtype,
            values: copy.values.clone(),
            to: copy.dtype,
            nests,
        }
    }
}

fn cost<'a>(lowered: impl Iterator<Item = &'a Lowered>) -> Cost {
    lowered.fold((0, 0), |(bytes, descriptors), l| (bytes + l.bytes, descriptors + l.descriptors))
}

/// Pieces to the parameters, of the copies that are asked for.
fn pieces<'a>(
    need: &'a Need<'_>,
    crossing: &'a [Vec<Piece>],
    staged: impl Fn(usize) -> bool,
) -> Vec<(usize, &'a [Piece])> {
    let of = |(c, copy): (usize, &'a CopyNeed)| {
        let pieces = if copy.converts() { &crossing[c] } else { &copy.pieces };
        staged(c).then_some((c, &pieces[..]))
    };
    need.copies.iter().enumerate().filter_map(of).collect()
}

/// Bytes of a copy's view as the source holds it. It fits: its elements were counted in 63 bits, and types whose
/// values are known have no blocks.
fn view_bytes(need: &Need<'_>, copy: &CopyNeed) -> u64 {
    copy.numel.saturating_mul(need.source.dtype.packing().bytes)
}

/// Whether stretches could take fewer bytes, or as many in fewer descriptors: worth working them out.
fn may_be_cheaper(need: &Need<'_>, lowered: &[Lowered]) -> bool {
    let descriptors: u64 = lowered.iter().map(|l| l.descriptors).sum();
    let mut tiles = vec![false; need.tiles.tiles.len()];
    need.copies.iter().flat_map(|c| &c.pieces).for_each(|(t, _)| tiles[*t] = true);
    if descriptors > tiles.iter().filter(|t| **t).count() as u64 {
        return true;
    }
    // Bytes that two copies need.
    lowered.len() > 1 && {
        let sessions = lowered.iter().flat_map(|l| &l.nests);
        let mut by_session: std::collections::BTreeMap<usize, Vec<restage_nest::Strided>> =
            Default::default();
        for (session, nest) in sessions {
            by_session.entry(*session).or_default().extend(nest.src_side());
        }
        by_session.values().any(|sides| cover::disjoint(sides).is_err())
    }
}
