//! `restage reshard`: a Hugging Face checkpoint to one file set per tensor-parallel rank.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use restage_checkpoint::names::{REPORT_FILE, rank_file};
use restage_checkpoint::{Header, OutputDir, TensorFile, TensorSpec, copy_companions};
use restage_geometry::Param;
use restage_plan::Plan;
use restage_refit::{Receiver, Sink, SinkError};
use restage_transport::{Metered, Transport};

use crate::args::{ReshardArgs, Wanted};
use crate::failure::Failure;
use crate::job::{Job, RANK_MARK, RankJob, left_out, notices, readable};
use crate::origin::Origin;
use crate::plan::complete;
use crate::progress::bar;
use crate::saved::{self, Given};

/// Bytes of parameters that are read before they are written, while the next are read. Larger waves leave the
/// processor's caches between the two copies (16 MiB: 1.2 times the time of 6 MiB on the real checkpoint);
/// smaller ones do not keep all threads busy (2 MiB: 1.1 times).
pub const WAVE_BYTES: u64 = 6 << 20;

/// Hands parameters to the file that holds them.
pub struct FileSink<'a, F: Fn(&str) -> Option<(&'a TensorFile, String)> + Sync> {
    /// The file of a parameter, and its name there.
    pub home: F,
    /// Advanced by the bytes written.
    pub bar: &'a ProgressBar,
}

impl<'a, F: Fn(&str) -> Option<(&'a TensorFile, String)> + Sync> Sink for FileSink<'a, F> {
    fn accept(&self, param: &Param, bytes: &[u8]) -> Result<(), SinkError> {
        let (file, name) = (self.home)(&param.name).ok_or("no file holds it")?;
        file.write(&name, bytes)?;
        self.bar.inc(bytes.len() as u64);
        Ok(())
    }
}

/// The table of a plan's parameters.
pub fn specs(plan: &Plan) -> Vec<TensorSpec> {
    plan.params
        .iter()
        .map(|p| TensorSpec { name: p.name.clone(), dtype: p.dtype, shape: p.shape.clone() })
        .collect()
}

/// Runs the command.
pub fn run(args: &ReshardArgs, given: &Given) -> Result<(), Failure> {
    let begun = Instant::now();
    let Work { wanted, job, mut ranks, saved } = match &args.plan {
        Some(plan) => saved::open(args, given, plan)?,
        None => plan(args)?,
    };
    complete(&ranks)?;
    let transport = job.transport()?;
    let tied = resolve_ties(&job, &mut ranks, &transport, saved.is_some())?;
    let receiver = match saved {
        Some(plan) => Receiver::of(plan.part(|name| !tied.iter().any(|t| t == name))),
        None => {
            let (all, receiver) = job.together(&ranks)?;
            job.check(receiver.plan(), &all)?;
            receiver
        }
    };
    let bytes = ranks.iter().map(|r| r.receiver.plan().param_bytes()).sum();
    let progress = bar(bytes, args.quiet);
    let origin = Origin::new(&wanted, job.tp, &job.table).json();
    let pull = Pull { job: &job, ranks: &ranks, receiver, transport: &transport, progress: &progress };
    if wanted.rank.is_some() {
        one_rank(args, &pull, &origin)?;
    } else {
        let out = OutputDir::create(&args.out, args.force).map_err(Failure::input)?;
        pull.write(out.path(), false, args.sync)?;
        out.copy_companions(&job.checkpoint).map_err(Failure::transfer)?;
        write_small(&out.path().join(REPORT_FILE), &origin)?;
        out.commit(args.sync).map_err(Failure::transfer)?;
    }
    progress.finish_and_clear();
    if !args.quiet {
        summary(args, &wanted, &pull, begun);
    }
    Ok(())
}

/// What is to be done: the ranks with their plans, and the plan of all of them where it was made before.
pub struct Work {
    pub wanted: Wanted,
    pub job: Job,
    pub ranks: Vec<RankJob>,
    pub saved: Option<Plan>,
}

