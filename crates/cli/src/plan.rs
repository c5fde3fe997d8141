//! `restage plan`: the dry run. Headers are read, and no byte of a tensor.

use anyhow::anyhow;
use restage_plan::{Explain, Plan, Staging, StagingReason, Verbose};
use restage_transport::Transport;
use serde::Serialize;

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::job::{Job, RankJob, left_out, notices};
use crate::{page, saved};

#[derive(Serialize)]
struct PlanReport {
    checkpoint: String,
    architecture: &'static str,
    tensors: usize,
    bytes: u64,
    files: usize,
    engine: String,
    tp: u32,
    expert_parallel: bool,
    transport: &'static str,
    strided: bool,
    max_descriptors: u64,
    tensor_bytes_read: u64,
    /// What a reshard of these ranks reads: they are pulled together.
    together: Together,
    ranks: Vec<RankReport>,
}

#[derive(Serialize)]
struct Together {
    descriptors: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct RankReport {
    rank: u32,
    parameters: usize,
    parameter_bytes: u64,
    copies: usize,
    constants: usize,
    exact_descriptors: u64,
    descriptors: u64,
    descriptors_saved: u64,
    exact_bytes: u64,
    bytes: u64,
    extra_wire_bytes: u64,
    full_pulls: Vec<FullPull>,
    unbounded: Vec<String>,
    refused: Vec<RefusedSource>,
    coverage: f64,
    incomplete: Vec<String>,
    skipped: Vec<String>,
    sessions: Vec<Session>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tied_if_equal: Option<[&'static str; 2]>,
}

#[derive(Serialize)]
struct FullPull {
    source: String,
    bytes: u64,
    descriptors_needed: u64,
    max_descriptors: u64,
}

#[derive(Serialize)]
struct RefusedSource {
    source: String,
    reason: String,
    parameters: Vec<String>,
}

#[derive(Serialize)]
struct Session {
    name: String,
    bytes: u64,
    descriptors: u64,
}

fn rank_report(job: &RankJob) -> RankReport {
    let plan = job.receiver.plan();
    let c = plan.counters();
    let full_pull = |(source, staging): (&str, &Staging)| match staging.reason {
        StagingReason::OverBound { descriptors, bound } => Some(FullPull {
            source: source.to_owned(),
            bytes: staging.bytes,
            descriptors_needed: descriptors,
            max_descriptors: bound,
        }),
        _ => None,
    };
    RankReport {
        rank: job.rank,
        parameters: plan.params.len(),
        parameter_bytes: plan.param_bytes(),
        copies: plan.copies,
        constants: plan.fills.len(),
        exact_descriptors: c.exact_descriptors,
        descriptors: c.descriptors,
        descriptors_saved: c.descriptors_saved(),
        exact_bytes: c.exact_bytes,
        bytes: c.bytes,
        extra_wire_bytes: c.extra_wire_bytes(),
        full_pulls: plan.full_pulls().filter_map(full_pull).collect(),
        unbounded: plan.unbounded().map(str::to_owned).collect(),
        refused: plan
            .refused
            .iter()
            .map(|r| RefusedSource {
                source: r.source.to_string(),
                reason: r.reason.to_string(),
                parameters: r.params.clone(),
            })
            .collect(),
        coverage: plan.coverage_ratio(),
        incomplete: plan.incomplete().map(str::to_owned).collect(),
        skipped: job.skipped.clone(),
        sessions: plan
            .sessions
            .iter()
            .zip(plan.session_counters())
            .map(|(name, (bytes, descriptors))| Session { name: name.to_string(), bytes, descriptors })
            .collect(),
        tied_if_equal: job.tie.map(|t| [t.keep, t.drop]),
    }
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let (Some(path), Some(tp)) = (&args.path, args.tp) else {
        return Err(Failure::Usage(anyhow!("a checkpoint and --tp are needed, or --capture and --sources")));
    };
    let job = Job::open(path, &args.access, tp, &args.wanted)?;
    notices(&job.checkpoint);
    // The transport that a reshard would read with; its meter shows that planning reads nothing.
    let transport = job.transport()?;
    let ranks = job.prepare(&args.wanted)?;
    let (_, together) = job.together(&ranks)?;
    saved::write_if_asked(args, &job, &ranks, together.plan())?;
    page::of_ranks(args, &job, &ranks)?;
    let together = together.plan().counters();
    let report = PlanReport {
        checkpoint: job.name(),
        architecture: job.config.architecture.name(),
        tensors: job.checkpoint.tensors().len(),
        bytes: job.bytes(),
        files: job.checkpoint.files().len(),
        engine: args.wanted.engine.to_string(),
        tp,
        expert_parallel: args.wanted.expert_parallel,
        transport: transport.name(),
        strided: job.limits.strided,
        max_descriptors: job.limits.max_descriptors,
        tensor_bytes_read: transport.snapshot().total().bytes,
        together: Together { descriptors: together.descriptors, bytes: together.bytes },
        ranks: ranks.iter().map(rank_report).collect(),
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::input)?);
    } else {
        println!(
            "{}: {}, {} tensors, {} bytes in {} files -> tensor-parallel {}{} for {}",
            report.checkpoint,
            report.architecture,
            report.tensors,
            report.bytes,
            report.files,
            report.tp,
            if report.expert_parallel { ", expert parallel," } else { "" },
            report.engine
        );
        let form = if report.strided { "strided segments whole" } else { "contiguous descriptors" };
        println!(
            "transport {}, {form}, at most {} descriptors a copy; {} tensor bytes read for this plan",
            report.transport, report.max_descriptors, report.tensor_bytes_read
        );
        for rank in &ranks {
            println!("rank {} of {}", rank.rank, tp);
            match args.verbose {
                true => print!("{}", Verbose(rank.receiver.plan())),
                false => print!("{}", Explain(rank.receiver.plan())),
            }
            if let Some(tie) = rank.tie {
                println!(
                    "  tied        {} goes where it equals {}: decided by their bytes",
                    tie.drop, tie.keep
                );
            }
            if !rank.skipped.is_empty() {
                println!("  left out    {}", left_out(&rank.skipped));
            }
        }
        if ranks.len() > 1 {
            let Together { descriptors, bytes } = report.together;
            println!("all ranks together: {descriptors} descriptors, {bytes} bytes");
        }
    }
    complete(&ranks)
}

/// Refuses plans that do not provide everything.
pub fn complete(ranks: &[RankJob]) -> Result<(), Failure> {
    ranks.iter().try_for_each(|r| complete_plan(r.receiver.plan(), &format!("rank {}", r.rank)))
}

/// Refuses a plan that does not provide everything; `what` says whose plan it is.
pub fn complete_plan(plan: &Plan, what: &str) -> Result<(), Failure> {
    if let Some(r) = plan.refused.first() {
        let more = plan.refused.len() - 1;
        let more = if more > 0 { format!(" (and {more} more sources)") } else { String::new() };
        return Err(Failure::input(anyhow!("{what}: {}: {}{more}", r.source, r.reason)));
    }
    match plan.incomplete().next() {
        Some(param) => Err(Failure::input(anyhow!("{what}: {param} is not provided in full"))),
        None => Ok(()),
    }
}
