//! What changed from one plan to another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use restage_geometry::{Dtype, Fill};
use restage_nest::Nest;

use super::name::{Name, group};
use super::served::served;
use crate::plan::{Plan, StagingReason, Target};

/// Something that both plans have differently, or one of them only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed<T> {
    /// Its name.
    pub name: String,
    /// What it was; none where it was not.
    pub before: Option<T>,
    /// What it is; none where it is gone.
    pub after: Option<T>,
}

/// A parameter in one of the plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSide {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
    /// Bytes that it is provided with.
    pub covered: u64,
    /// How it is served, a line for each way and source. Where the lines of both sides are equal, the same amounts
    /// come from other places.
    pub served: Vec<String>,
}

/// What changed from one plan to another. Lists are sorted by name and have only what differs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// Sources that are refused, with the reason.
    pub refused: Vec<Changed<String>>,
    /// Totals, by their names in a plan file.
    pub totals: Vec<Changed<u64>>,
    /// Sources that are read, with bytes and descriptors.
    pub sources: Vec<Changed<(u64, u64)>>,
    /// Sessions that are read from, with bytes and descriptors.
    pub sessions: Vec<Changed<(u64, u64)>>,
    /// Parameters.
    pub params: Vec<Changed<ParamSide>>,
}

impl Difference {
    /// What changed from `before` to `after`.
    pub fn between(before: &Plan, after: &Plan) -> Self {
        Difference {
            refused: changed(refused(before), refused(after)),
            totals: changed(totals(before), totals(after)),
            sources: changed(sources(before), sources(after)),
            sessions: changed(sessions(before), sessions(after)),
            params: params(before, after),
        }
    }

    /// True when both plans do the same.
    pub fn is_empty(&self) -> bool {
        *self == Difference::default()
    }
}

/// What two lists have differently.
fn changed<T: PartialEq + Clone>(before: BTreeMap<&str, T>, after: BTreeMap<&str, T>) -> Vec<Changed<T>> {
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let one = |name: &str| {
        let (before, after) = (before.get(name), after.get(name));
        let change = || Changed { name: name.to_owned(), before: before.cloned(), after: after.cloned() };
        (before != after).then(change)
    };
    names.into_iter().filter_map(one).collect()
}

fn refused(plan: &Plan) -> BTreeMap<&str, String> {
    plan.refused.iter().map(|r| (&*r.source, r.reason.to_string())).collect()
}

fn totals(plan: &Plan) -> BTreeMap<&'static str, u64> {
    let c = plan.counters();
    BTreeMap::from([
        ("descriptor_count", c.descriptors),
        ("exact_descriptor_count", c.exact_descriptors),
        ("bytes_planned", c.bytes),
        ("exact_bytes", c.exact_bytes),
        ("extra_wire_bytes", c.extra_wire_bytes()),
        ("staged_bytes", plan.stagings.iter().map(|s| s.bytes).fold(0, u64::saturating_add)),
        ("copies", plan.copies as u64),
        ("parameter_bytes", plan.coverage.iter().map(|c| c.bytes).fold(0, u64::saturating_add)),
        ("covered_bytes", plan.coverage.iter().map(|c| c.covered).fold(0, u64::saturating_add)),
    ])
}

fn sources(plan: &Plan) -> BTreeMap<&str, (u64, u64)> {
    plan.sources.iter().map(|s| (&*s.name, (s.counters.bytes, s.counters.descriptors))).collect()
}

fn sessions(plan: &Plan) -> BTreeMap<&str, (u64, u64)> {
    plan.sessions.iter().map(|s| &**s).zip(plan.session_counters()).collect()
}

