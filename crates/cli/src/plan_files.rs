//! `restage plan --capture FILE --sources FILE`: a plan from two files alone, in full. `docs/capture-file.md`
//! documents both files and the JSON that is printed.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, anyhow};
use restage_geometry::{Fill, Op};
use restage_nest::Nest;
use restage_plan::{
    Counters, Explain, Limits, Plan, ReplayStep, Segment, Staging, StagingReason, Target, plan,
};
use restage_wire::{CaptureFile, MAX_FILE_BYTES, OpForm, SourcesFile};
use serde::Serialize;

use crate::args::PlanArgs;
use crate::failure::Failure;

/// The plan as it is printed. The lists are in the order of the plan, which does not depend on that of the files.
#[derive(Serialize)]
struct Report<'p> {
    strided: bool,
    max_descriptors: u64,
    convert: bool,
    counters: PeerCounters,
    coverage: f64,
    complete: bool,
    params: Vec<ParamReport<'p>>,
    sources: Vec<SourceReport<'p>>,
    sessions: Vec<SessionReport<'p>>,
    segments: Vec<SegmentReport<'p>>,
    stagings: Vec<StagingReport<'p>>,
    full_pulls: Vec<FullPull<'p>>,
    conversions: Vec<Conversion<'p>>,
    fills: Vec<FillReport<'p>>,
    overwritten: Vec<OverwrittenReport<'p>>,
    unbounded: Vec<&'p str>,
    refused: Vec<Refused<'p>>,
    incomplete: Vec<&'p str>,
}

/// Counters under the names that the field uses for them.
#[derive(Serialize)]
struct PeerCounters {
    descriptor_count: u64,
    exact_descriptor_count: u64,
    descriptor_savings: u64,
    bytes_planned: u64,
    exact_bytes: u64,
    extra_wire_bytes: u64,
}

#[derive(Serialize)]
struct ParamReport<'p> {
    name: &'p str,
    dtype: &'static str,
    shape: &'p [i64],
    bytes: u64,
    covered: u64,
}

#[derive(Serialize)]
struct SourceReport<'p> {
    name: &'p str,
    copies: usize,
    counters: PeerCounters,
}

#[derive(Serialize)]
struct SessionReport<'p> {
    name: &'p str,
    bytes: u64,
    descriptors: u64,
}

#[derive(Serialize)]
struct SegmentReport<'p> {
    session: &'p str,
    source: &'p str,
    target: TargetReport<'p>,
    #[serde(flatten)]
    nest: NestReport,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum TargetReport<'p> {
    Param(&'p str),
    Staging(usize),
}

#[derive(Serialize)]
struct NestReport {
    src: u64,
    dst: u64,
    run: u64,
    loops: Vec<LoopReport>,
}

#[derive(Serialize)]
struct LoopReport {
    count: u64,
    src: i64,
    dst: i64,
}

#[derive(Serialize)]
struct StagingReport<'p> {
    source: &'p str,
    bytes: u64,
    reason: &'static str,
    replays: Vec<ReplayReport<'p>>,
}

#[derive(Serialize)]
struct ReplayReport<'p> {
    param: &'p str,
    from: &'static str,
    /// Null for an operation that files have no name for.
    values: Vec<Option<OpForm>>,
    to: &'static str,
    nests: Vec<NestReport>,
}

#[derive(Serialize)]
struct FullPull<'p> {
    source: &'p str,
    staging: usize,
    bytes: u64,
    descriptors_needed: u64,
    max_descriptors: u64,
}

#[derive(Serialize)]
struct Conversion<'p> {
    source: &'p str,
    staging: usize,
    param: &'p str,
    from: &'static str,
    to: &'static str,
}

#[derive(Serialize)]
struct FillReport<'p> {
    param: &'p str,
    dest_offset: i64,
    dest_shape: &'p [i64],
    dest_stride: &'p [i64],
    element: String,
}

#[derive(Serialize)]
struct OverwrittenReport<'p> {
    param: &'p str,
    writer: &'p str,
    bytes: u64,
}

#[derive(Serialize)]
struct Refused<'p> {
    source: &'p str,
    reason: String,
    params: &'p [String],
}

impl From<Counters> for PeerCounters {
    fn from(c: Counters) -> Self {
        PeerCounters {
            descriptor_count: c.descriptors,
            exact_descriptor_count: c.exact_descriptors,
            descriptor_savings: c.descriptors_saved(),
            bytes_planned: c.bytes,
            exact_bytes: c.exact_bytes,
            extra_wire_bytes: c.extra_wire_bytes(),
        }
    }
}

impl From<&Nest> for NestReport {
    fn from(nest: &Nest) -> Self {
        let loops = nest.loops.iter().map(|l| LoopReport { count: l.count, src: l.src, dst: l.dst });
        NestReport { src: nest.src, dst: nest.dst, run: nest.run, loops: loops.collect() }
    }
}

fn reason(staging: &Staging) -> &'static str {
    match staging.reason {
        StagingReason::OverBound { .. } => "over_bound",
        StagingReason::Conversion => "conversion",
        // A reason that this command does not know yet is still a staging.
        _ => "other",
    }
}

