//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use restage_model::Engine;
use restage_plan::{Limits, StagingMode};

use crate::diff::DiffArgs;
use crate::fleet::FleetArgs;
use crate::publish::PublishArgs;
use crate::source::Access;
use crate::stages::StagesArgs;
use crate::worker::WorkerArgs;

/// Moves model weights from the layout they are stored in to the layout they are served in.
///
/// Exit codes: 0 done, 2 wrong usage, 3 input refused, 4 transfer failed, 5 verification failed.
#[derive(Debug, Parser)]
#[command(name = "restage", version, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what a checkpoint holds: tensors, dtypes, bytes, files, layout.
    Inspect(InspectArgs),
    /// Say what a reshard would read, from headers alone.
    Plan(PlanArgs),
    /// Lay a checkpoint out for tensor-parallel serving, or back.
    Reshard(ReshardArgs),
    /// Serve a checkpoint's files over TCP to `plan` and `reshard` elsewhere.
    Publish(PublishArgs),
    /// Compare two checkpoints tensor by tensor, byte by byte.
    Verify(VerifyArgs),
    /// Say what differs between two plan files; exit code 5 where anything does.
    Diff(DiffArgs),
    /// Serve one stage of a pipeline over JSON lines on stdin and stdout.
    Worker(WorkerArgs),
    /// Say which blocks each stage of a pipeline owns.
    Stages(StagesArgs),
}

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// A checkpoint: a directory or a safetensors file.
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// List every tensor.
    #[arg(long)]
    pub tensors: bool,
}

/// The layout wanted, and what a plan may cost.
#[derive(Debug, Clone, clap::Args)]
pub struct Wanted {
    /// One rank only; all of them by default.
    #[arg(long, value_name = "R")]
    pub rank: Option<u32>,
    /// Serving engine whose parameter names and buffers are wanted, as in vllm:0.33; the newest known by
    /// default.
    #[arg(long, value_name = "ENGINE", default_value_t = Engine::default())]
    pub engine: Engine,
    /// Spread whole experts over the ranks, as vLLM's --enable-expert-parallel does, instead of cutting each.
    #[arg(long)]
    pub expert_parallel: bool,
    /// Descriptors that one copy may need before its whole source is read and replayed locally.
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_descriptors)]
    pub max_descriptors: u64,
    /// Plan for a transport that takes contiguous descriptors only. By default strided segments are taken
    /// whole, as the file transport does.
    #[arg(long)]
    pub flat: bool,
    /// What is read into staging for a copy over the bound: stretches of whichever shards are needed, or the
    /// whole source, and only if it is cut by rows.
    #[arg(long, value_name = "MODE", default_value = "tiles")]
    pub staging: Staging,
    /// Most bytes of staging at any one time; 0 stages nothing. By default there is no limit with --flat, and
    /// nothing is staged without it.
    #[arg(long, value_name = "BYTES")]
    pub staging_bytes: Option<u64>,
}

/// What is read into staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Staging {
    /// Stretches of whichever shards are needed.
    Tiles,
    /// The whole of a source that is cut by rows.
    RowShards,
}

impl std::convert::From<StagingMode> for Staging {
    fn from(mode: StagingMode) -> Self {
        match mode {
            StagingMode::RowShards => Staging::RowShards,
            _ => Staging::Tiles,
        }
    }
}

impl std::convert::From<Staging> for StagingMode {
    fn from(staging: Staging) -> Self {
        match staging {
            Staging::Tiles => StagingMode::Tiles,
            Staging::RowShards => StagingMode::RowShards,
        }
    }
}

impl Wanted {
    /// The plan's limits.
    pub fn limits(&self) -> Limits {
        Limits {
            max_descriptors: self.max_descriptors,
            strided: !self.flat,
            staging: self.staging.into(),
            // A transport that gathers is given everything exactly: it joins what lies close by itself.
            staging_bytes: if self.flat { self.staging_bytes } else { Some(self.staging_bytes.unwrap_or(0)) },
            ..Limits::default()
        }
    }
}

