//! Coverage: every byte of a parameter is provided exactly once, or is known to be missing.

use restage_nest::{Strided, cover};

use crate::plan::{Coverage, Plan, Target};
use crate::planner::PlanError;

/// Sums what each parameter is provided with and proves that no two writes meet.
pub(crate) fn prove(plan: &mut Plan) -> Result<(), PlanError> {
    let mut writes: Vec<Vec<(Strided, Writer)>> = vec![Vec::new(); plan.params.len()];
    for s in &plan.segments {
        let Target::Param(p) = s.target else { continue };
        let side = s.nest.dst_side().map_err(|_| too_large(plan, p))?;
        writes[p].push((side, Writer::Source(s.source)));
    }
    for staging in &plan.stagings {
        for step in &staging.replays {
            for nest in &step.nests {
                let side = bytes(plan, step.param, nest)?;
                writes[step.param].push((side, Writer::Source(staging.source)));
            }
        }
    }
    for fill in &plan.fills {
        let param = &plan.params[fill.param];
        let numel = param.shape.iter().product();
        fill.dest.check(numel).map_err(|problem| PlanError::Fill { param: param.name.clone(), problem })?;
        let side = bytes(plan, fill.param, &fill.dest.nest())?;
        writes[fill.param].push((side, Writer::Fill));
    }
    let mut coverage = Vec::with_capacity(plan.params.len());
    for (p, (param, writes)) in plan.params.iter().zip(writes).enumerate() {
        let numel = param.shape.iter().try_fold(1u64, |n, &s| n.checked_mul(u64::try_from(s).ok()?));
        let bytes = numel.and_then(|n| param.dtype.bytes(n)).ok_or_else(|| too_large(plan, p))?;
        let (sides, writers): (Vec<Strided>, Vec<Writer>) = writes.into_iter().unzip();
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
