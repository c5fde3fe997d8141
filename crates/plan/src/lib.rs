//! Plans of exact byte transfers: from the shards that are published to the parameters that a loader filled.
//!
//! - [`Catalog`], [`Source`], [`Shard`]: what is published, and where.
//! - [`plan`], [`Limits`]: captures and a catalog to a [`Plan`].
//! - [`check()`]: a read-only pass that accepts a plan or says what is wrong with it.
//! - [`Plan`]: segments, stagings with their local replay, fills, refusals, coverage and counters.
//! - [`Explain`], [`Verbose`], [`Page`]: the plan for people, in text and as an HTML page; [`Difference`]: what
//!   changed from one plan to another.
//! - [`Plan::part`]: the same plan for some of its parameters.
//! - [`Fleet`], [`Traffic`]: all ranks of a job, and what each session sends to each of them.
//!
//! Planning is pure: the same input in any order gives the same plan. Regions and shapes are in elements;
//! segments, addresses and counters in bytes. This crate knows of no file, socket or clock.

mod assemble;
mod check;
mod explain;
mod fleet;
mod limits;
mod need;
mod order;
mod part;
mod plan;
mod planner;
mod prove;
mod row_blocks;
mod serve;
mod source;
mod spread;
mod stretch;
mod tiles;

pub use check::{Fault, check};
pub use explain::{
    Changed, Difference, Explain, How, Name, Page, PageMember, ParamSide, Part, Served, Verbose, served,
};
pub use fleet::{Column, Fleet, Member, Traffic};
pub use limits::{Limits, StagingMode};
pub use plan::{
    Counters, Coverage, Overwritten, Plan, Reason, Refusal, ReplayStep, Segment, SourceSummary, Staging,
    StagingReason, Target,
};
pub use planner::{PlanError, plan};
pub use source::{Catalog, CatalogError, CatalogProblem, Shard, Source};
