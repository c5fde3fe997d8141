//! From the form of a plan file to the plan, with every number checked on the way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use restage_geometry::{Dest, Dtype, Fill, Op, Param, Region, ValueOp, View};
use restage_nest::{Nest, Strided, cover};
use restage_plan::{
    Coverage, Limits, Overwritten, Plan, Reason, Refusal, ReplayStep, Segment, SourceSummary, Staging,
    StagingReason, Target,
};

use super::form::{
    GAP, NestForm, PlanForm, RefusedForm, ReplayForm, StagedFor, StagingForm, TargetForm, nest,
};
use super::inputs::Inputs;
use super::{PlanFile, Published};
use crate::json::MAX_ELEMENTS;
use crate::tables::TableError;
use crate::{JsonPath, WireError, WireProblem};

/// Most bytes that all stagings of a plan may have together: as many as elements, so that sums of counters fit.
const MAX_STAGED: u64 = MAX_ELEMENTS as u64;

type Result<T> = std::result::Result<T, WireError>;

/// The plan of a form, and what it was made from. Whatever the form repeats is not looked at here.
pub(super) fn build(form: &PlanForm) -> Result<PlanFile> {
    let top = JsonPath::top();
    let sessions = index("session", form.sessions.iter().map(|s| s.name.as_str()), &top.key("sessions"))?;
    let sources = index("source", form.sources.iter().map(|s| s.name.as_str()), &top.key("sources"))?;
    let names = index("parameter", form.params.iter().map(|p| p.name.as_str()), &top.key("params"))?;
    index("refused source", form.refused.iter().map(|r| r.source.as_str()), &top.key("refused"))?;
    let params = params(form, &top.key("params"))?;
    let bytes = params.iter().map(|(_, bytes)| *bytes).collect();
    let mut builder = Builder {
        sessions,
        sources,
        names,
        writes: vec![Vec::new(); params.len()],
        staged: vec![Vec::new(); form.stagings.len()],
        params: params.into_iter().map(|(param, _)| param).collect(),
        bytes,
    };
    let stagings = builder.stagings(form)?;
    let segments = builder.segments(form)?;
    let fills = builder.fills(form)?;
    let coverage = builder.coverage(form)?;
    let overwritten = builder.overwritten(form)?;
    let plan = Plan {
        sessions: form.sessions.iter().map(|s| Arc::from(s.name.as_str())).collect(),
        sources: summaries(form, &segments)?,
        params: builder.params,
        segments,
        stagings,
        fills,
        overwritten,
        refused: refusals(form)?,
        coverage,
        copies: form
            .sources
            .iter()
            .try_fold(0usize, |n, s| n.checked_add(s.copies))
            .ok_or_else(|| WireError::at(top.key("sources"), restage_nest::NestError::Overflow))?,
        strided: form.strided,
        staging_bytes: form.staging_bytes,
    };
    let published: BTreeMap<String, Published> = form.published.0.iter().cloned().collect();
    let (max_descriptors, strided, convert) = (form.max_descriptors, form.strided, form.convert);
    let inputs = Inputs {
        published,
        shards: form.inputs.shards.clone(),
        capture: form.inputs.capture.clone(),
        limits: Limits {
            max_descriptors,
            strided,
            convert,
            staging: form.staging.into(),
            staging_bytes: form.staging_bytes,
            alignment: form.alignment,
        },
        placement: form.placement.clone(),
    };
    Ok(PlanFile { plan, inputs })
}

/// Names that can be looked up.
struct Lookup<'f> {
    what: &'static str,
    numbers: HashMap<&'f str, usize>,
}

impl Lookup<'_> {
    fn get(&self, name: &str, path: &JsonPath) -> Result<usize> {
        self.numbers.get(name).copied().ok_or_else(|| {
            WireError::at(path.clone(), WireProblem::Unlisted { what: self.what, name: name.to_owned() })
        })
    }
}

/// Numbers a list of names, which must be sorted.
fn index<'f>(
    what: &'static str,
    names: impl Iterator<Item = &'f str>,
    path: &JsonPath,
) -> Result<Lookup<'f>> {
    let mut numbers = HashMap::new();
    let mut last: Option<&str> = None;
    for (at, name) in names.enumerate() {
        if last.is_some_and(|last| last >= name) {
            return Err(WireError::at(path.at(at), WireProblem::Unsorted(name.to_owned())));
        }
        last = Some(name);
        numbers.insert(name, at);
    }
    Ok(Lookup { what, numbers })
}

fn dtype(name: &str, path: &JsonPath) -> Result<Dtype> {
    name.parse().map_err(|e| WireError::at(path.clone(), TableError::from(e)))
}