/// Arguments of `plan`: a checkpoint and a layout, or a capture file and a sources file.
#[derive(Debug, clap::Args)]
#[command(override_usage = "restage plan <PATH> --tp <N> [OPTIONS]\n       \
                            restage plan <CONFIG_DIR> --published rows:<N> --tp <N> [--pp <P>] [--ep <E>] [OPTIONS]\n       \
                            restage plan --capture <FILE> --sources <FILE> [OPTIONS]")]
pub struct PlanArgs {
    /// A Hugging Face checkpoint: a directory with config.json, or tcp://HOST:PORT[,tcp://HOST:PORT] of publishers.
    #[arg(required_unless_present = "capture")]
    pub path: Option<PathBuf>,
    /// Number of tensor-parallel ranks.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        required_unless_present = "capture"
    )]
    pub tp: Option<u32>,
    /// Plan from this capture (JSON: what a loader copied where) rather than from a checkpoint.
    #[arg(
        long,
        value_name = "FILE",
        requires = "sources",
        conflicts_with_all = ["path", "tp", "rank", "engine", "pp", "ep", "published", "link_rate"]
    )]
    pub capture: Option<PathBuf>,
    /// What is published, and where (JSON).
    #[arg(long, value_name = "FILE", requires = "capture", conflicts_with_all = ["path", "tp"])]
    pub sources: Option<PathBuf>,
    /// With --capture: plan for a transport that takes strided segments whole. By default a plan from files is
    /// flat, since nothing is known of the transport.
    #[arg(long, requires = "capture", conflicts_with_all = ["path", "tp", "flat"])]
    pub strided: bool,
    /// With --capture: plan for descriptors that start and end at multiples of this many bytes; what does not fall
    /// so is read with its surroundings.
    #[arg(
        long,
        value_name = "BYTES",
        requires = "capture",
        conflicts_with_all = ["path", "tp"],
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub alignment: u64,
    /// With --capture: whether casts and other value operations are carried out after the read, or the sources
    /// that need them are refused.
    #[arg(
        long,
        value_name = "BOOL",
        requires = "capture",
        conflicts_with_all = ["path", "tp"],
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub convert: bool,
    /// The layout wanted.
    #[command(flatten)]
    pub wanted: Wanted,
    /// How publishers are reached.
    #[command(flatten)]
    pub access: Access,
    /// A whole job.
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Print all of every list, and how each parameter is served.
    #[arg(long, short, conflicts_with = "json")]
    pub verbose: bool,
    /// Write the plan to this file too (JSON), for `restage reshard --plan` and `restage diff`. All ranks are one plan,
    /// as a reshard pulls them.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pp", "ep", "published", "link_rate"])]
    pub out_plan: Option<PathBuf>,
    /// Write the plan as an HTML page too, which needs no network and nothing beside it.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What a checkpoint is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// Hugging Face names, to be laid out for serving.
    #[value(name = "hf")]
    HuggingFace,
    /// vLLM's sharded state, to be joined to a Hugging Face checkpoint.
    ShardedState,
}

/// Arguments of `reshard`.
#[derive(Debug, clap::Args)]
pub struct ReshardArgs {
    /// The checkpoint: a directory with config.json, or tcp://HOST:PORT[,tcp://HOST:PORT] of publishers.
    pub path: PathBuf,
    /// Number of tensor-parallel ranks to lay out for.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        required_unless_present_any = ["from", "plan"]
    )]
    pub tp: Option<u32>,
    /// Carry out this plan, as `restage plan --out-plan` wrote it, without planning again. It is refused where anything
    /// that it was made from has changed; options that are given must be those that it was made with.
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub plan: Option<PathBuf>,
    /// Directory to write; it appears when it is whole.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// What the checkpoint is.
    #[arg(long, value_name = "LAYOUT", default_value = "hf")]
    pub from: From,
    /// The layout wanted.
    #[command(flatten)]
    pub wanted: Wanted,
    /// How publishers are reached.
    #[command(flatten)]
    pub access: Access,
    /// Replace an earlier output.
    #[arg(long)]
    pub force: bool,
    /// Flush files and directories to the disk before they get their names.
    #[arg(long)]
    pub sync: bool,
    /// Cut a Hugging Face checkpoint into files of at most this many bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 5_000_000_000)]
    pub max_file_size: u64,
    /// Print nothing but errors.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// A checkpoint.
    pub a: PathBuf,
    /// Another one.
    pub b: PathBuf,
}
