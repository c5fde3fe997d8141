//! `restage reshard`: a Hugging Face checkpoint to one file set per tensor-parallel rank.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use restage_checkpoint::names::{REPORT_FILE, rank_file};
use restage_checkpoint::{Header, OutputDir, TensorFile, TensorSpec, copy_companions};
use restage_geometry::Param;
use restage_plan::Plan;
use restage_refit::{PullError, Receiver, Sink, SinkError, same_bytes};
use restage_transport::{FileTransport, Metered};

use crate::args::ReshardArgs;
use crate::failure::Failure;
use crate::job::{Job, RANK_MARK, RankJob, left_out, notices, transport};
use crate::origin::Origin;
use crate::plan::complete;
use crate::progress::bar;

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
pub fn run(args: &ReshardArgs) -> Result<(), Failure> {
    let tp = args.tp.ok_or_else(|| Failure::Usage(anyhow!("--tp is needed to lay out for serving")))?;
    let begun = Instant::now();
    let job = Job::open(&args.path, tp, &args.wanted)?;
    notices(&job.checkpoint);
    let mut ranks = job.prepare(&args.wanted)?;
    complete(&ranks)?;
    let transport = transport(&job.checkpoint)?;
    resolve_ties(&job, &mut ranks, &transport)?;
    let bytes = ranks.iter().map(|r| r.receiver.plan().param_bytes()).sum();
    let progress = bar(bytes, args.quiet);
    let origin = Origin::new(&args.wanted, tp, &job.table).json();
    if args.wanted.rank.is_some() {
        one_rank(args, &job, &ranks[0], &transport, &progress, &origin)?;
    } else {
        let out = OutputDir::create(&args.out, args.force).map_err(Failure::input)?;
        write_ranks(&job, &ranks, out.path(), false, args.sync, &transport, &progress)?;
        out.copy_companions(&job.checkpoint).map_err(Failure::transfer)?;
        write_small(&out.path().join(REPORT_FILE), &origin)?;
        out.commit(args.sync).map_err(Failure::transfer)?;
    }
    progress.finish_and_clear();
    if !args.quiet {
        summary(args, &job, &ranks, &transport, begun);
    }
    Ok(())
}

/// Parameters that the engine ties again where their bytes are equal: decided by reading them.
fn resolve_ties(job: &Job, ranks: &mut [RankJob], transport: &Metered<FileTransport>) -> Result<(), Failure> {
    for rank in ranks {
        let Some(tie) = rank.tie else { continue };
        let pair = [tie.keep, tie.drop];
        let same = same_bytes(&rank.captured, &job.catalog, &job.limits, transport, pair);
        if same.map_err(Failure::transfer)? {
            rank.captured = rank.captured.only(|name| name != tie.drop);
            rank.receiver =
                Receiver::prepare(&rank.captured, &job.catalog, &job.limits).map_err(Failure::input)?;
        } else {
            eprintln!(
                "restage: note: rank {}: {} and {} differ although the config ties them; both are written, \
                 and vLLM's own reader of sharded state takes only the first",
                rank.rank, tie.keep, tie.drop
            );
        }
    }
    Ok(())
}

/// Pulls ranks into their files, together: what several ranks need of one stretch of a source is read once.
fn write_ranks(
    job: &Job,
    ranks: &[RankJob],
    dir: &Path,
    overwrite: bool,
    sync: bool,
    transport: &Metered<FileTransport>,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    progress.set_message(if ranks.len() == 1 {
        format!("rank {}", ranks[0].rank)
    } else {
        "all ranks".into()
    });
    let mut files = Vec::with_capacity(ranks.len());
    for rank in ranks {
        let path = dir.join(rank_file(rank.rank, 0));
        let file = TensorFile::create(&path, &specs(rank.receiver.plan()), None, overwrite);
        files.push(file.map_err(Failure::transfer)?);
    }
    let receiver = job.together(ranks)?;
    let home = |param: &str| {
        let (name, rank) = param.rsplit_once(RANK_MARK)?;
        let rank: u32 = rank.parse().ok()?;
        let slot = ranks.iter().position(|r| r.rank == rank)?;
        Some((files.get(slot)?, name.to_owned()))
    };
    let sink = FileSink { home, bar: progress };
    let readable = |e: PullError| anyhow!(e.to_string().replace(RANK_MARK, " of rank "));
    receiver.pull_each(transport, WAVE_BYTES, &sink).map_err(|e| Failure::transfer(readable(e)))?;
    files.into_iter().try_for_each(|file| file.finish(sync)).map_err(Failure::transfer)
}

/// One rank into a directory that may hold others: files get their names one by one.
fn one_rank(
    args: &ReshardArgs,
    job: &Job,
    rank: &RankJob,
    transport: &Metered<FileTransport>,
    progress: &ProgressBar,
    origin: &[u8],
) -> Result<(), Failure> {
    let dir = &args.out;
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
        write_ranks(job, std::slice::from_ref(rank), dir, args.force, args.sync, transport, progress)
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

fn summary(
    args: &ReshardArgs,
    job: &Job,
    ranks: &[RankJob],
    transport: &Metered<FileTransport>,
    begun: Instant,
) {
    println!(
        "{}: {}, {} tensors, {} bytes in {} files",
        job.name(),
        job.config.architecture.name(),
        job.checkpoint.tensors().len(),
        job.bytes(),
        job.checkpoint.files().len()
    );
    for rank in ranks {
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
        args.wanted.engine,
        begun.elapsed().as_secs_f64()
    );
}