/// The parameters with their bytes.
fn params(form: &PlanForm, path: &JsonPath) -> Result<Vec<(Param, u64)>> {
    let mut total = 0i64;
    let param = |(at, p): (usize, &super::form::ParamEntry)| {
        let path = path.at(at);
        let dtype = dtype(&p.dtype, &path.key("dtype"))?;
        let view = View::whole(&p.shape).map_err(|e| WireError::at(path.key("shape"), e))?;
        total = total.checked_add(view.numel()).filter(|&n| n <= MAX_ELEMENTS).ok_or_else(|| {
            let what = "the parameters";
            WireError::at(path.clone(), WireProblem::TooMany { what, limit: MAX_ELEMENTS })
        })?;
        let bytes = dtype.bytes(view.numel() as u64);
        let bytes =
            bytes.ok_or_else(|| WireError::at(path.key("shape"), restage_nest::NestError::Overflow))?;
        Ok((Param { name: p.name.clone(), dtype, shape: p.shape.clone() }, bytes))
    };
    form.params.iter().enumerate().map(param).collect()
}

/// What has been read so far.
struct Builder<'f> {
    sessions: Lookup<'f>,
    sources: Lookup<'f>,
    names: Lookup<'f>,
    params: Vec<Param>,
    /// Bytes of each parameter.
    bytes: Vec<u64>,
    /// What is written to each parameter, in bytes, and where the file says so.
    writes: Vec<Vec<(Strided, JsonPath)>>,
    /// What is read into each staging.
    staged: Vec<Vec<(Strided, JsonPath)>>,
}

/// The destination side of a nest that must end within `len`; its source side must lie anywhere.
fn side(nest: &Nest, len: u64, unit: &'static str, path: &JsonPath) -> Result<Strided> {
    let checked = nest.total().and_then(|_| nest.src_side()).and_then(|_| nest.dst_side());
    let side = checked.map_err(|e| WireError::at(path.clone(), e))?;
    inside(&side, "the destination", len, unit, path)?;
    Ok(side)
}

fn inside(side: &Strided, what: &'static str, len: u64, unit: &'static str, path: &JsonPath) -> Result<()> {
    let end = side.end().map_err(|e| WireError::at(path.clone(), e))?;
    match side.run > 0 && end > len {
        true => Err(WireError::at(path.clone(), WireProblem::Past { side: what, end, len, unit })),
        false => Ok(()),
    }
}

