//! The plan file: a plan in full with what it was made from, in JSON.

mod build;
mod disagree;
mod form;
mod inputs;

use restage_geometry::{Captured, Param};
use restage_plan::{Limits, Plan};

pub use inputs::{CaptureDigests, Change, Inputs, PlacementForm, Published, SourceChange};

use crate::WireError;
use crate::json::{Head, read_within};
use form::PlanForm;

/// The `format` of a plan file.
pub const PLAN_FORMAT: &str = "restage-plan";

/// The `version` of a plan file.
pub const PLAN_VERSION: u64 = 1;

/// Most bytes of a plan file. A plan has a few hundred bytes for each piece that it reads, and the plans of the
/// largest models have a few hundred thousand pieces.
pub const MAX_PLAN_BYTES: u64 = 256 << 20;

/// A plan, and what it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanFile {
    /// The plan. One that was read has [`Reason::Recorded`](restage_plan::Reason::Recorded) where the file has a
    /// reason in words only.
    pub plan: Plan,
    /// What it was made from.
    pub inputs: Inputs,
}

impl PlanFile {
    /// A plan with what it was made from.
    pub fn new(mut plan: Plan, mut inputs: Inputs) -> Self {
        // The constants of a plan meet nothing else: where they stood among the copies is no part of it.
        plan.fills.iter_mut().for_each(|fill| fill.after = 0);
        // The two are one option.
        inputs.limits = Limits { strided: plan.strided, ..inputs.limits };
        PlanFile { plan, inputs }
    }

    /// The file, one item of its lists a line. It depends on the plan and its inputs only.
    pub fn write(&self) -> String {
        crate::lines::write(&PlanForm::of(self))
    }

    /// Reads a plan file. Every name resolves, every nest lies inside of what it reads into, no two of them
    /// write one byte, and whatever follows from something else (counters, coverage, lists, digests) agrees
    /// with it. What a nest reads at its session is not known here:
    /// [`PlanFile::changes`] tells whether the sources are those that the plan was made for.
    ///
    /// # Errors
    /// [`WireError`] with the path of what is wrong.
    pub fn read(json: &[u8]) -> Result<Self, WireError> {
        read_within::<Head>(json, MAX_PLAN_BYTES)?.check(PLAN_FORMAT, PLAN_VERSION)?;
        let form: PlanForm = read_within(json, MAX_PLAN_BYTES)?;
        let file = build::build(&form)?;
        let derived = PlanForm::of(&file);
        match derived == form {
            true => Ok(file),
            false => Err(disagree::first(&derived, &form)),
        }
    }

    /// What changed between what the plan was made from and what is found: empty when the plan may be carried out.
    /// A parameter of another shape is named before the rest of its capture.
    pub fn changes(&self, captured: &Captured, found: &Inputs) -> Vec<Change> {
        let mut changes = self.inputs.changes(found);
        if !changes.contains(&Change::Capture("params")) {
            return changes;
        }
        let text = |p: Option<&Param>| match p {
            Some(p) => format!("{} {:?}", p.dtype, p.shape),
            None => "nothing".to_owned(),
        };
        let mut now: Vec<&Param> = captured.params.iter().collect();
        now.sort_by(|a, b| a.name.cmp(&b.name));
        let find = |list: &[&Param], name: &str| {
            list.binary_search_by(|p| p.name.as_str().cmp(name)).ok().map(|at| list[at].clone())
        };
        let then: Vec<&Param> = self.plan.params.iter().collect();
        let mut names: Vec<&str> = then.iter().chain(&now).map(|p| p.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let named = names.into_iter().filter_map(|name| {
            let (expected, found) = (text(find(&then, name).as_ref()), text(find(&now, name).as_ref()));
            (expected != found).then(|| Change::Param { name: name.to_owned(), expected, found })
        });
        let named: Vec<Change> = named.collect();
        if !named.is_empty() {
            changes.retain(|c| *c != Change::Capture("params"));
            let at = changes.iter().position(|c| matches!(c, Change::Capture(_))).unwrap_or(changes.len());
            changes.splice(at..at, named);
        }
        changes
    }
}