fn report<'p>(plan: &'p Plan, limits: &Limits) -> Report<'p> {
    let source = |index: usize| &*plan.sources[index].name;
    let param = |index: usize| plan.params[index].name.as_str();
    let segment = |s: &Segment| SegmentReport {
        session: &plan.sessions[s.session],
        source: source(s.source),
        target: match s.target {
            Target::Param(p) => TargetReport::Param(param(p)),
            Target::Staging(s) => TargetReport::Staging(s),
        },
        nest: NestReport::from(&s.nest),
    };
    let replay = |step: &ReplayStep| ReplayReport {
        param: param(step.param),
        from: step.from.name(),
        values: step.values.iter().map(|&v| OpForm::of(&Op::Value(v))).collect(),
        to: step.to.name(),
        nests: step.nests.iter().map(NestReport::from).collect(),
    };
    let stagings = || plan.stagings.iter().enumerate();
    let full_pulls = stagings().filter_map(|(at, s)| match s.reason {
        StagingReason::OverBound { descriptors, bound } => Some(FullPull {
            source: source(s.source),
            staging: at,
            bytes: s.bytes,
            descriptors_needed: descriptors,
            max_descriptors: bound,
        }),
        _ => None,
    });
    let conversions = stagings().flat_map(|(at, s)| s.replays.iter().map(move |step| (at, s, step)));
    let conversions =
        conversions.filter(|(_, _, step)| !step.values.is_empty()).map(|(at, s, step)| Conversion {
            source: source(s.source),
            staging: at,
            param: param(step.param),
            from: step.from.name(),
            to: step.to.name(),
        });
    let fill = |fill: &'p Fill| FillReport {
        param: param(fill.param),
        dest_offset: fill.dest.offset,
        dest_shape: &fill.dest.shape,
        dest_stride: &fill.dest.strides,
        element: hex(&fill.element),
    };
    Report {
        strided: limits.strided,
        max_descriptors: limits.max_descriptors,
        convert: limits.convert,
        counters: plan.counters().into(),
        coverage: plan.coverage_ratio(),
        complete: plan.is_complete(),
        params: plan
            .params
            .iter()
            .zip(&plan.coverage)
            .map(|(p, c)| ParamReport {
                name: &p.name,
                dtype: p.dtype.name(),
                shape: &p.shape,
                bytes: c.bytes,
                covered: c.covered,
            })
            .collect(),
        sources: plan
            .sources
            .iter()
            .map(|s| SourceReport { name: &s.name, copies: s.copies, counters: s.counters.into() })
            .collect(),
        sessions: plan
            .sessions
            .iter()
            .zip(plan.session_counters())
            .map(|(name, (bytes, descriptors))| SessionReport { name, bytes, descriptors })
            .collect(),
        segments: plan.segments.iter().map(segment).collect(),
        stagings: plan
            .stagings
            .iter()
            .map(|s| StagingReport {
                source: source(s.source),
                bytes: s.bytes,
                reason: reason(s),
                replays: s.replays.iter().map(replay).collect(),
            })
            .collect(),
        full_pulls: full_pulls.collect(),
        conversions: conversions.collect(),
        fills: plan.fills.iter().map(fill).collect(),
        overwritten: plan
            .overwritten
            .iter()
            .map(|o| OverwrittenReport { param: param(o.param), writer: &o.writer, bytes: o.bytes })
            .collect(),
        unbounded: plan.unbounded().collect(),
        refused: plan
            .refused
            .iter()
            .map(|r| Refused { source: &r.source, reason: r.reason.to_string(), params: &r.params })
            .collect(),
        incomplete: plan.incomplete().collect(),
    }
}

/// The text: the totals, then one line a segment, a staging, a replay and a constant, then the counters.
fn text(out: &mut dyn Write, plan: &Plan, report: &Report<'_>) -> io::Result<()> {
    let form = if report.strided { "strided segments whole" } else { "contiguous descriptors" };
    writeln!(out, "{form}, at most {} descriptors a copy", report.max_descriptors)?;
    write!(out, "{}", Explain(plan))?;
    for s in &report.segments {
        let target = match s.target {
            TargetReport::Param(name) => name.to_owned(),
            TargetReport::Staging(at) => format!("staging {at}"),
        };
        writeln!(out, "  segment     {} {} -> {target}: {}", s.session, s.source, line(&s.nest))?;
    }
    for (at, s) in report.stagings.iter().enumerate() {
        writeln!(out, "  staging     {at} of {}: {} bytes, {}", s.source, s.bytes, s.reason)?;
        for step in &s.replays {
            for nest in &step.nests {
                let what = if step.values.is_empty() { "replay" } else { "convert" };
                let (from, to) = (step.from, step.to);
                writeln!(out, "    {what} {from} -> {} {to}, elements: {}", step.param, line(nest))?;
            }
        }
    }
    for f in &report.fills {
        let (shape, stride) = (f.dest_shape, f.dest_stride);
        writeln!(
            out,
            "  constant    {} at {} {shape:?} by {stride:?}: {}",
            f.param, f.dest_offset, f.element
        )?;
    }
    let c = &report.counters;
    for (name, value) in [
        ("descriptor_count", c.descriptor_count),
        ("exact_descriptor_count", c.exact_descriptor_count),
        ("descriptor_savings", c.descriptor_savings),
        ("bytes_planned", c.bytes_planned),
        ("exact_bytes", c.exact_bytes),
        ("extra_wire_bytes", c.extra_wire_bytes),
    ] {
        writeln!(out, "  counter     {name} {value}")?;
    }
    Ok(())
}

fn line(nest: &NestReport) -> String {
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
    let limits =
        Limits { max_descriptors: args.wanted.max_descriptors, strided: args.strided, convert: args.convert };
    let plan = plan(&captured, &catalog, &limits).with_context(|| name(capture)).map_err(Failure::Input)?;
    let report = report(&plan, &limits);
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match args.json {
        true => serde_json::to_writer_pretty(&mut out, &report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        false => text(&mut out, &plan, &report),
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
