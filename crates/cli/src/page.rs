//! `restage plan --html FILE`.

use restage_plan::{Column, Limits, Page, PageMember, Plan, Traffic};

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::job::{Job, RankJob};
use crate::reshard::write_small;

/// Writes a page where the arguments ask for it.
pub fn write_if_asked(args: &PlanArgs, page: &Page<'_>) -> Result<(), Failure> {
    match &args.html {
        Some(path) => write_small(path, page.to_string().as_bytes()),
        None => Ok(()),
    }
}

/// What a plan was allowed, as a page tells it.
pub fn limits(limits: &Limits) -> Vec<(&'static str, String)> {
    let form = if limits.strided { "takes strided segments whole" } else { "takes contiguous descriptors" };
    vec![
        ("transport", form.to_owned()),
        ("descriptors a copy", format!("at most {}", limits.max_descriptors)),
    ]
}

/// The page of the ranks of a checkpoint.
pub fn of_ranks(args: &PlanArgs, job: &Job, ranks: &[RankJob]) -> Result<(), Failure> {
    if args.html.is_none() {
        return Ok(());
    }
    let name = |rank: &RankJob| format!("tp{}", rank.rank);
    let traffic = Traffic::from_columns(ranks.iter().map(|r| Column::new(name(r), r.receiver.plan())));
    let experts = if args.wanted.expert_parallel { ", expert parallel" } else { "" };
    let mut facts = vec![
        ("layout", format!("tensor-parallel {}{experts}", job.tp)),
        ("engine", args.wanted.engine.to_string()),
        ("architecture", job.config.architecture.name().to_owned()),
        ("files", job.checkpoint.files().len().to_string()),
    ];
    facts.extend(limits(&job.limits));
    let members = ranks.iter().map(|r| PageMember::new(name(r), r.receiver.plan())).collect();
    write_if_asked(args, &Page { title: &job.name(), facts, traffic: &traffic, members })
}

/// The page of one plan that is no rank's.
pub fn of_plan(args: &PlanArgs, plan: &Plan, allowed: &Limits) -> Result<(), Failure> {
    let traffic = Traffic::from_columns([Column::new("this plan", plan)]);
    let mut facts = vec![("from", "a capture file and a sources file".to_owned())];
    facts.extend(limits(allowed));
    let members = vec![PageMember::new("", plan)];
    write_if_asked(args, &Page { title: "captured copies", facts, traffic: &traffic, members })
}
