//! Plan files of checkpoints: `restage plan --out-plan` and `restage reshard --plan`. `docs/plan-file.md` documents them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, anyhow};
use clap::ArgMatches;
use clap::parser::ValueSource;
use restage_geometry::Captured;
use restage_model::Loaded;
use restage_plan::Plan;
use restage_refit::Receiver;
use restage_wire::{CaptureDigests, Change, Inputs, MAX_PLAN_BYTES, PlacementForm, PlanFile};

use crate::args::{PlanArgs, ReshardArgs, Wanted};
use crate::failure::Failure;
use crate::job::{Job, RANK_MARK, RankJob, all_ranks, notices, readable};
use crate::reshard::{Work, write_small};

/// The options of a command that were given, rather than left at their defaults.
pub struct Given(Vec<String>);

impl Given {
    /// Those of the command that was called.
    pub fn new(matches: &ArgMatches) -> Self {
        let Some((_, command)) = matches.subcommand() else { return Given(Vec::new()) };
        let given = |name: &&clap::Id| command.value_source(name.as_str()) == Some(ValueSource::CommandLine);
        Given(command.ids().filter(given).map(|name| name.to_string()).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|given| given == name)
    }
}

/// Parameters in which later writes replace earlier ones: there the loader's order is part of the input.
pub fn ordered(plan: &Plan) -> BTreeSet<&str> {
    plan.overwritten.iter().map(|o| plan.params[o.param].name.as_str()).collect()
}

/// Reads a plan file.
pub fn read(path: &Path) -> Result<PlanFile, Failure> {
    let contents = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // One byte more than is allowed, so that the reader of the form says so.
        File::open(path)?.take(MAX_PLAN_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let name = || path.display().to_string();
    let bytes = contents().with_context(name).map_err(Failure::Input)?;
    PlanFile::read(&bytes).with_context(name).map_err(Failure::Input)
}

fn placement(job: &Job, wanted: &Wanted) -> PlacementForm {
    PlacementForm {
        engine: wanted.engine.to_string(),
        tp: job.tp,
        ranks: job.ranks.clone(),
        expert_parallel: wanted.expert_parallel,
    }
}

/// What the loaders of the ranks do, with the names that parameters have in a plan file: plain where there is one rank.
fn captured<'a>(ranks: impl ExactSizeIterator<Item = (u32, &'a Captured)>) -> Captured {
    let mut ranks = ranks;
    match ranks.len() {
        1 => ranks.next().map_or_else(Captured::default, |(_, captured)| captured.clone()),
        _ => all_ranks(ranks),
    }
}

/// Writes the plan of a checkpoint's ranks where the arguments ask for it; `together` is that of all of them.
pub fn write_if_asked(args: &PlanArgs, job: &Job, ranks: &[RankJob], together: &Plan) -> Result<(), Failure> {
    let Some(path) = &args.out_plan else { return Ok(()) };
    let plan = match ranks {
        [rank] => rank.receiver.plan(),
        _ => together,
    };
    let captured = captured(ranks.iter().map(|r| (r.rank, &r.captured)));
    let placement = Some(placement(job, &args.wanted));
    let inputs = Inputs::of(&captured, &job.catalog, &job.limits, placement, &ordered(plan));
    write_small(path, PlanFile::new(plan.clone(), inputs).write().as_bytes())
}

