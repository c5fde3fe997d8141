//! What `plan` and `reshard` share: a checkpoint, its model, and a prepared receiver for each rank.

use std::path::Path;

use anyhow::{Context, anyhow};
use restage_checkpoint::Checkpoint;
use restage_geometry::Captured;
use restage_model::{Loaded, ModelConfig, Placement, Rank, TensorTable, Tie, load};
use restage_plan::{Catalog, Fault, Limits, Plan, check};
use restage_refit::Receiver;
use tempfile::TempDir;

use crate::args::Wanted;
use crate::failure::Failure;
use crate::source::{Access, Reader, Source};

/// A Hugging Face checkpoint and the layout that is wanted of it.
pub struct Job {
    /// What reads its bytes.
    pub transport: Reader,
    /// What stands for a checkpoint that is elsewhere, for as long as it is used.
    pub _mirror: Option<TempDir>,
    pub checkpoint: Checkpoint,
    pub config: ModelConfig,
    pub catalog: Catalog,
    pub table: TensorTable,
    pub tp: u32,
    pub ranks: Vec<u32>,
    pub limits: Limits,
}

/// One rank of it.
pub struct RankJob {
    pub rank: u32,
    pub captured: Captured,
    pub tie: Option<Tie>,
    pub skipped: Vec<String>,
    pub receiver: Receiver,
}

/// Between a parameter's name and its rank where the parameters of several ranks are pulled together. It sorts
/// before every character of a name, so that equal names of all ranks follow each other.
pub const RANK_MARK: char = '\u{1}';

/// Prints what a checkpoint's reader found odd and went past.
pub fn notices(checkpoint: &Checkpoint) {
    for notice in checkpoint.notices() {
        eprintln!("restage: note: {notice}");
    }
}

impl Job {
    /// Opens the checkpoint and checks the ranks; headers are read, and no tensor.
    pub fn open(path: &Path, access: &Access, tp: u32, wanted: &Wanted) -> Result<Self, Failure> {
        let ranks = match wanted.rank {
            None => (0..tp).collect(),
            Some(rank) if rank < tp => vec![rank],
            Some(rank) => {
                return Err(Failure::Usage(anyhow!("rank {rank} does not exist with --tp {tp}")));
            }
        };
        let source = Source::open(path, access, false)?;
        let config = source.config()?;
        let Source { checkpoint, transport, mirror } = source;
        let catalog = checkpoint.catalog().map_err(Failure::input)?;
        let table = checkpoint.tensors().map(|t| (t.name.clone(), (t.dtype, t.shape.clone()))).collect();
        Ok(Job {
            transport,
            _mirror: mirror,
            checkpoint,
            config,
            catalog,
            table,
            tp,
            ranks,
            limits: wanted.limits(),
        })
    }

    /// Captures the loader of each rank.
    pub fn load(&self, wanted: &Wanted) -> Result<Vec<(u32, Loaded)>, Failure> {
        self.ranks
            .iter()
            .map(|&rank| {
                let place = Rank { tp_size: self.tp.into(), tp_rank: rank.into() };
                let place = match wanted.expert_parallel {
                    true => Placement::expert_parallel(place),
                    false => place.into(),
                };
                let loaded = load(&self.config, wanted.engine, place, &self.table)
                    .with_context(|| format!("{}: rank {rank} of {}", self.name(), self.tp))
                    .map_err(Failure::Input)?;
                Ok((rank, loaded))
            })
            .collect()
    }

    /// Captures the loader of each rank and plans it.
    pub fn prepare(&self, wanted: &Wanted) -> Result<Vec<RankJob>, Failure> {
        let plan = |(rank, loaded): (u32, Loaded)| {
            let receiver = Receiver::prepare(&loaded.captured, &self.catalog, &self.limits);
            let Loaded { captured, tie, skipped } = loaded;
            Ok(RankJob { rank, captured, tie, skipped, receiver: receiver.map_err(Failure::input)? })
        };
        self.load(wanted)?.into_iter().map(plan).collect()
    }

    /// One receiver for several ranks, and what their loaders do: what they need of one stretch of a source is read
    /// once.
    pub fn together(&self, ranks: &[RankJob]) -> Result<(Captured, Receiver), Failure> {
        let all = all_ranks(ranks.iter().map(|r| (r.rank, &r.captured)));
        let receiver = Receiver::prepare(&all, &self.catalog, &self.limits).map_err(Failure::input)?;
        Ok((all, receiver))
    }

    /// Holds a plan that is about to be carried out against what it was made from.
    pub fn check(&self, plan: &Plan, captured: &Captured) -> Result<(), Failure> {
        let fault = |fault: Fault| anyhow!("the plan does not hold: {}", readable(&fault));
        check(plan, captured, &self.catalog).map_err(|e| Failure::Input(fault(e)))
    }

    /// The checkpoint's own name, without the way to it.
    pub fn name(&self) -> String {
        directory_name(&self.checkpoint)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.checkpoint.tensors().map(|t| t.length).sum()
    }
}

/// A message in which the ranks of parameters are shown as words.
pub fn readable(message: &impl ToString) -> String {
    message.to_string().replace(RANK_MARK, " of rank ")
}

/// What the loaders of several ranks do. Parameters are named `NAME`, [`RANK_MARK`], rank.
pub fn all_ranks<'a>(ranks: impl Iterator<Item = (u32, &'a Captured)>) -> Captured {
    let mut all = Captured::default();
    for (rank, captured) in ranks {
        all.append(captured, |name| format!("{name}{RANK_MARK}{rank}"));
    }
    all
}

/// The last part of a checkpoint's path.
pub fn directory_name(checkpoint: &Checkpoint) -> String {
    let dir = checkpoint.dir().canonicalize().unwrap_or_else(|_| checkpoint.dir().to_owned());
    dir.file_name().map_or_else(|| ".".to_owned(), |n| n.to_string_lossy().into_owned())
}

/// Names of a list that are shown before it is cut: a layer that an engine leaves out can have a thousand tensors.
const NAMES: usize = 4;

/// The tensors that no rank loads, shortened.
pub fn left_out(skipped: &[String]) -> String {
    let shown = skipped.iter().take(NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match skipped.len().saturating_sub(NAMES) {
        0 => format!("{shown} (not loaded by the engine)"),
        more => format!("{shown} and {more} more (not loaded by the engine)"),
    }
}