fn plan(args: &ReshardArgs) -> Result<Work, Failure> {
    let tp = args.tp.ok_or_else(|| Failure::Usage(anyhow!("--tp is needed to lay out for serving")))?;
    let job = Job::open(&args.path, &args.access, tp, &args.wanted)?;
    notices(&job.checkpoint);
    let ranks = job.prepare(&args.wanted)?;
    Ok(Work { wanted: args.wanted.clone(), job, ranks, saved: None })
}

/// Parameters that the engine ties again where their bytes are equal: decided by reading them. Those that are dropped are
/// returned, by their names in a plan of all ranks. A plan that was made before loses them and stays as it is otherwise.
fn resolve_ties(
    job: &Job,
    ranks: &mut [RankJob],
    transport: &Metered<Box<dyn Transport + '_>>,
    saved: bool,
) -> Result<Vec<String>, Failure> {
    let mut dropped = Vec::new();
    for rank in ranks {
        let Some(tie) = rank.tie else { continue };
        let both = rank.receiver.plan().part(|name| [tie.keep, tie.drop].contains(&name));
        if Receiver::of(both).same_bytes(transport).map_err(Failure::transfer)? {
            let kept = |name: &str| name != tie.drop;
            rank.captured = rank.captured.only(kept);
            rank.receiver = match saved {
                true => Receiver::of(rank.receiver.plan().part(kept)),
                false => {
                    Receiver::prepare(&rank.captured, &job.catalog, &job.limits).map_err(Failure::input)?
                }
            };
            dropped.extend([tie.drop.to_owned(), format!("{}{RANK_MARK}{}", tie.drop, rank.rank)]);
        } else {
            eprintln!(
                "restage: note: rank {}: {} and {} differ although the config ties them; both are written, \
                 and vLLM's own reader of sharded state takes only the first",
                rank.rank, tie.keep, tie.drop
            );
        }
    }
    Ok(dropped)
}

/// Ranks that are pulled into their files, together: what several ranks need of one stretch of a source is read once.
struct Pull<'a> {
    job: &'a Job,
    ranks: &'a [RankJob],
    /// Of all ranks. Parameters have the mark of their rank, unless there is one rank.
    receiver: Receiver,
    transport: &'a Metered<Box<dyn Transport + 'a>>,
    progress: &'a ProgressBar,
}

impl Pull<'_> {
    fn write(&self, dir: &Path, overwrite: bool, sync: bool) -> Result<(), Failure> {
        self.progress.set_message(match self.ranks {
            [rank] => format!("rank {}", rank.rank),
            _ => "all ranks".into(),
        });
        let mut files = Vec::with_capacity(self.ranks.len());
        for rank in self.ranks {
            let path = dir.join(rank_file(rank.rank, 0));
            let file = TensorFile::create(&path, &specs(rank.receiver.plan()), None, overwrite);
            files.push(file.map_err(Failure::transfer)?);
        }
        let home = |param: &str| {
            let Some((name, rank)) = param.rsplit_once(RANK_MARK) else {
                return Some((files.first()?, param.to_owned()));
            };
            let rank: u32 = rank.parse().ok()?;
            let slot = self.ranks.iter().position(|r| r.rank == rank)?;
            Some((files.get(slot)?, name.to_owned()))
        };
        let sink = FileSink { home, bar: self.progress };
        let pulled = self.receiver.pull_each(self.transport, WAVE_BYTES, &sink);
        pulled.map_err(|e| Failure::Transfer(anyhow!(readable(&e))))?;
        files.into_iter().try_for_each(|file| file.finish(sync)).map_err(Failure::transfer)
    }
}

