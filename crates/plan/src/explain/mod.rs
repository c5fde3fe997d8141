//! EXPLAIN: a plan for people, deterministic and without paths of one machine.
//!
//! - [`Explain`]: the totals and the first items of each list, in text.
//! - [`Verbose`]: everything, parameter by parameter, in text.
//! - [`Page`]: one HTML page that needs nothing else.
//! - [`Difference`]: what changed from one plan to another.
//! - [`served`]: how each parameter gets its bytes.
//!
//! Names of tensors, parameters and sessions come from files of strangers: [`Name`] shows them without letting them
//! steer a terminal or a page.

mod diff;
mod holes;
mod html;
mod name;
mod served;
mod verbose;

use std::fmt;

use crate::plan::{Plan, StagingReason};

pub use diff::{Changed, Difference, ParamSide};
pub use html::{Page, PageMember};
pub use name::Name;
pub use served::{How, Part, Served, served};
pub use verbose::Verbose;

use name::{group, names};

/// Rows shown of a list before it is cut.
const ROWS: usize = 8;

/// Displays a plan: what is refused first, then totals, sessions, full pulls and the largest sources.
#[derive(Debug, Clone, Copy)]
pub struct Explain<'a>(pub &'a Plan);

impl fmt::Display for Explain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.0;
        totals(f, plan, ROWS)?;
        let pulls: Vec<_> = plan.full_pulls().collect();
        writeln!(f, "  full pulls  {}", pulls.len())?;
        for (name, staging) in pulls.iter().take(ROWS) {
            if let StagingReason::OverBound { descriptors, bound } = staging.reason {
                let bytes = group(staging.bytes);
                writeln!(
                    f,
                    "    {}: a copy needs {descriptors} descriptors, over {bound}; stages {bytes} bytes",
                    Name(name)
                )?;
            }
        }
        more(f, pulls.len())?;
        let unbounded: Vec<_> = plan.unbounded().collect();
        if !unbounded.is_empty() {
            writeln!(f, "  unbounded   {} (over the bound, not cut by rows: read exactly)", unbounded.len())?;
            for name in unbounded.iter().take(ROWS) {
                writeln!(f, "    {}", Name(name))?;
            }
            more(f, unbounded.len())?;
        }
        writeln!(f, "  sessions    {}", plan.sessions.len())?;
        let sessions = plan.session_counters();
        for (name, (bytes, descriptors)) in plan.sessions.iter().zip(&sessions).take(ROWS) {
            writeln!(f, "    {}: {} bytes in {}", Name(name), group(*bytes), group(*descriptors))?;
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
            writeln!(f, "    {}: {covered} of {bytes} bytes", Name(&param.name))?;
        }
        more(f, plan.incomplete().count())
    }
}

/// What is refused, what was overwritten (as many rows as this), and the totals.
fn totals(f: &mut fmt::Formatter<'_>, plan: &Plan, rows: usize) -> fmt::Result {
    for r in &plan.refused {
        writeln!(
            f,
            "  refused     {}: {} (wanted by {})",
            Name(&r.source),
            Name(&r.reason.to_string()),
            names(&r.params)
        )?;
    }
    for o in plan.overwritten.iter().take(rows) {
        let (param, writer) = (Name(&plan.params[o.param].name), Name(&o.writer));
        writeln!(f, "  overwritten {param}: {} bytes of {writer}, by a later write", group(o.bytes))?;
    }
    if rows < plan.overwritten.len() {
        more(f, plan.overwritten.len())?;
    }
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
    writeln!(f, "  exact       {} descriptors, {} bytes", group(c.exact_descriptors), group(c.exact_bytes))?;
    writeln!(
        f,
        "  planned     {} {}, {} bytes; {} saved, {} extra wire bytes",
        group(c.descriptors),
        if plan.strided { "strided descriptors" } else { "descriptors" },
        group(c.bytes),
        group(c.descriptors_saved()),
        group(c.extra_wire_bytes())
    )
}

fn more(f: &mut fmt::Formatter<'_>, len: usize) -> fmt::Result {
    match len.checked_sub(ROWS) {
        Some(rest) if rest > 0 => writeln!(f, "    … and {rest} more"),
        _ => Ok(()),
    }
}