impl Builder<'_> {
    fn segments(&mut self, form: &PlanForm) -> Result<Vec<Segment>> {
        let mut out = Vec::with_capacity(form.segments.len());
        for (at, s) in form.segments.iter().enumerate() {
            let path = JsonPath::top().key("segments").at(at);
            let nest = nest(s.src, s.dst, s.run, &s.loops);
            let target = match &s.target {
                TargetForm::Param(name) => {
                    let param = self.names.get(name, &path.key("target").key("param"))?;
                    let side = side(&nest, self.bytes[param], "bytes", &path)?;
                    self.writes[param].push((side, path.clone()));
                    Target::Param(param)
                }
                TargetForm::Staging(found) => {
                    let staging = form.stagings.get(*found).ok_or_else(|| {
                        let stagings = form.stagings.len();
                        let problem = WireProblem::NoStaging { found: *found, stagings };
                        WireError::at(path.key("target").key("staging"), problem)
                    })?;
                    let side = side(&nest, staging.bytes, "bytes", &path)?;
                    self.staged[*found].push((side, path.clone()));
                    Target::Staging(*found)
                }
            };
            let session = self.sessions.get(&s.session, &path.key("session"))?;
            let source = self.sources.get(&s.source, &path.key("source"))?;
            out.push(Segment { session, source, target, nest });
        }
        for (at, staged) in self.staged.iter().enumerate() {
            let read = apart(staged)?;
            let expected = form.stagings[at].bytes;
            if read != expected {
                // What is not read would be replayed as it was found.
                let problem =
                    WireProblem::Disagrees { expected: read.to_string(), found: expected.to_string() };
                return Err(WireError::at(JsonPath::top().key("stagings").at(at).key("bytes"), problem));
            }
        }
        Ok(out)
    }

    fn stagings(&mut self, form: &PlanForm) -> Result<Vec<Staging>> {
        let mut total = 0u64;
        let mut out = Vec::with_capacity(form.stagings.len());
        for (at, s) in form.stagings.iter().enumerate() {
            let path = JsonPath::top().key("stagings").at(at);
            total = total.checked_add(s.bytes).filter(|&n| n <= MAX_STAGED).ok_or_else(|| {
                let what = "the stagings";
                WireError::at(path.key("bytes"), WireProblem::TooMany { what, limit: MAX_ELEMENTS })
            })?;
            let source = self.sources.get(&s.source, &path.key("source"))?;
            let mut replays = Vec::with_capacity(s.replays.len());
            for (step, r) in s.replays.iter().enumerate() {
                let path = path.key("replays").at(step);
                let param = self.names.get(&r.param, &path.key("param"))?;
                let (from, to) = (dtype(&r.from, &path.key("from"))?, dtype(&r.to, &path.key("to"))?);
                let expected = self.params[param].dtype;
                if to != expected {
                    let problem = WireProblem::OtherDtype { param: r.param.clone(), expected, found: to };
                    return Err(WireError::at(path.key("to"), problem));
                }
                let mut nests = Vec::with_capacity(r.nests.len());
                for (k, n) in r.nests.iter().enumerate() {
                    nests.push(self.replayed(n, s, from, param, &path.key("nests").at(k))?);
                }
                let values = values(r, from, to, &path)?;
                replays.push(ReplayStep { param, from, values, to, nests });
            }
            out.push(Staging { source, bytes: s.bytes, reason: reason(s, &path)?, replays });
        }
        Ok(out)
    }

    /// A nest from a staging of elements of `from` to a parameter.
    fn replayed(
        &mut self,
        form: &NestForm,
        staging: &StagingForm,
        from: Dtype,
        param: usize,
        path: &JsonPath,
    ) -> Result<Nest> {
        let nest = nest(form.src, form.dst, form.run, &form.loops);
        // A loop that goes nowhere on the destination's side is found where writes are compared.
        let packing = from.packing();
        let staged = (staging.bytes / packing.bytes).saturating_mul(packing.elements);
        let at = |e| WireError::at(path.clone(), e);
        nest.total().map_err(at)?;
        inside(&nest.src_side().map_err(at)?, "the source", staged, "elements", path)?;
        let packing = self.params[param].dtype.packing();
        let mut dst = nest.clone();
        dst.src = 0;
        dst.loops.iter_mut().for_each(|l| l.src = 0);
        let dst = dst.scaled(packing.elements, packing.bytes, 0).map_err(at)?;
        let side = side(&dst, self.bytes[param], "bytes", path)?;
        self.writes[param].push((side, path.clone()));
        Ok(nest)
    }

    fn fills(&mut self, form: &PlanForm) -> Result<Vec<Fill>> {
        let mut out = Vec::with_capacity(form.fills.len());
        for (at, f) in form.fills.iter().enumerate() {
            let path = JsonPath::top().key("fills").at(at);
            let param = self.names.get(&f.param, &path.key("param"))?;
            let dtype = self.params[param].dtype;
            let packing = dtype.packing();
            if packing.elements != 1 || f.element.0.len() as u64 != packing.bytes {
                let found = f.element.0.len();
                let (elements, bytes) = (packing.elements, packing.bytes);
                let problem = TableError::Constant { dtype, elements, bytes, found };
                return Err(WireError::at(path.key("element"), problem));
            }
            View::whole(&f.dest_shape).map_err(|e| WireError::at(path.key("dest_shape"), e))?;
            let dest =
                Dest { offset: f.dest_offset, shape: f.dest_shape.clone(), strides: f.dest_stride.clone() };
            let numel = self.bytes[param] / packing.bytes;
            dest.check(numel as i64).map_err(|e| WireError::at(path.clone(), e))?;
            let nest = dest.nest().scaled(1, packing.bytes, 0).map_err(|e| WireError::at(path.clone(), e))?;
            let side = side(&nest, self.bytes[param], "bytes", &path)?;
            self.writes[param].push((side, path));
            out.push(Fill { param, dest, element: f.element.0.clone(), after: 0 });
        }
        Ok(out)
    }

    fn overwritten(&self, form: &PlanForm) -> Result<Vec<Overwritten>> {
        let path = JsonPath::top().key("overwritten");
        let one = |(at, o): (usize, &super::form::OverwrittenForm)| {
            let param = self.names.get(&o.param, &path.at(at).key("param"))?;
            Ok(Overwritten { param, writer: o.writer.clone(), bytes: o.bytes })
        };
        form.overwritten.iter().enumerate().map(one).collect()
    }

    fn coverage(&self, form: &PlanForm) -> Result<Vec<Coverage>> {
        debug_assert_eq!(self.writes.len(), form.params.len());
        let pairs = self.bytes.iter().zip(&self.writes);
        pairs.map(|(&bytes, writes)| Ok(Coverage { bytes, covered: apart(writes)? })).collect()
    }
}