/// One thing that is done for a parameter, without the numbers of its plan.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Piece<'p> {
    Read(&'p str, &'p str, &'p Nest),
    /// Source, dtypes, value operations, the copies, whether it is over the bound, bytes of the staging, and what is read into it.
    Replay(&'p str, Dtype, Dtype, String, &'p [Nest], bool, u64, Vec<(&'p str, &'p Nest)>),
    Fill(i64, &'p [i64], &'p [i64], &'p [u8]),
}

fn pieces(plan: &Plan) -> Vec<Vec<Piece<'_>>> {
    let mut out: Vec<Vec<Piece<'_>>> = plan.params.iter().map(|_| Vec::new()).collect();
    let mut staged: Vec<Vec<(&str, &Nest)>> = vec![Vec::new(); plan.stagings.len()];
    for s in &plan.segments {
        let session = &*plan.sessions[s.session];
        match s.target {
            Target::Param(p) => out[p].push(Piece::Read(session, &plan.sources[s.source].name, &s.nest)),
            Target::Staging(at) => staged[at].push((session, &s.nest)),
        }
    }
    for (staging, read) in plan.stagings.iter().zip(staged) {
        let over = matches!(staging.reason, StagingReason::OverBound { .. });
        for step in &staging.replays {
            let source = &*plan.sources[staging.source].name;
            let (values, bytes) = (format!("{:?}", step.values), staging.bytes);
            let piece =
                Piece::Replay(source, step.from, step.to, values, &step.nests, over, bytes, read.clone());
            out[step.param].push(piece);
        }
    }
    for Fill { param, dest, element, .. } in &plan.fills {
        out[*param].push(Piece::Fill(dest.offset, &dest.shape, &dest.strides, element));
    }
    out.iter_mut().for_each(|list| list.sort());
    out
}

fn params(before: &Plan, after: &Plan) -> Vec<Changed<ParamSide>> {
    struct Side<'p> {
        plan: &'p Plan,
        numbers: BTreeMap<&'p str, usize>,
        pieces: Vec<Vec<Piece<'p>>>,
        served: Vec<super::Served>,
    }
    impl<'p> Side<'p> {
        fn new(plan: &'p Plan) -> Self {
            let numbers = plan.params.iter().enumerate().map(|(at, p)| (p.name.as_str(), at)).collect();
            Side { plan, numbers, pieces: pieces(plan), served: served(plan) }
        }

        fn describe(&self, at: usize) -> ParamSide {
            let p = &self.plan.params[at];
            ParamSide {
                dtype: p.dtype,
                shape: p.shape.clone(),
                covered: self.plan.coverage[at].covered,
                served: self.served[at].parts.iter().map(|part| part.line(self.plan)).collect(),
            }
        }
    }
    let (a, b) = (Side::new(before), Side::new(after));
    let names: BTreeSet<&str> = a.numbers.keys().chain(b.numbers.keys()).copied().collect();
    let mut out = Vec::new();
    for name in names {
        let (old, new) = (a.numbers.get(name).copied(), b.numbers.get(name).copied());
        if let (Some(old), Some(new)) = (old, new)
            && before.params[old] == after.params[new]
            && before.coverage[old] == after.coverage[new]
            && a.pieces[old] == b.pieces[new]
        {
            continue;
        }
        let (before, after) = (old.map(|at| a.describe(at)), new.map(|at| b.describe(at)));
        out.push(Changed { name: name.to_owned(), before, after });
    }
    out
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in &self.refused {
            let text = |reason: &Option<String>| match reason {
                Some(reason) => Name(reason).to_string(),
                None => "not refused".to_owned(),
            };
            writeln!(f, "refused     {}: {} -> {}", Name(&c.name), text(&c.before), text(&c.after))?;
        }
        for c in &self.totals {
            let (before, after) = (c.before.unwrap_or(0), c.after.unwrap_or(0));
            let sign = if after > before { '+' } else { '-' };
            let by = group(after.abs_diff(before));
            writeln!(f, "total       {}: {} -> {} ({sign}{by})", c.name, group(before), group(after))?;
        }
        let counted = |side: &Option<(u64, u64)>| match side {
            Some((bytes, descriptors)) => format!("{} bytes in {}", group(*bytes), group(*descriptors)),
            None => "not read".to_owned(),
        };
        for (what, list) in [("source", &self.sources), ("session", &self.sessions)] {
            for c in list {
                writeln!(f, "{what:<11} {}: {} -> {}", Name(&c.name), counted(&c.before), counted(&c.after))?;
            }
        }
        for c in &self.params {
            writeln!(f, "parameter   {}", Name(&c.name))?;
            match (&c.before, &c.after) {
                (Some(a), Some(b)) if a == b => {
                    writeln!(f, "  the same amounts from other places")?;
                }
                (before, after) => {
                    for (sign, side) in [('-', before), ('+', after)] {
                        let Some(side) = side else { continue };
                        let (covered, shape) = (group(side.covered), &side.shape);
                        writeln!(f, "  {sign} {} {shape:?}, {covered} bytes provided", side.dtype)?;
                        side.served.iter().try_for_each(|line| writeln!(f, "  {sign}   {line}"))?;
                    }
                }
            }
        }
        Ok(())
    }
}