/// Opens a checkpoint for a plan that was made before, and refuses to where anything that went into the plan changed.
pub fn open(args: &ReshardArgs, given: &Given, path: &Path) -> Result<Work, Failure> {
    let file = read(path)?;
    let name = path.display();
    let Some(made_for) = file.inputs.placement.clone() else {
        let what = "was made from a capture file, not for a checkpoint";
        return Err(Failure::input(anyhow!("{name}: {what}")));
    };
    let mut asked = file.inputs.clone();
    let wanted = wanted(args, given, &made_for, &mut asked)?;
    refuse(path, &file.inputs.changes(&asked))?;
    let wanted = wanted.with_context(|| format!("{name}: placement")).map_err(Failure::Input)?;

    let job = Job::open(&args.path, &args.access, made_for.tp, &wanted)?;
    notices(&job.checkpoint);
    // The sources first: a loader may refuse those that changed in its own words.
    let ordered = ordered(&file.plan);
    let made_with = Some(placement(&job, &wanted));
    let mut found = Inputs::of(&Captured::default(), &job.catalog, &job.limits, made_with, &ordered);
    found.capture = file.inputs.capture.clone();
    refuse(path, &file.inputs.changes(&found))?;
    let loaded = job.load(&wanted)?;
    let captured = captured(loaded.iter().map(|(rank, l)| (*rank, &l.captured)));
    let found = Inputs { capture: CaptureDigests::of(&captured, &ordered), ..found };
    refuse(path, &file.changes(&captured, &found))?;
    job.check(&file.plan, &captured)?;
    let one = loaded.len() == 1;
    let rank = |(rank, loaded): (u32, Loaded)| {
        let Loaded { captured, tie, skipped } = loaded;
        let receiver = Receiver::of(if one { file.plan.clone() } else { of_rank(&file.plan, rank) });
        RankJob { rank, captured, tie, skipped, receiver }
    };
    let ranks = loaded.into_iter().map(rank).collect();
    Ok(Work { wanted, job, ranks, saved: Some(file.plan) })
}

/// What the plan was made for, as options; those that were given are put into `asked`, to be compared. What the options
/// of the file mean is only asked when it is known that they are those that were given.
fn wanted(
    args: &ReshardArgs,
    given: &Given,
    made_for: &PlacementForm,
    asked: &mut Inputs,
) -> Result<anyhow::Result<Wanted>, Failure> {
    let mut placement = made_for.clone();
    let w = &args.wanted;
    if let Some(tp) = args.tp {
        placement.tp = tp;
    }
    if let Some(rank) = w.rank {
        placement.ranks = vec![rank];
    }
    if given.has("engine") {
        placement.engine = w.engine.to_string();
    }
    if given.has("expert_parallel") {
        placement.expert_parallel = true;
    }
    if given.has("max_descriptors") {
        asked.limits.max_descriptors = w.max_descriptors;
    }
    if given.has("flat") {
        asked.limits.strided = false;
    }
    if given.has("staging") {
        asked.limits.staging = w.staging.into();
    }
    if given.has("staging_bytes") {
        asked.limits.staging_bytes = w.staging_bytes;
    }
    asked.placement = Some(placement);
    let limits = asked.limits.clone();
    let from_file = || {
        let all = made_for.ranks.iter().copied().eq(0..made_for.tp);
        let rank = match &made_for.ranks[..] {
            _ if all => None,
            &[rank] if rank < made_for.tp => Some(rank),
            other => anyhow::bail!("expected all {} ranks or one of them, found {other:?}", made_for.tp),
        };
        Ok(Wanted {
            rank,
            engine: made_for.engine.parse().context("engine")?,
            expert_parallel: made_for.expert_parallel,
            max_descriptors: limits.max_descriptors,
            flat: !limits.strided,
            staging: limits.staging.into(),
            staging_bytes: limits.staging_bytes,
        })
    };
    Ok(from_file())
}

/// Refuses a plan whose inputs changed, by the first of the changes.
fn refuse(path: &Path, changes: &[Change]) -> Result<(), Failure> {
    let Some(first) = changes.first() else { return Ok(()) };
    let first = readable(first);
    let more = match changes.len() - 1 {
        0 => String::new(),
        1 => " (and 1 more change)".to_owned(),
        more => format!(" (and {more} more changes)"),
    };
    Err(Failure::input(anyhow!("{}: the plan was made from something else: {first}{more}", path.display())))
}

/// The part of a plan of several ranks that is one rank's, with plain names.
fn of_rank(plan: &Plan, rank: u32) -> Plan {
    let end = format!("{RANK_MARK}{rank}");
    let mut part = plan.part(|name| name.ends_with(&end));
    for param in &mut part.params {
        param.name.truncate(param.name.len() - end.len());
    }
    for refusal in &mut part.refused {
        refusal.params.iter_mut().for_each(|p| p.truncate(p.len() - end.len()));
    }
    part
}