/// One rank into a directory that may hold others: files get their names one by one.
fn one_rank(args: &ReshardArgs, pull: &Pull<'_>, origin: &[u8]) -> Result<(), Failure> {
    let (job, dir) = (pull.job, &args.out);
    let Some(rank) = pull.ranks.first() else { return Ok(()) };
    let target = dir.join(rank_file(rank.rank, 0));
    if !args.force && target.exists() {
        let what = "exists already; --force replaces it";
        return Err(Failure::input(anyhow!("{}: {what}", target.display())));
    }
    let created = !dir.exists();
    let done = (|| {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string()).map_err(Failure::Input)?;
        neighbours_agree(dir, job.tp, rank)?;
        copy_companions(&job.checkpoint, dir, args.force).map_err(Failure::input)?;
        let beside = dir.join(REPORT_FILE);
        match std::fs::read(&beside) {
            Ok(found) if found != origin && !args.force => {
                let what = "describes another sharded state; --force replaces it";
                return Err(Failure::input(anyhow!("{}: {what}", beside.display())));
            }
            _ => write_small(&beside, origin)?,
        }
        pull.write(dir, args.force, args.sync)
    })();
    if done.is_err() && created {
        // Only if nothing was put into it.
        let _ = std::fs::remove_dir(dir);
    }
    done
}

/// Refuses to put a rank beside ranks of another tensor-parallel size.
fn neighbours_agree(dir: &Path, tp: u32, rank: &RankJob) -> Result<(), Failure> {
    let extra = dir.join(rank_file(tp, 0));
    if extra.exists() {
        let what = format!("belongs to more than {tp} ranks");
        return Err(Failure::input(anyhow!("{}: {what}", extra.display())));
    }
    for other in (0..tp).filter(|&r| r != rank.rank) {
        let path = dir.join(rank_file(other, 0));
        if !path.exists() {
            continue;
        }
        let header = Header::read(&path).map_err(Failure::input)?;
        let plan = rank.receiver.plan();
        for t in header.tensors() {
            let ours = plan.params.iter().find(|p| p.name == t.name);
            if let Some(p) = ours.filter(|p| p.shape != t.shape || p.dtype != t.dtype) {
                return Err(Failure::input(anyhow!(
                    "{}: {} is {} {:?} there and {} {:?} in rank {} of {tp}",
                    path.display(),
                    t.name,
                    t.dtype,
                    t.shape,
                    p.dtype,
                    p.shape,
                    rank.rank
                )));
            }
        }
    }
    Ok(())
}

/// Writes a small file under a temporary name and renames it.
pub fn write_small(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let temporary = path.with_extension(format!("partial-{}", std::process::id()));
    let written = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    written
        .inspect_err(|_| drop(std::fs::remove_file(&temporary)))
        .with_context(|| path.display().to_string())
        .map_err(Failure::Transfer)
}

fn summary(args: &ReshardArgs, wanted: &Wanted, pull: &Pull<'_>, begun: Instant) {
    let Pull { job, ranks, transport, .. } = pull;
    println!(
        "{}: {}, {} tensors, {} bytes in {} files",
        job.name(),
        job.config.architecture.name(),
        job.checkpoint.tensors().len(),
        job.bytes(),
        job.checkpoint.files().len()
    );
    for rank in *ranks {
        let plan = rank.receiver.plan();
        let c = plan.counters();
        println!(
            "  rank {} of {}: {} parameters, {} bytes from {} copies in {} descriptors, {} constants",
            rank.rank,
            job.tp,
            plan.params.len(),
            plan.param_bytes(),
            plan.copies,
            c.descriptors,
            plan.fills.len()
        );
    }
    if let Some(rank) = ranks.iter().find(|r| !r.skipped.is_empty()) {
        println!("  left out: {}", left_out(&rank.skipped));
    }
    let seen = transport.snapshot();
    println!(
        "  read {} bytes in {} reads, wrote {} for {} in {:.2} s",
        seen.total().bytes,
        seen.requests,
        args.out.display(),
        wanted.engine,
        begun.elapsed().as_secs_f64()
    );
}
