//! `restage plan --capture FILE --sources FILE`: a plan from two files alone, in full. `docs/capture-file.md`
//! documents both files, `docs/plan-file.md` the JSON that is printed: a plan file.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, anyhow};
use restage_nest::Nest;
use restage_plan::{Explain, Limits, Name, Plan, StagingReason, Target, Verbose, plan};
use restage_wire::{CaptureFile, Inputs, MAX_FILE_BYTES, PlanFile, SourcesFile};

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::reshard::write_small;
use crate::{page, saved};

fn reason(reason: StagingReason) -> &'static str {
    match reason {
        StagingReason::OverBound { .. } => "over_bound",
        // All else that is staged is converted.
        _ => "conversion",
    }
}

/// The text: the totals, then one line a segment, a staging, a replay and a constant, then the counters.
fn text(out: &mut dyn Write, plan: &Plan, limits: &Limits, verbose: bool) -> io::Result<()> {
    let form = if limits.strided { "strided segments whole" } else { "contiguous descriptors" };
    writeln!(out, "{form}, at most {} descriptors a copy", limits.max_descriptors)?;
    match verbose {
        true => write!(out, "{}", Verbose(plan))?,
        false => write!(out, "{}", Explain(plan))?,
    }
    let source = |index: usize| Name(&plan.sources[index].name);
    let param = |index: usize| Name(&plan.params[index].name);
    for s in &plan.segments {
        let target = match s.target {
            Target::Param(p) => param(p).to_string(),
            Target::Staging(at) => format!("staging {at}"),
        };
        let session = Name(&plan.sessions[s.session]);
        writeln!(out, "  segment     {session} {} -> {target}: {}", source(s.source), line(&s.nest))?;
    }
    for (at, s) in plan.stagings.iter().enumerate() {
        writeln!(out, "  staging     {at} of {}: {} bytes, {}", source(s.source), s.bytes, reason(s.reason))?;
        for step in &s.replays {
            for nest in &step.nests {
                let what = if step.values.is_empty() { "replay" } else { "convert" };
                let (from, to) = (step.from, step.to);
                writeln!(out, "    {what} {from} -> {} {to}, elements: {}", param(step.param), line(nest))?;
            }
        }
    }
    for f in &plan.fills {
        let (shape, stride) = (&f.dest.shape, &f.dest.strides);
        let (offset, element) = (f.dest.offset, hex(&f.element));
        writeln!(out, "  constant    {} at {offset} {shape:?} by {stride:?}: {element}", param(f.param))?;
    }
    let c = plan.counters();
    for (name, value) in [
        ("descriptor_count", c.descriptors),
        ("exact_descriptor_count", c.exact_descriptors),
        ("descriptor_savings", c.descriptors_saved()),
        ("bytes_planned", c.bytes),
        ("exact_bytes", c.exact_bytes),
        ("extra_wire_bytes", c.extra_wire_bytes()),
    ] {
        writeln!(out, "  counter     {name} {value}")?;
    }
    Ok(())
}

fn line(nest: &Nest) -> String {
    let mut line = format!("src {} dst {} run {}", nest.src, nest.dst, nest.run);
    for l in &nest.loops {
        line += &format!(", {} x (src {:+}, dst {:+})", l.count, l.src, l.dst);
    }
    line
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file, unless it is larger than any that is read.
fn contents(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // One byte more than is allowed, so that the reader of the form says so.
        File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().with_context(|| path.display().to_string()).map_err(Failure::Input)
}

/// Runs the command.
pub fn run(args: &PlanArgs, capture: &Path, sources: &Path) -> Result<(), Failure> {
    let name = |path: &Path| path.display().to_string();
    let captured =
        CaptureFile::parse(&contents(capture)?).with_context(|| name(capture)).map_err(Failure::Input)?;
    let catalog =
        SourcesFile::parse(&contents(sources)?).with_context(|| name(sources)).map_err(Failure::Input)?;
    let wanted = &args.wanted;
    let limits = Limits {
        max_descriptors: wanted.max_descriptors,
        strided: args.strided,
        convert: args.convert,
        staging: wanted.staging.into(),
        staging_bytes: wanted.staging_bytes,
        alignment: args.alignment,
    };
    let plan = plan(&captured, &catalog, &limits).with_context(|| name(capture)).map_err(Failure::Input)?;
    page::of_plan(args, &plan, &limits)?;
    let inputs = Inputs::of(&captured, &catalog, &limits, None, &saved::ordered(&plan));
    let file = PlanFile::new(plan, inputs);
    let json = if args.json || args.out_plan.is_some() { file.write() } else { String::new() };
    if let Some(path) = &args.out_plan {
        write_small(path, json.as_bytes())?;
    }
    let plan = &file.plan;
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match args.json {
        true => out.write_all(json.as_bytes()),
        false => text(&mut out, plan, &limits, args.verbose),
    };
    printed.and_then(|()| out.flush()).context("printing the plan").map_err(Failure::Transfer)?;
    match &plan.refused[..] {
        [] => Ok(()),
        [one] => Err(Failure::input(anyhow!("{}: {}", one.source, one.reason))),
        [first, rest @ ..] => {
            let more = rest.len();
            Err(Failure::input(anyhow!("{}: {} (and {more} more sources)", first.source, first.reason)))
        }
    }
}
