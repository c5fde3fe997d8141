//! `restage plan` of a whole job: every rank at once, and what each session sends to each of them.

mod published;
mod rate;
mod report;
mod text;

pub use published::Published;
pub use rate::LinkRate;

use std::collections::BTreeSet;

use anyhow::{Context, anyhow};
use rayon::prelude::*;
use restage_model::{ModelConfig, Placement, Rank, Stage, TensorTable, load};
use restage_plan::{Catalog, Column, Counters, Limits, Page, PageMember, Plan, StagingReason, Traffic, plan};

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::job::{Job, notices};
use crate::page;
use crate::plan::complete_plan;

/// A job of more ranks is refused: its traffic matrix would not fit in memory.
const MOST_RANKS: u64 = 1 << 16;

/// Ranks that are planned side by side at most. The plan of a rank of DeepSeek-V3 over 64 sessions takes up to 200 MB while
/// it is made, and what a machine with many more processors would gain is less than it would hold.
const AT_ONCE: usize = 4;

/// Flags of a whole job.
#[derive(Debug, clap::Args)]
pub struct FleetArgs {
    /// Plan all ranks of a job with so many pipeline stages, whose layers fall on stages as vLLM's do, and show what each
    /// session sends to each rank.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "rank")]
    pub pp: Option<u32>,
    /// Plan all ranks of a job whose experts are shared out among so many groups of a stage's ranks, each expert cut over
    /// the ranks of its group: 1 cuts every expert over all ranks, as many as ranks is --expert-parallel.
    #[arg(
        long,
        value_name = "E",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["rank", "expert_parallel"]
    )]
    pub ep: Option<u32>,
    /// Plan before there is a checkpoint: take every tensor that PATH's config.json calls for as published by so many
    /// sessions, cut by rows as FSDP cuts it.
    #[arg(long, value_name = "rows:N", conflicts_with = "rank")]
    pub published: Option<Published>,
    /// Estimate the time of the transfer over links of this rate, as in 25GB/s or 200Gbit/s.
    #[arg(long, value_name = "RATE", conflicts_with = "rank")]
    pub link_rate: Option<LinkRate>,
}

impl FleetArgs {
    /// Whether a whole job is asked for.
    pub fn wanted(&self) -> bool {
        self.pp.is_some() || self.ep.is_some() || self.published.is_some() || self.link_rate.is_some()
    }
}

/// What a job reads, and from where.
struct Origin {
    name: String,
    config: ModelConfig,
    table: TensorTable,
    catalog: Catalog,
}

impl Origin {
    fn open(args: &PlanArgs) -> Result<Self, Failure> {
        let (Some(path), Some(tp)) = (&args.path, args.tp) else {
            return Err(Failure::Usage(anyhow!("a checkpoint and --tp are needed for the plan of a job")));
        };
        if let Some(published) = args.fleet.published {
            return published.origin(path);
        }
        let job = Job::open(path, &args.access, tp, &args.wanted)?;
        notices(&job.checkpoint);
        Ok(Origin { name: job.name(), config: job.config, table: job.table, catalog: job.catalog })
    }

