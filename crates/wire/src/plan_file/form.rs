//! The JSON of a plan file, key by key. What each means is said in `docs/plan-file.md`.

use restage_geometry::{Fill, Op, Param, Region};
use restage_nest::{Loop, Nest};
use restage_plan::{
    Counters, Limits, Plan, Reason, Refusal, ReplayStep, Segment, SourceSummary, Staging, StagingMode,
    StagingReason, Target,
};
use serde::{Deserialize, Deserializer, Serialize};

use super::inputs::{CaptureDigests, Inputs, PlacementForm, Published, params_digest};
use super::{PLAN_FORMAT, PLAN_VERSION, PlanFile};
use crate::element::{Digest, ElementBytes};
use crate::json::Named;
use crate::ops::OpForm;

/// A key that may be missing and is no null.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A whole file. Keys in the order in which they are written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanForm {
    pub format: String,
    pub version: u64,
    pub strided: bool,
    pub max_descriptors: u64,
    pub convert: bool,
    pub staging: ModeForm,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub staging_bytes: Option<u64>,
    pub alignment: u64,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementForm>,
    pub counters: CountersForm,
    pub coverage: f64,
    pub complete: bool,
    pub refused: Vec<RefusedForm>,
    pub incomplete: Vec<String>,
    pub params: Vec<ParamEntry>,
    pub sources: Vec<SourceEntry>,
    pub sessions: Vec<SessionEntry>,
    pub segments: Vec<SegmentForm>,
    pub stagings: Vec<StagingForm>,
    pub full_pulls: Vec<FullPullForm>,
    pub conversions: Vec<ConversionForm>,
    pub fills: Vec<ConstantForm>,
    pub overwritten: Vec<OverwrittenForm>,
    pub unbounded: Vec<String>,
    pub inputs: InputsForm,
    pub published: Named<Published>,
}

/// Counters under the names that the field uses for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CountersForm {
    pub descriptor_count: u64,
    pub exact_descriptor_count: u64,
    pub descriptor_savings: u64,
    pub bytes_planned: u64,
    pub exact_bytes: u64,
    pub extra_wire_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefusedForm {
    pub source: String,
    pub kind: String,
    pub reason: String,
    pub params: Vec<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub gap: Option<GapForm>,
}

