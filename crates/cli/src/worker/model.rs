//! The model behind a stage: opened by its headers, refused before anything is read, then loaded.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use restage_engine::{
    Compute, HiddenDtype, KvDtype, ServeError, ServeOptions, Source, StageEngine, WeightsError,
};
use restage_model::StagePart;
use restage_worker::{Engine, Role, Split, Stage};
use tracing::info;

use crate::failure::Failure;
use crate::source::files::transport;

/// How often a load says how far it is.
const EVERY: Duration = Duration::from_secs(2);

/// Arguments of a worker that has a model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With a model")]
pub struct ModelArgs {
    /// What hidden states are on the wire; all stages must agree.
    #[arg(long, value_name = "DTYPE", default_value = "f16")]
    hidden_dtype: FloatArg,
    /// What products with quantised weights are computed in.
    #[arg(long, value_name = "HOW", default_value = "q8")]
    compute: ComputeArg,
    /// What keys and values are kept as.
    #[arg(long, value_name = "DTYPE", default_value = "f16")]
    kv_dtype: FloatArg,
    /// Bytes that the keys and values of all sequences may take together.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 30)]
    kv_budget: u64,
    /// Positions that a sequence may have, where the model takes more.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..))]
    max_context: u64,
    /// Threads that compute; as many as there are processors otherwise. Replies do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

/// A type of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FloatArg {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// What products are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ComputeArg {
    /// Activations of 8 bits where weights are Q4_0, Q4_1 or Q8_0; f32 otherwise.
    Q8,
    /// All weights become f32.
    F32,
}

/// The blocks of a stage, as they are asked for.
#[derive(Debug, Clone, Copy)]
pub enum Blocks {
    /// The stage's share.
    Split(Split),
    /// These, from the first up to and without the second.
    Given(u64, u64),
}

/// Loads a stage's part of a model. What is wrong with the model or with what is asked of it is told before a tensor is read.
pub fn load(path: &Path, stage: Stage, blocks: Blocks, args: &ModelArgs) -> Result<StageEngine, Failure> {
    let refused = |e: anyhow::Error| Failure::Usage(e.context(format!("cannot serve {}", path.display())));
    let source = Source::open(path).map_err(|e| refused(e.into()))?;
    let part = part(stage, blocks, source.config.num_hidden_layers as u64).map_err(refused)?;
    let threads = usize::from(args.threads.unwrap_or(0));
    // The pool of the whole process: loading repacks on it too.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    pool.context("cannot start the threads that compute").map_err(Failure::Transfer)?;
    let transport = transport(&source.checkpoint)?;
    let options = ServeOptions {
        hidden: match args.hidden_dtype {
            FloatArg::F16 => HiddenDtype::F16,
            FloatArg::F32 => HiddenDtype::F32,
        },
        kv: match args.kv_dtype {
            FloatArg::F16 => KvDtype::F16,
            FloatArg::F32 => KvDtype::F32,
        },
        compute: match args.compute {
            ComputeArg::Q8 => Compute::Q8,
            ComputeArg::F32 => Compute::F32,
        },
        kv_budget: args.kv_budget,
        max_context: args.max_context,
    };
    let progress = Progress::new();
    let loaded = StageEngine::load(source, &part, options, &transport, &|bytes, of| progress.add(bytes, of));
    let engine = match loaded {
        Err(ServeError::Weights(WeightsError::Pull(e))) => {
            let what = format!("cannot load {}", path.display());
            return Err(Failure::Transfer(anyhow::Error::new(e).context(what)));
        }
        // Nothing was read yet: the model is not what it must be.
        other => other.map_err(|e| refused(e.into()))?,
    };
    let (read, report) = (transport.snapshot().total().bytes, &engine.stage().weights().report);
    let seconds = progress.begun.elapsed().as_secs_f64();
    info!(
        read_bytes = read,
        weight_bytes = engine.weight_bytes(),
        seconds,
        mb_per_s = rate(read, seconds),
        // The two go on at the same time.
        read_seconds = report.reading.as_secs_f64(),
        repack_seconds = report.handing_over.as_secs_f64(),
        "loaded"
    );
    Ok(engine)
}

/// The part of a model that a stage has, from its blocks.
fn part(stage: Stage, blocks: Blocks, total: u64) -> anyhow::Result<StagePart> {
    let range = match blocks {
        Blocks::Split(split) => split.range(stage, total)?,
        Blocks::Given(start, end) if end <= total => start..end,
        Blocks::Given(start, end) => {
            return Err(anyhow!("--layers {start}..{end}: the model has {total} blocks"));
        }
    };
    let (first, last) = (stage.role() == Role::First, stage.role() == Role::Last);
    if first && range.start != 0 {
        return Err(anyhow!("the first stage must begin at block 0, --layers begins at {}", range.start));
    }
    if last && range.end != total {
        return Err(anyhow!("the last stage must end at block {total}, --layers ends at {}", range.end));
    }
    Ok(StagePart { blocks: range.start as i64..range.end as i64, first, last })
}

/// Tells on stderr how far a load is.
struct Progress {
    begun: Instant,
    state: Mutex<(u64, Instant)>,
}

impl Progress {
    fn new() -> Self {
        let begun = Instant::now();
        Progress { begun, state: Mutex::new((0, begun)) }
    }

    fn add(&self, bytes: u64, of: u64) {
        if bytes == 0 {
            return info!(wanted_bytes = of, "loading");
        }
        // Numbers for people: they have no invariant that a panic elsewhere could have broken.
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.0 += bytes;
        if state.1.elapsed() >= EVERY {
            state.1 = Instant::now();
            let mb_per_s = rate(state.0, self.begun.elapsed().as_secs_f64());
            info!(bytes = state.0, of, mb_per_s, "loading");
        }
    }
}

fn rate(bytes: u64, seconds: f64) -> u64 {
    (bytes as f64 / 1e6 / seconds.max(1e-6)) as u64
}
