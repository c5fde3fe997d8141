//! EXPLAIN: a plan in text, deterministic and without paths of one machine.

use std::fmt;

use crate::plan::{Plan, StagingReason};

/// Rows shown of a list before it is cut.
const ROWS: usize = 8;

/// Displays a plan: what is refused first, then totals, sessions, full pulls and the largest sources.
#[derive(Debug, Clone, Copy)]
pub struct Explain<'a>(pub &'a Plan);

impl fmt::Display for Explain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.0;
        for r in &plan.refused {
            writeln!(f, "  refused     {}: {} (wanted by {})", r.source, r.reason, r.params.join(", "))?;
        }
        for o in plan.overwritten.iter().take(ROWS) {
            let param = &plan.params[o.param].name;
            writeln!(f, "  overwritten {param}: {} bytes of {}, by a later write", group(o.bytes), o.writer)?;
        }
        more(f, plan.overwritten.len())?;
        let c = plan.counters();
        writeln!(
            f,
            "  parameters  {} ({} bytes), {} copies of {} sources, {} constants",
            plan.params.len(),
            group(plan.param_bytes()),
            plan.copies,
            plan.sources.len(),
            plan.fills.len()
        )?;
        writeln!(
            f,
            "  exact       {} descriptors, {} bytes",
            group(c.exact_descriptors),
            group(c.exact_bytes)
        )?;
        writeln!(
            f,
            "  planned     {} {}, {} bytes; {} saved, {} extra wire bytes",
            group(c.descriptors),
            if plan.strided { "strided descriptors" } else { "descriptors" },
            group(c.bytes),
            group(c.descriptors_saved()),
            group(c.extra_wire_bytes())
        )?;
        let pulls: Vec<_> = plan.full_pulls().collect();
        writeln!(f, "  full pulls  {}", pulls.len())?;
        for (name, staging) in pulls.iter().take(ROWS) {
            if let StagingReason::OverBound { descriptors, bound } = staging.reason {
                let bytes = group(staging.bytes);
                writeln!(
                    f,
                    "    {name}: a copy needs {descriptors} descriptors, over {bound}; stages {bytes} bytes"
                )?;
            }
        }
        more(f, pulls.len())?;
        let unbounded: Vec<_> = plan.unbounded().collect();
        if !unbounded.is_empty() {
            writeln!(f, "  unbounded   {} (over the bound, not cut by rows: read exactly)", unbounded.len())?;
            for name in unbounded.iter().take(ROWS) {
                writeln!(f, "    {name}")?;
            }
            more(f, unbounded.len())?;
        }
        writeln!(f, "  sessions    {}", plan.sessions.len())?;
        let sessions = plan.session_counters();
        for (name, (bytes, descriptors)) in plan.sessions.iter().zip(&sessions).take(ROWS) {
            writeln!(f, "    {name}: {} bytes in {}", group(*bytes), group(*descriptors))?;
        }
        more(f, plan.sessions.len())?;
        writeln!(
            f,
            "  coverage    {:.6}, {} parameters incomplete",
            plan.coverage_ratio(),
            plan.incomplete().count()
        )?;
        for (param, coverage) in
            plan.params.iter().zip(&plan.coverage).filter(|(_, c)| !c.is_complete()).take(ROWS)
        {
            let (covered, bytes) = (group(coverage.covered), group(coverage.bytes));
            writeln!(f, "    {}: {covered} of {bytes} bytes", param.name)?;
        }
        more(f, plan.incomplete().count())
    }
}

fn more(f: &mut fmt::Formatter<'_>, len: usize) -> fmt::Result {
    match len.checked_sub(ROWS) {
        Some(rest) if rest > 0 => writeln!(f, "    … and {rest} more"),
        _ => Ok(()),
    }
}

/// Digits in groups of three.
fn group(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}
