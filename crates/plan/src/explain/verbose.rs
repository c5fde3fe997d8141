//! A plan in text with all of its lists.

use std::fmt;

use super::holes::holes;
use super::name::{Name, group, names};
use super::served::{served, why};
use super::totals;
use crate::plan::Plan;

/// Displays a plan in full: what is refused first, then totals, sessions, stagings with their reasons, every
/// parameter from the largest with how it is served, and what is missing as boxes.
#[derive(Debug, Clone, Copy)]
pub struct Verbose<'a>(pub &'a Plan);

impl fmt::Display for Verbose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.0;
        totals(f, plan, usize::MAX)?;
        writeln!(
            f,
            "  coverage    {:.6}, {} parameters incomplete",
            plan.coverage_ratio(),
            plan.incomplete().count()
        )?;
        for (p, (param, coverage)) in plan.params.iter().zip(&plan.coverage).enumerate() {
            if coverage.is_complete() {
                continue;
            }
            let (covered, bytes) = (group(coverage.covered), group(coverage.bytes));
            let boxes: Vec<String> = holes(plan, p).iter().map(|r| r.to_string()).collect();
            writeln!(
                f,
                "    {}: {covered} of {bytes} bytes; missing {}",
                Name(&param.name),
                boxes.join(", ")
            )?;
        }
        writeln!(f, "  sessions    {}", plan.sessions.len())?;
        for (name, (bytes, descriptors)) in plan.sessions.iter().zip(plan.session_counters()) {
            writeln!(f, "    {}: {} bytes in {}", Name(name), group(bytes), group(descriptors))?;
        }
        let pulls: Vec<_> = plan.stagings.iter().enumerate().collect();
        writeln!(f, "  stagings    {}", pulls.len())?;
        for (at, s) in pulls {
            let source = &plan.sources[s.source].name;
            let params: Vec<&str> = s.replays.iter().map(|r| plan.params[r.param].name.as_str()).collect();
            writeln!(
                f,
                "    {at} of {}: {} bytes; {}; for {}",
                Name(source),
                group(s.bytes),
                why(s.reason),
                names(&params)
            )?;
        }
        let unbounded: Vec<&str> = plan.unbounded().collect();
        if !unbounded.is_empty() {
            writeln!(f, "  unbounded   {} (over the bound, and read exactly all the same)", unbounded.len())?;
            for name in unbounded {
                writeln!(f, "    {}", Name(name))?;
            }
        }
        writeln!(f, "  served      {} parameters, from the largest", plan.params.len())?;
        for s in largest(plan) {
            let param = &plan.params[s.param];
            let bytes = group(plan.coverage[s.param].bytes);
            writeln!(f, "    {} {} {:?}, {bytes} bytes", Name(&param.name), param.dtype, param.shape)?;
            for part in &s.parts {
                writeln!(f, "      {}", part.line(plan))?;
            }
            if s.missing > 0 {
                writeln!(f, "      missing {} bytes", group(s.missing))?;
            }
        }
        Ok(())
    }
}

/// How parameters are served, from the largest parameter, equal ones by name.
pub(super) fn largest(plan: &Plan) -> Vec<super::Served> {
    let mut all = served(plan);
    all.sort_by_key(|s| (std::cmp::Reverse(plan.coverage[s.param].bytes), s.param));
    all
}