/// What lies in no shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GapForm {
    pub param: String,
    pub missing: i64,
    pub holes: Vec<BoxForm>,
    pub absent: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoxForm {
    pub offset: Vec<i64>,
    pub shape: Vec<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParamEntry {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<i64>,
    pub bytes: u64,
    pub covered: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SourceEntry {
    pub name: String,
    pub copies: usize,
    pub counters: CountersForm,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionEntry {
    pub name: String,
    pub bytes: u64,
    pub descriptors: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SegmentForm {
    pub session: String,
    pub source: String,
    pub target: TargetForm,
    pub src: u64,
    pub dst: u64,
    pub run: u64,
    pub loops: Vec<LoopForm>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TargetForm {
    Param(String),
    Staging(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NestForm {
    pub src: u64,
    pub dst: u64,
    pub run: u64,
    pub loops: Vec<LoopForm>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoopForm {
    pub count: u64,
    pub src: i64,
    pub dst: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StagingForm {
    pub source: String,
    pub bytes: u64,
    pub reason: StagedFor,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub descriptors_needed: Option<u64>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_descriptors: Option<u64>,
    pub replays: Vec<ReplayForm>,
}

/// What may be staged, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ModeForm {
    RowShards,
    Tiles,
}

/// Why something is staged, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StagedFor {
    OverBound,
    Alignment,
    Cheaper,
    Conversion,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayForm {
    pub param: String,
    pub from: String,
    /// Null for an operation that files have no name for; such a plan is not read back.
    pub values: Vec<Option<OpForm>>,
    pub to: String,
    pub nests: Vec<NestForm>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FullPullForm {
    pub source: String,
    pub staging: usize,
    pub bytes: u64,
    pub descriptors_needed: u64,
    pub max_descriptors: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConversionForm {
    pub source: String,
    pub staging: usize,
    pub param: String,
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConstantForm {
    pub param: String,
    pub dest_offset: i64,
    pub dest_shape: Vec<i64>,
    pub dest_stride: Vec<i64>,
    pub element: ElementBytes,
}

/// A write that a later one replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverwrittenForm {
    pub param: String,
    pub writer: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InputsForm {
    pub whole: Digest,
    pub sources: Digest,
    pub shards: Digest,
    pub capture: CaptureDigests,
    pub limits: Digest,
    pub placement: Digest,
}

impl From<Counters> for CountersForm {
    fn from(c: Counters) -> Self {
        CountersForm {
            descriptor_count: c.descriptors,
            exact_descriptor_count: c.exact_descriptors,
            descriptor_savings: c.descriptors_saved(),
            bytes_planned: c.bytes,
            exact_bytes: c.exact_bytes,
            extra_wire_bytes: c.extra_wire_bytes(),
        }
    }
}

impl From<CountersForm> for Counters {
    fn from(c: CountersForm) -> Self {
        Counters {
            exact_descriptors: c.exact_descriptor_count,
            exact_bytes: c.exact_bytes,
            descriptors: c.descriptor_count,
            bytes: c.bytes_planned,
        }
    }
}

impl From<&Nest> for NestForm {
    fn from(nest: &Nest) -> Self {
        NestForm { src: nest.src, dst: nest.dst, run: nest.run, loops: loops(nest) }
    }
}

fn loops(nest: &Nest) -> Vec<LoopForm> {
    nest.loops.iter().map(|l| LoopForm { count: l.count, src: l.src, dst: l.dst }).collect()
}

/// The nest of these parts.
pub(super) fn nest(src: u64, dst: u64, run: u64, loops: &[LoopForm]) -> Nest {
    let loops = loops.iter().map(|l| Loop { count: l.count, src: l.src, dst: l.dst }).collect();
    Nest { src, dst, run, loops }
}

/// The kinds of reasons to refuse a source.
pub(super) const GAP: &str = "gap";

fn refused(r: &Refusal) -> RefusedForm {
    let (kind, gap) = match &r.reason {
        Reason::Unsupported { .. } => ("unsupported", None),
        Reason::NotPublished => ("not_published", None),
        Reason::Differs { .. } => ("differs", None),
        Reason::Rejected(_) => ("rejected", None),
        Reason::Gather(_) => ("destination", None),
        Reason::Gap { param, missing, holes, absent } => {
            let holes = holes.iter().map(BoxForm::from).collect();
            let absent = absent.iter().map(|s| s.to_string()).collect();
            (GAP, Some(GapForm { param: param.clone(), missing: *missing, holes, absent }))
        }
        Reason::Bytes(_) => ("bytes", None),
        Reason::Digests { .. } => ("digests", None),
        Reason::Alignment { .. } => ("alignment", None),
        Reason::Staging { .. } => ("staging", None),
        Reason::Conversion { .. } => ("conversion", None),
        Reason::Recorded { kind, .. } => (kind.as_str(), None),
        // A reason that has no word of its own yet.
        _ => ("other", None),
    };
    RefusedForm {
        source: r.source.to_string(),
        kind: kind.to_owned(),
        reason: r.reason.to_string(),
        params: r.params.clone(),
        gap,
    }
}

impl From<StagingMode> for ModeForm {
    fn from(mode: StagingMode) -> Self {
        match mode {
            StagingMode::RowShards => ModeForm::RowShards,
            // Everything else that is staged today is tiles.
            _ => ModeForm::Tiles,
        }
    }
}

impl From<ModeForm> for StagingMode {
    fn from(form: ModeForm) -> Self {
        match form {
            ModeForm::RowShards => StagingMode::RowShards,
            ModeForm::Tiles => StagingMode::Tiles,
        }
    }
}

impl From<&Region> for BoxForm {
    fn from(region: &Region) -> Self {
        BoxForm { offset: region.start().to_vec(), shape: region.shape() }
    }
}

impl PlanForm {
    /// The form of a plan with what it was made from. All that follows from something else is worked out here,
    /// so that reading can compare.
    pub fn of(file: &PlanFile) -> Self {
        let PlanFile { plan, inputs } = file;
        let names = Names(plan);
        let Limits { max_descriptors, strided, convert, staging, staging_bytes, alignment } = inputs.limits;
        let stagings = || plan.stagings.iter().enumerate();
        let full_pulls = stagings().filter_map(|(at, s)| match s.reason {
            StagingReason::OverBound { descriptors, bound } => Some(FullPullForm {
                source: names.source(s.source),
                staging: at,
                bytes: s.bytes,
                descriptors_needed: descriptors,
                max_descriptors: bound,
            }),
            _ => None,
        });
        let steps = stagings().flat_map(|(at, s)| s.replays.iter().map(move |step| (at, s.source, step)));
        let conversions =
            steps.filter(|(_, _, step)| !step.values.is_empty()).map(|(at, source, step)| ConversionForm {
                source: names.source(source),
                staging: at,
                param: names.param(step.param),
                from: step.from.name().to_owned(),
                to: step.to.name().to_owned(),
            });
        let sessions = plan.sessions.iter().zip(plan.session_counters());
        PlanForm {
            format: PLAN_FORMAT.to_owned(),
            version: PLAN_VERSION,
            strided,
            max_descriptors,
            convert,
            staging: ModeForm::from(staging),
            staging_bytes,
            alignment,
            placement: inputs.placement.clone(),
            counters: plan.counters().into(),
            coverage: plan.coverage_ratio(),
            complete: plan.is_complete(),
            refused: plan.refused.iter().map(refused).collect(),
            incomplete: plan.incomplete().map(str::to_owned).collect(),
            params: plan
                .params
                .iter()
                .zip(&plan.coverage)
                .map(|(p, c)| param(p, c.bytes, c.covered))
                .collect(),
            sources: plan.sources.iter().map(source).collect(),
            sessions: sessions
                .map(|(name, (bytes, descriptors))| SessionEntry {
                    name: name.to_string(),
                    bytes,
                    descriptors,
                })
                .collect(),
            segments: plan.segments.iter().map(|s| names.segment(s)).collect(),
            stagings: plan.stagings.iter().map(|s| names.staging(s)).collect(),
            full_pulls: full_pulls.collect(),
            conversions: conversions.collect(),
            fills: plan.fills.iter().map(|f| names.fill(f)).collect(),
            overwritten: plan
                .overwritten
                .iter()
                .map(|o| OverwrittenForm {
                    param: names.param(o.param),
                    writer: o.writer.clone(),
                    bytes: o.bytes,
                })
                .collect(),
            unbounded: plan.unbounded().map(str::to_owned).collect(),
            inputs: inputs_form(plan, inputs),
            published: Named(inputs.published.iter().map(|(n, p)| (n.clone(), p.clone())).collect()),
        }
    }
}

fn inputs_form(plan: &Plan, inputs: &Inputs) -> InputsForm {
    // The parameters are in the plan: they cannot be others than those of the capture.
    let params = params_digest(&plan.params);
    InputsForm {
        whole: inputs.whole(),
        sources: inputs.sources(),
        shards: inputs.shards.clone(),
        capture: CaptureDigests { params, ..inputs.capture.clone() },
        limits: inputs.limits_digest(),
        placement: inputs.placement_digest(),
    }
}

fn param(p: &Param, bytes: u64, covered: u64) -> ParamEntry {
    ParamEntry {
        name: p.name.clone(),
        dtype: p.dtype.name().to_owned(),
        shape: p.shape.clone(),
        bytes,
        covered,
    }
}

fn source(s: &SourceSummary) -> SourceEntry {
    SourceEntry { name: s.name.to_string(), copies: s.copies, counters: s.counters.into() }
}

/// Names for a plan's numbers.
struct Names<'p>(&'p Plan);

impl Names<'_> {
    fn source(&self, index: usize) -> String {
        self.0.sources[index].name.to_string()
    }

    fn param(&self, index: usize) -> String {
        self.0.params[index].name.clone()
    }

    fn segment(&self, s: &Segment) -> SegmentForm {
        SegmentForm {
            session: self.0.sessions[s.session].to_string(),
            source: self.source(s.source),
            target: match s.target {
                Target::Param(p) => TargetForm::Param(self.param(p)),
                Target::Staging(s) => TargetForm::Staging(s),
            },
            src: s.nest.src,
            dst: s.nest.dst,
            run: s.nest.run,
            loops: loops(&s.nest),
        }
    }

    fn staging(&self, s: &Staging) -> StagingForm {
        let (reason, bound) = match s.reason {
            StagingReason::OverBound { descriptors, bound } => {
                (StagedFor::OverBound, Some((descriptors, bound)))
            }
            StagingReason::Alignment => (StagedFor::Alignment, None),
            StagingReason::Cheaper => (StagedFor::Cheaper, None),
            // Everything else that is staged today is converted.
            _ => (StagedFor::Conversion, None),
        };
        StagingForm {
            source: self.source(s.source),
            bytes: s.bytes,
            reason,
            descriptors_needed: bound.map(|(needed, _)| needed),
            max_descriptors: bound.map(|(_, most)| most),
            replays: s.replays.iter().map(|step| self.replay(step)).collect(),
        }
    }

    fn replay(&self, step: &ReplayStep) -> ReplayForm {
        ReplayForm {
            param: self.param(step.param),
            from: step.from.name().to_owned(),
            values: step.values.iter().map(|&v| OpForm::of(&Op::Value(v))).collect(),
            to: step.to.name().to_owned(),
            nests: step.nests.iter().map(NestForm::from).collect(),
        }
    }

    fn fill(&self, fill: &Fill) -> ConstantForm {
        ConstantForm {
            param: self.param(fill.param),
            dest_offset: fill.dest.offset,
            dest_shape: fill.dest.shape.clone(),
            dest_stride: fill.dest.strides.clone(),
            element: ElementBytes(fill.element.clone()),
        }
    }
}
