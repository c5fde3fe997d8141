//! `restage diff`: what differs between two plan files.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use restage_plan::{Changed, Difference, ParamSide, Plan};
use restage_wire::Change;
use serde::Serialize;

use crate::failure::Failure;
use crate::job::RANK_MARK;
use crate::saved;

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// A plan file.
    pub a: PathBuf,
    /// Another one.
    pub b: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The differences as they are printed. Lists are sorted by name and have only what differs.
#[derive(Serialize)]
struct Report {
    equal: bool,
    inputs: Vec<String>,
    refused: Vec<Row<String>>,
    totals: Vec<Row<u64>>,
    sources: Vec<Row<Read>>,
    sessions: Vec<Row<Read>>,
    params: Vec<Row<Param>>,
}

/// Something by name, before and after; null where it is not in one of the plans.
#[derive(Serialize)]
struct Row<T> {
    name: String,
    before: Option<T>,
    after: Option<T>,
}

#[derive(Serialize)]
struct Read {
    bytes: u64,
    descriptors: u64,
}

#[derive(Serialize)]
struct Param {
    dtype: &'static str,
    shape: Vec<i64>,
    covered: u64,
    served: Vec<String>,
}

fn rows<T: Clone, U>(list: &[Changed<T>], side: impl Fn(T) -> U) -> Vec<Row<U>> {
    let row = |c: &Changed<T>| Row {
        name: c.name.clone(),
        before: c.before.clone().map(&side),
        after: c.after.clone().map(&side),
    };
    list.iter().map(row).collect()
}

impl Report {
    fn new(difference: &Difference, inputs: &[Change]) -> Self {
        let read = |(bytes, descriptors)| Read { bytes, descriptors };
        let param = |p: ParamSide| Param {
            dtype: p.dtype.name(),
            shape: p.shape,
            covered: p.covered,
            served: p.served,
        };
        Report {
            equal: difference.is_empty() && inputs.is_empty(),
            inputs: inputs.iter().map(Change::to_string).collect(),
            refused: rows(&difference.refused, |reason| reason),
            totals: rows(&difference.totals, |n| n),
            sources: rows(&difference.sources, read),
            sessions: rows(&difference.sessions, read),
            params: rows(&difference.params, param),
        }
    }
}

/// A plan with names that can be read: those of several ranks say which.
fn readable(mut plan: Plan) -> Plan {
    for param in &mut plan.params {
        param.name = param.name.replace(RANK_MARK, " of rank ");
    }
    plan
}

/// Runs the command.
pub fn run(args: &DiffArgs) -> Result<(), Failure> {
    let (a, b) = (saved::read(&args.a)?, saved::read(&args.b)?);
    let inputs = a.inputs.changes(&b.inputs);
    let difference = Difference::between(&readable(a.plan), &readable(b.plan));
    let report = Report::new(&difference, &inputs);
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match args.json {
        true => serde_json::to_writer_pretty(&mut out, &report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        false => text(&mut out, &difference, &inputs),
    };
    printed.and_then(|()| out.flush()).context("printing the differences").map_err(Failure::Transfer)?;
    if report.equal {
        return Ok(());
    }
    let (changes, params) = (inputs.len(), difference.params.len());
    Err(Failure::Verification(anyhow!(
        "{} and {} differ: {changes} changes of what they were made from, {params} parameters served otherwise",
        args.a.display(),
        args.b.display()
    )))
}

fn text(out: &mut dyn Write, difference: &Difference, inputs: &[Change]) -> io::Result<()> {
    for change in inputs {
        writeln!(out, "made from   {}", restage_plan::Name(&change.to_string()))?;
    }
    write!(out, "{difference}")?;
    match difference.is_empty() && inputs.is_empty() {
        true => writeln!(out, "equal"),
        false => Ok(()),
    }
}
