//! Cutting a checked batch into jobs of about one size, and running them: for backends.

use std::sync::Arc;

use rayon::prelude::*;
use restage_nest::Nest;

use crate::{Batch, Cancel, EntryError, Receipt, Task};

/// Bytes of one job. Large enough that handing it to a thread costs nothing beside the copy, small enough
/// that a few large entries still spread evenly over the threads.
pub const CHUNK: u64 = 1 << 20;

/// Batches of at most this many bytes are executed on the calling thread: waking another one takes longer
/// than the copy.
pub const SERIAL_BYTES: u64 = 1 << 20;

/// Cuts of a run fall on multiples of this many bytes, so that no two jobs share a page.
const PAGE: u64 = 4096;

/// What went wrong in a job, and what it took.
#[derive(Debug, Default)]
pub struct Report {
    /// Entry and fault, in the order of occurrence.
    pub faults: Vec<(usize, EntryError)>,
    /// Reads issued to the medium.
    pub requests: u64,
}

/// The two halves of loop `at` of a nest; the loop must repeat at least twice.
///
/// The law: the runs of the halves are together those of the nest. Nothing overflows where both sides of
/// the nest fit in 64 bits.
pub(crate) fn halves(nest: &Nest, at: usize) -> (Nest, Nest) {
    let cut = nest.loops[at];
    let head = cut.count / 2;
    let part = |skip: u64, count: u64| {
        let skip = skip as i64;
        let mut part = nest.clone();
        part.src = nest.src.wrapping_add_signed(cut.src.wrapping_mul(skip));
        part.dst = nest.dst.wrapping_add_signed(cut.dst.wrapping_mul(skip));
        match count {
            1 => drop(part.loops.remove(at)),
            _ => part.loops[at].count = count,
        }
        part
    };
    (part(0, head), part(head, cut.count - head))
}

/// The two parts of every run of a nest; the run must be at least two bytes.
pub(crate) fn run_halves(nest: &Nest) -> (Nest, Nest) {
    let half = nest.run / 2;
    let head = if half >= PAGE { half / PAGE * PAGE } else { half };
    let (mut first, mut second) = (nest.clone(), nest.clone());
    first.run = head;
    second.run -= head;
    // Cannot overflow: both are positions of the run.
    second.src += head;
    second.dst += head;
    (first, second)
}

/// Cuts tasks until none moves more than [`CHUNK`] bytes; `pick` chooses the loop to halve next, and is
/// asked only for nests that have one.
pub fn shatter<'d>(tasks: Vec<Task<'d>>, pick: fn(&Nest) -> usize) -> Vec<Task<'d>> {
    // The usual form of very many tasks, whose list costs more to copy than to look through.
    if tasks.iter().all(|task| task.bytes() <= CHUNK) {
        return tasks;
    }
    let mut done = Vec::with_capacity(tasks.len());
    let mut open = Vec::new();
    for task in tasks {
        open.push(task);
        while let Some(task) = open.pop() {
            if task.bytes() <= CHUNK {
                done.push(task);
                continue;
            }
            let nest = task.nest();
            let (first, second) = match nest.loops.is_empty() {
                true => task.split_run(),
                false => {
                    let at = pick(nest);
                    task.split_loop(at)
                }
            };
            open.extend(second);
            open.push(first);
        }
    }
    done
}

/// Hands the tasks, in order and about [`CHUNK`] bytes at a time, to `work`, on as many threads as the
/// current pool has. Once `cancel` is used, what has not begun is not done, and is a fault of its entries.
pub fn run<'d>(
    batch: &Batch,
    tasks: Vec<Task<'d>>,
    cancel: &Cancel,
    work: impl Fn(Vec<Task<'d>>) -> Report + Send + Sync,
) -> Report {
    let work = |job: Vec<Task<'d>>| match cancel.is_cancelled() {
        false => work(job),
        true => Report { faults: job.iter().map(|task| cancelled(batch, task)).collect(), requests: 0 },
    };
    let total: u64 = tasks.iter().map(Task::bytes).sum();
    if total <= SERIAL_BYTES {
        return work(tasks);
    }
    let mut jobs: Vec<Vec<Task<'d>>> = Vec::with_capacity((total / CHUNK) as usize + 1);
    // Where tasks are alike, no list of a job grows as it is filled.
    let like_it = (tasks.len() as u64 * CHUNK / total) as usize + 1;
    let mut room = 0;
    for task in tasks {
        let bytes = task.bytes();
        match jobs.last_mut() {
            Some(job) if bytes <= room => {
                job.push(task);
                room -= bytes;
            }
            _ => {
                room = CHUNK.saturating_sub(bytes);
                let mut job = Vec::with_capacity(like_it);
                job.push(task);
                jobs.push(job);
            }
        }
    }
    let reports: Vec<Report> = jobs.into_par_iter().with_max_len(1).map(work).collect();
    reports.into_iter().fold(Report::default(), |mut all, report| {
        all.faults.extend(report.faults);
        all.requests += report.requests;
        all
    })
}

/// What is said of a task that was not begun when its read was cancelled: its entry, and the fault of that.
pub fn cancelled(batch: &Batch, task: &Task<'_>) -> (usize, EntryError) {
    let session = Arc::clone(&batch.sessions[task.session() as usize]);
    (task.entry(), EntryError::Cancelled { session, address: task.nest().src, length: task.bytes() })
}

/// The receipt of a batch that was executed: what did not fail was moved whole.
pub fn receipt(batch: &Batch, report: Report) -> Receipt {
    let mut outcomes: Vec<Result<u64, EntryError>> =
        batch.entries.iter().map(|e| Ok(e.nest.total().unwrap_or(0))).collect();
    for (entry, fault) in report.faults {
        if outcomes[entry].is_ok() {
            outcomes[entry] = Err(fault);
        }
    }
    Receipt { outcomes, requests: report.requests, ..Receipt::default() }
}