/// Bytes that are written, none of them twice.
fn apart(writes: &[(Strided, JsonPath)]) -> Result<u64> {
    let sides: Vec<Strided> = writes.iter().map(|(side, _)| side.clone()).collect();
    cover::disjoint(&sides)
        .map_err(|o| WireError::at(writes[o.second].1.clone(), WireProblem::Again { at: o.at }))?;
    // Disjoint and inside of something that has a size.
    Ok(sides.iter().map(|s| s.run * s.run_count()).sum())
}

/// The value operations of a replay, which must lead from the one type to the other.
fn values(form: &ReplayForm, from: Dtype, to: Dtype, path: &JsonPath) -> Result<Vec<ValueOp>> {
    let mut found = from;
    let mut out = Vec::with_capacity(form.values.len());
    for (at, value) in form.values.iter().enumerate() {
        let path = path.key("values").at(at);
        let Some(Op::Value(op)) = value.clone().map(Op::from) else {
            return Err(WireError::at(path, WireProblem::NoValueOp));
        };
        found = op.result(found).map_err(|e| WireError::at(path, e))?;
        out.push(op);
    }
    match found == to {
        true => Ok(out),
        false => Err(WireError::at(path.key("to"), WireProblem::Becomes { from, found, to })),
    }
}

fn reason(s: &StagingForm, path: &JsonPath) -> Result<StagingReason> {
    match (s.reason, s.descriptors_needed, s.max_descriptors) {
        (StagedFor::OverBound, Some(descriptors), Some(bound)) => {
            Ok(StagingReason::OverBound { descriptors, bound })
        }
        (StagedFor::OverBound, _, _) => {
            let expected = "descriptors_needed and max_descriptors".to_owned();
            Err(WireError::at(path.clone(), WireProblem::Disagrees { expected, found: "nothing".to_owned() }))
        }
        // What does not belong there is found when the form is compared.
        (StagedFor::Alignment, _, _) => Ok(StagingReason::Alignment),
        (StagedFor::Cheaper, _, _) => Ok(StagingReason::Cheaper),
        (StagedFor::Conversion, _, _) => Ok(StagingReason::Conversion),
    }
}

/// The sources, whose counters must sum up to what the segments read.
fn summaries(form: &PlanForm, segments: &[Segment]) -> Result<Vec<SourceSummary>> {
    let path = JsonPath::top().key("sources");
    let unbounded: std::collections::HashSet<&str> = form.unbounded.iter().map(String::as_str).collect();
    let mut sums = [0u64; 4];
    let mut out = Vec::with_capacity(form.sources.len());
    for (at, s) in form.sources.iter().enumerate() {
        let c = s.counters;
        let parts = [c.descriptor_count, c.exact_descriptor_count, c.bytes_planned, c.exact_bytes];
        for (sum, part) in sums.iter_mut().zip(parts) {
            *sum = sum.checked_add(part).ok_or_else(|| {
                WireError::at(path.at(at).key("counters"), restage_nest::NestError::Overflow)
            })?;
        }
        out.push(SourceSummary {
            name: s.name.as_str().into(),
            copies: s.copies,
            counters: c.into(),
            unbounded: unbounded.contains(s.name.as_str()),
        });
    }
    // Segments lie apart in parameters and stagings, whose bytes have been summed.
    let read: u64 = segments.iter().filter_map(|s| s.nest.total().ok()).sum();
    if read != sums[2] {
        let problem = WireProblem::Disagrees { expected: read.to_string(), found: sums[2].to_string() };
        return Err(WireError::at(JsonPath::top().key("counters").key("bytes_planned"), problem));
    }
    Ok(out)
}

fn refusals(form: &PlanForm) -> Result<Vec<Refusal>> {
    let path = JsonPath::top().key("refused");
    let refusal = |(at, r): (usize, &RefusedForm)| {
        let reason = match &r.gap {
            Some(gap) if r.kind == GAP => {
                let region = |(k, hole): (usize, &super::form::BoxForm)| {
                    Region::new(&hole.offset, &hole.shape).map_err(|e| {
                        WireError::at(path.at(at).key("gap").key("holes").at(k), TableError::from(e))
                    })
                };
                let holes = gap.holes.iter().enumerate().map(region).collect::<Result<_>>()?;
                let absent = gap.absent.iter().map(|s| s.as_str().into()).collect();
                Reason::Gap { param: gap.param.clone(), missing: gap.missing, holes, absent }
            }
            _ => Reason::Recorded { kind: r.kind.clone(), text: r.reason.clone() },
        };
        Ok(Refusal { source: r.source.as_str().into(), params: r.params.clone(), reason })
    };
    form.refused.iter().enumerate().map(refusal).collect()
}
