//! Coverage: every byte of a parameter is provided exactly once, or is known to be missing.

use restage_nest::{Strided, cover};

use crate::plan::{Coverage, Plan, Target};
use crate::planner::PlanError;

/// Sums what each parameter is provided with and proves that no two writes meet. Segments are sorted by target.
pub(crate) fn prove(plan: &mut Plan) -> Result<(), PlanError> {
    // One parameter at a time, so that the sides of one are in memory and not those of all.
    let mut replays: Vec<(usize, usize, usize)> = Vec::new();
    for (t, staging) in plan.stagings.iter().enumerate() {
        replays.extend(staging.replays.iter().enumerate().map(|(at, step)| (step.param, t, at)));
    }
    replays.sort_unstable();
    let mut fills: Vec<(usize, usize)> = plan.fills.iter().enumerate().map(|(at, f)| (f.param, at)).collect();
    fills.sort_unstable();
    let mut segments = plan.segments.iter().peekable();
    let mut replays = replays.into_iter().peekable();
    let mut fills = fills.into_iter().peekable();
    let mut coverage = Vec::with_capacity(plan.params.len());
    let (mut sides, mut writers) = (Vec::new(), Vec::new());
    for (p, param) in plan.params.iter().enumerate() {
        sides.clear();
        writers.clear();
        while let Some(s) = segments.next_if(|s| s.target == Target::Param(p)) {
            sides.push(s.nest.dst_side().map_err(|_| too_large(plan, p))?);
            writers.push(Writer::Source(s.source));
        }
        while let Some((_, t, at)) = replays.next_if(|r| r.0 == p) {
            let staging = &plan.stagings[t];
            for nest in &staging.replays[at].nests {
                sides.push(bytes(plan, p, nest)?);
                writers.push(Writer::Source(staging.source));
            }
        }
        while let Some((_, at)) = fills.next_if(|f| f.0 == p) {
            let dest = &plan.fills[at].dest;
            let numel = param.shape.iter().product();
            dest.check(numel).map_err(|problem| PlanError::Fill { param: param.name.clone(), problem })?;
            sides.push(bytes(plan, p, &dest.nest())?);
            writers.push(Writer::Fill);
        }
        let numel = param.shape.iter().try_fold(1u64, |n, &s| n.checked_mul(u64::try_from(s).ok()?));
        let bytes = numel.and_then(|n| param.dtype.bytes(n)).ok_or_else(|| too_large(plan, p))?;
        cover::disjoint(&sides).map_err(|o| PlanError::WrittenTwice {
            param: param.name.clone(),
            first: writers[o.first].name(plan),
            second: writers[o.second].name(plan),
            at: o.at,
        })?;
        let covered = sides.iter().map(|s| s.run * s.run_count()).sum();
        coverage.push(Coverage { bytes, covered });
    }
    plan.coverage = coverage;
    Ok(())
}

#[derive(Clone, Copy)]
enum Writer {
    Source(usize),
    Fill,
}

impl Writer {
    fn name(self, plan: &Plan) -> String {
        match self {
            Writer::Source(s) => plan.sources[s].name.to_string(),
            Writer::Fill => "a constant".to_owned(),
        }
    }
}

fn bytes(plan: &Plan, param: usize, nest: &restage_nest::Nest) -> Result<Strided, PlanError> {
    let packing = plan.params[param].dtype.packing();
    // The source side of a fill or a replay is a position in staging; only the destination matters here.
    nest.dst_side()
        .and_then(|side| side.scaled(packing.elements, packing.bytes))
        .map_err(|_| too_large(plan, param))
}

fn too_large(plan: &Plan, param: usize) -> PlanError {
    let p = &plan.params[param];
    PlanError::Param { param: p.name.clone(), shape: p.shape.clone() }
}