    fn bytes(&self) -> u64 {
        // Every source was counted when the catalog took it.
        let bytes = |(_, s): (&str, &restage_plan::Source)| {
            s.dtype.bytes(s.shape.iter().product::<i64>() as u64).unwrap_or(u64::MAX)
        };
        self.catalog.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

/// The layout of a job.
#[derive(Debug, Clone, Copy)]
struct Layout {
    tp: u32,
    pp: u32,
    ep: u32,
    /// As the model crate has it: `None` where experts were not spoken of.
    groups: Option<i64>,
}

impl Layout {
    fn new(args: &PlanArgs, config: &ModelConfig) -> Result<Self, Failure> {
        let tp = args.tp.unwrap_or(1);
        let pp = args.fleet.pp.unwrap_or(1);
        let ep = match args.fleet.ep {
            Some(ep) => ep,
            None if args.wanted.expert_parallel => tp,
            None => 1,
        };
        let groups = (ep > 1 || args.wanted.expert_parallel).then_some(i64::from(ep));
        let layout = Layout { tp, pp, ep, groups };
        layout.place(0).check(config).map_err(Failure::input)?;
        if layout.ranks() > MOST_RANKS {
            let ranks = layout.ranks();
            return Err(Failure::input(anyhow!(
                "{ranks} ranks are more than the {MOST_RANKS} of the largest job"
            )));
        }
        Ok(layout)
    }

    fn ranks(&self) -> u64 {
        u64::from(self.tp) * u64::from(self.pp)
    }

    /// Where a rank is: the tensor-parallel ranks of a stage follow each other, as in vLLM.
    fn place(&self, rank: u64) -> Placement {
        let tp = i64::from(self.tp);
        let rank = rank as i64;
        Placement {
            rank: Rank { tp_size: tp, tp_rank: rank % tp },
            expert_groups: self.groups,
            stage: Stage { index: rank / tp, count: self.pp.into() },
        }
    }

    /// The group of a tensor-parallel rank.
    fn group(&self, tp_rank: i64) -> i64 {
        tp_rank / i64::from(self.tp / self.ep)
    }

    /// The name of a rank; the parts that all ranks share are left out.
    fn name(&self, place: &Placement) -> String {
        let mut name = format!("tp{}", place.rank.tp_rank);
        if self.pp > 1 {
            name += &format!(" pp{}", place.stage.index);
        }
        if self.ep > 1 {
            name += &format!(" ep{}", self.group(place.rank.tp_rank));
        }
        name
    }
}

/// What is kept of a rank when its plan is done with.
struct Member {
    place: Placement,
    column: Column,
    params: usize,
    param_bytes: u64,
    copies: usize,
    constants: usize,
    counters: Counters,
    /// Sources that are staged because a copy exceeds the bound, and the bytes of their staging.
    staged: (usize, u64),
    unbounded: usize,
    refused: usize,
    incomplete: usize,
    /// Why the plan does not provide everything.
    failure: Option<Failure>,
    skipped: Vec<String>,
}

impl Member {
    fn new(name: String, place: Placement, plan: &Plan, skipped: Vec<String>) -> Self {
        let over = |reason| matches!(reason, StagingReason::OverBound { .. });
        let staged: Vec<_> = plan.stagings.iter().filter(|s| over(s.reason)).collect();
        let sources: BTreeSet<usize> = staged.iter().map(|s| s.source).collect();
        Member {
            place,
            params: plan.params.len(),
            param_bytes: plan.param_bytes(),
            copies: plan.copies,
            constants: plan.fills.len(),
            counters: plan.counters(),
            staged: (sources.len(), staged.iter().map(|s| s.bytes).fold(0, u64::saturating_add)),
            unbounded: plan.unbounded().count(),
            refused: plan.refused.len(),
            incomplete: plan.incomplete().count(),
            failure: complete_plan(plan, &name).err(),
            skipped,
            column: Column::new(name, plan),
        }
    }
}

/// A job with its plans.
struct Fleet {
    layout: Layout,
    members: Vec<Member>,
    traffic: Traffic,
}

/// Plans every rank. Ranks are planned side by side; what comes out does not depend on how many at a time.
fn plan_all(origin: &Origin, args: &PlanArgs, limits: &Limits) -> Result<Fleet, Failure> {
    let layout = Layout::new(args, &origin.config)?;
    let one = |rank: u64| {
        let place = layout.place(rank);
        let name = layout.name(&place);
        let loaded = load(&origin.config, args.wanted.engine, place, &origin.table)
            .with_context(|| format!("{}: rank {name}", origin.name))
            .map_err(Failure::Input)?;
        let plan = plan(&loaded.captured, &origin.catalog, limits)
            .with_context(|| format!("{}: rank {name}", origin.name))
            .map_err(Failure::Input)?;
        Ok(Member::new(name, place, &plan, loaded.skipped))
    };
    let threads = rayon::ThreadPoolBuilder::new()
        .num_threads(rayon::current_num_threads().min(AT_ONCE))
        .build()
        .context("threads to plan with")
        .map_err(Failure::Transfer)?;
    let ranks = 0..layout.ranks() as usize;
    let planned: Vec<Result<Member, Failure>> =
        threads.install(|| ranks.into_par_iter().with_max_len(1).map(|r| one(r as u64)).collect());
    // The first rank that fails is the one that is told of.
    let members = planned.into_iter().collect::<Result<Vec<_>, _>>()?;
    let traffic = Traffic::from_columns(members.iter().map(|m| m.column.clone()));
    Ok(Fleet { layout, members, traffic })
}

/// Writes the page of a job, if it was asked for.
fn write_page(args: &PlanArgs, origin: &Origin, job: &Fleet, limits: &Limits) -> Result<(), Failure> {
    let member = |m: &Member| PageMember {
        name: m.column.rank.clone(),
        counters: m.counters,
        params: m.params,
        param_bytes: m.param_bytes,
        refused: m.refused,
        incomplete: m.incomplete,
        plan: None,
    };
    let Layout { tp, pp, ep, .. } = job.layout;
    let mut facts = vec![
        ("layout", format!("tp {tp} x pp {pp} with ep {ep}")),
        ("engine", args.wanted.engine.to_string()),
        ("tensors", origin.table.len().to_string()),
    ];
    facts.extend(args.fleet.published.map(|p| ("taken for published", p.to_string())));
    facts.extend(page::limits(limits));
    let members = job.members.iter().map(member).collect();
    page::write_if_asked(args, &Page { title: &origin.name, facts, traffic: &job.traffic, members })
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let origin = Origin::open(args)?;
    let limits = args.wanted.limits();
    let job = plan_all(&origin, args, &limits)?;
    write_page(args, &origin, &job, &limits)?;
    let report = report::Report::new(&origin, &job, args, &limits);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(Failure::input)?);
    } else {
        print!("{}", text::Text { report: &report, traffic: &job.traffic });
    }
    job.members.into_iter().find_map(|m| m.failure).map_or(Ok(()), Err)
}
