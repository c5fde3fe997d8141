//! `restage worker`: one stage of a pipeline, driven by JSON lines on stdin and stdout.

use std::env;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use restage_worker::{
    End, Engine, Events, Limits, Options, Signals, Stage, Stub, Worker, events_channel, is_space, serve,
    watch,
};
use tracing::{info, level_filters::LevelFilter};

use crate::failure::Failure;
use crate::stages::SplitArg;
use model::{Blocks, ModelArgs};

mod model;

/// How long a driver that does not read its replies may hold up an end that was asked for.
const WRITE_GRACE: Duration = Duration::from_secs(2);

/// Arguments of `worker`. A flag wins over the environment.
#[derive(Debug, clap::Args)]
#[command(after_help = "docs/worker-protocol.md has the requests and the replies.")]
pub struct WorkerArgs {
    /// This stage, from 0; STAGE otherwise.
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    pub stage: Option<String>,
    /// Number of stages, at least 2; NUM_STAGES otherwise.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub num_stages: Option<String>,
    /// Answer without a model, from hashes; PP_WORKER_STUB=1 does it too.
    #[arg(long)]
    pub stub: bool,
    /// The model to load this stage's part of; MODEL otherwise.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// How the model's blocks are shared out.
    #[arg(long, value_name = "HOW", default_value = "floor", conflicts_with = "layers")]
    pub split: SplitArg,
    /// The blocks of this stage, as in 8..16, in place of a split.
    #[arg(long, value_name = "A..B", value_parser = blocks)]
    pub layers: Option<(u64, u64)>,
    /// What a model is served with.
    #[command(flatten)]
    pub with_model: ModelArgs,
    /// Bytes that a request's line may have; longer ones are skipped and answered with an error.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_line_bytes)]
    pub max_line_bytes: usize,
    /// Sequences that may be held at once.
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_sequences)]
    pub max_sequences: usize,
    /// Tell events as JSON lines on descriptor 3, if it is open.
    #[arg(long)]
    pub events: bool,
    /// How logs on stderr look.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged: off, error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value_t = LevelFilter::INFO)]
    pub log_level: LevelFilter,
}

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A JSON object a line.
    Json,
    /// A line of text.
    Text,
}

fn blocks(text: &str) -> Result<(u64, u64), String> {
    let range = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match range {
        Some((a, b)) if a < b => Ok((a, b)),
        _ => Err("two numbers A..B are expected, A below B".into()),
    }
}

/// Runs the worker until its input ends or something ends it.
pub fn run(args: &WorkerArgs) -> Result<(), Failure> {
    // First of all, before this process opens anything that could get the number.
    let channel = if args.events { events_channel() } else { None };
    let catch = || Signals::catch().context("cannot catch signals").map_err(Failure::Transfer);
    if is_stub(args) {
        let signals = catch()?;
        let stage = stage(args)?;
        log(args);
        return start(args, stage, Stub::new(), signals, channel).map_err(Failure::Transfer).and_then(ended);
    }
    let stage = stage(args)?;
    let model = model(args)?;
    log(args);
    let blocks = match args.layers {
        Some((start, end)) => Blocks::Given(start, end),
        None => Blocks::Split(args.split.into()),
    };
    let engine = model::load(&model, stage, blocks, &args.with_model)?;
    // Only now: until there is an op that must be finished, a signal ends the process at once.
    let signals = catch()?;
    start(args, stage, engine, signals, channel).map_err(Failure::Transfer).and_then(ended)
}

fn stage(args: &WorkerArgs) -> Result<Stage, Failure> {
    // A variable that is not Unicode is refused as one that is no integer.
    let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let index = args.stage.clone().or_else(|| variable("STAGE"));
    let count = args.num_stages.clone().or_else(|| variable("NUM_STAGES"));
    Stage::parse(index.as_deref(), count.as_deref()).map_err(|e| Failure::Usage(e.into()))
}

fn is_stub(args: &WorkerArgs) -> bool {
    args.stub || env::var("PP_WORKER_STUB").is_ok_and(|value| value.trim_matches(is_space) == "1")
}

fn model(args: &WorkerArgs) -> Result<PathBuf, Failure> {
    let model = args.model.clone().or_else(|| env::var_os("MODEL").map(PathBuf::from));
    let none = || anyhow!("there is nothing to serve: give --stub, or a model with --model or MODEL");
    model.ok_or_else(none).map_err(Failure::Usage)
}

fn log(args: &WorkerArgs) {
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(args.log_level)
        .with_ansi(false)
        .with_target(false)
        // A closed stderr is no reason to stop, nor one to write to it again.
        .log_internal_errors(false);
    match args.log_format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.init(),
    }
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "panic")));
}

fn start<E>(
    args: &WorkerArgs,
    stage: Stage,
    engine: E,
    signals: Signals,
    channel: Option<OwnedFd>,
) -> anyhow::Result<(End, Events)>
where
    E: Engine + Send + 'static,
    E::Sequence: Send,
{
    let events = match channel {
        Some(channel) => Events::to(channel).context("cannot start the events thread")?,
        None => Events::none(),
    };
    let limits = Limits {
        max_line_bytes: args.max_line_bytes,
        max_sequences: args.max_sequences,
        ..Limits::default()
    };
    let (stdin, stdout) = (own(io::stdin().as_fd())?, own(io::stdout().as_fd())?);
    let watched = stdout.try_clone().context("cannot watch stdout")?;
    let worker = Worker::new(engine, stage, limits);
    let counters = worker.counters().clone();
    let place = [
        ("pid", std::process::id().into()),
        ("stage", stage.index().into()),
        ("num_stages", stage.count().into()),
    ];
    events.tell("ready", place);
    let serving = serve(worker, Options { input: stdin, output: stdout, write_grace: WRITE_GRACE })
        .context("cannot start the worker's threads")?;
    watch(signals, watched, serving.control().clone(), counters.clone(), events.clone())
        .context("cannot start the watch thread")?;
    info!(stage = stage.index(), num_stages = stage.count(), role = stage.role().name(), "ready");
    let end = serving.wait();
    let (requests, errors) = (counters.requests(), counters.errors());
    info!(?end, requests, errors, "ended");
    events.tell(
        "ended",
        [("reason", reason(&end).into()), ("requests", requests.into()), ("errors", errors.into())],
    );
    Ok((end, events))
}

fn own(stdio: BorrowedFd<'_>) -> anyhow::Result<OwnedFd> {
    stdio.try_clone_to_owned().context("cannot use stdin or stdout")
}

fn reason(end: &End) -> &'static str {
    match end {
        End::Drained => "end_of_input",
        End::Stopped => "signal",
        End::OutputClosed => "output_closed",
        End::ParentGone => "parent_gone",
        End::InputFailed(_) => "input_failed",
        End::OutputFailed(_) => "output_failed",
        _ => "internal",
    }
}

/// What an end means for the exit code.
fn ended((end, events): (End, Events)) -> Result<(), Failure> {
    events.flush();
    match end {
        End::Drained | End::Stopped | End::OutputClosed | End::ParentGone => Ok(()),
        End::InputFailed(e) => Err(Failure::Transfer(anyhow!(e).context("cannot read stdin"))),
        End::OutputFailed(e) => Err(Failure::Transfer(anyhow!(e).context("cannot write stdout"))),
        other => Err(Failure::Transfer(anyhow!("the worker broke down: {other:?}"))),
    }
}
