//! Reading scattered runs of a medium with few requests: data sieving.
//!
//! One read brings a span that covers many runs, wanted bytes and gaps alike, into a scratch buffer that stays in
//! the cache, and the runs are gathered from there. Runs that are long or far apart are read straight into their
//! destination. What a further request costs beside a copy is the [`Medium`]'s to say.

use std::cell::Cell;
use std::ops::Range;

use restage_nest::Nest;

use crate::Task;

/// Bytes of the scratch buffer, and so of the longest span read at once: well inside a core's second-level
/// cache, so that gathering from it does not go to memory again.
const SCRATCH: u64 = 256 << 10;

thread_local! {
    /// Kept between jobs, so that its pages are touched once per thread.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What is read from, and what went wrong with it.
pub trait Medium<'d> {
    /// Gaps of up to this many bytes are read along rather than skipped.
    const GAP: u64;

    /// Runs of at least this many bytes are read straight into their destination: a second copy of them would
    /// cost more than a request.
    const DIRECT_RUN: u64;

    /// Fills `bytes` from address `at` of a session, as far as it goes, and returns how far that was. Nothing
    /// needs to be noted of a failure: what was not found is asked for again, directly.
    fn span(&mut self, session: usize, bytes: &mut [u8], at: u64) -> usize;

    /// Reads the runs of a task straight into their destination, now or later, and notes what cannot be read.
    fn direct(&mut self, task: Task<'d>);
}

/// Executes tasks, which should come in the order of their sources, with as few requests as pay off.
pub fn read<'d, M: Medium<'d>>(tasks: Vec<Task<'d>>, medium: &mut M) {
    let mut sieve = Sieve { medium, session: 0, span: 0..0, waiting: Vec::new(), buffer: BUFFER.take() };
    for task in tasks {
        if sieve.session != task.session() as usize {
            sieve.flush();
            sieve.session = task.session() as usize;
        }
        sieve.take(task);
    }
    sieve.flush();
    BUFFER.set(sieve.buffer);
}

struct Sieve<'m, 'd, M> {
    medium: &'m mut M,
    /// The one that is being read.
    session: usize,
    /// Covers the sources of all that is waiting.
    span: Range<u64>,
    waiting: Vec<Task<'d>>,
    buffer: Vec<u8>,
}

impl<'d, M: Medium<'d>> Sieve<'_, 'd, M> {
    fn take(&mut self, task: Task<'d>) {
        if task.nest().loops.is_empty() {
            // One run is never too sparse or too wide to wait, and needs no list of parts.
            return match task.nest().run {
                run if run >= M::DIRECT_RUN => self.medium.direct(task),
                run => {
                    // Checked not to wrap around.
                    let hull = task.nest().src..task.nest().src + run;
                    self.wait(task, hull);
                }
            };
        }
        let mut open = vec![task];
        while let Some(task) = open.pop() {
            let hull = hull(task.nest());
            if task.nest().run >= M::DIRECT_RUN || sparse(task.nest(), M::GAP) {
                self.medium.direct(task);
            } else if hull.end - hull.start <= SCRATCH && dense(task.nest(), &hull, M::GAP) {
                self.wait(task, hull);
            } else {
                let (first, second) = task.split_loop(0);
                match second {
                    Some(second) => open.extend([second, first]),
                    // Unreachable for a task without loops, whose hull is its run.
                    None => self.medium.direct(first),
                }
            }
        }
    }

    /// Adds a task to the span that is read next, or starts the next one.
    fn wait(&mut self, task: Task<'d>, hull: Range<u64>) {
        let joined = self.span.start.min(hull.start)..self.span.end.max(hull.end);
        let apart = hull.start.max(self.span.start).saturating_sub(hull.end.min(self.span.end));
        if self.waiting.is_empty() || joined.end - joined.start > SCRATCH || apart > M::GAP {
            self.flush();
            self.span = hull;
        } else {
            self.span = joined;
        }
        self.waiting.push(task);
    }

    /// Reads the span and gathers all that is waiting.
    fn flush(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let len = (self.span.end - self.span.start) as usize;
        let mut found = 0;
        // One run needs no scratch.
        if waiting.len() > 1 || waiting.iter().any(|t| !t.nest().loops.is_empty()) {
            if self.buffer.len() < len {
                self.buffer.resize(SCRATCH as usize, 0);
            }
            found = self.medium.span(self.session, &mut self.buffer[..len], self.span.start);
        }
        for mut task in waiting.drain(..) {
            // What a failed or short read leaves is tried run by run, so that the fault falls on the entry
            // it belongs to.
            if task.gather(&self.buffer[..found], self.span.start).is_none() {
                self.medium.direct(task);
            }
        }
        // Keeps its room: there are as many spans as runs where runs lie apart.
        self.waiting = waiting;
    }
}

/// The range from the first to the last byte that is read.
fn hull(nest: &Nest) -> Range<u64> {
    // Both exist for what has been checked.
    nest.src_side().and_then(|s| Ok(s.start..s.end()?)).unwrap_or(0..u64::MAX)
}

/// True when even the nearest two runs are too far apart to be read together.
fn sparse(nest: &Nest, gap: u64) -> bool {
    let step = nest.loops.iter().map(|l| l.src.unsigned_abs()).min();
    step.is_some_and(|step| step > nest.run + gap)
}

/// True when the runs in `hull` are on average near enough to be read together.
fn dense(nest: &Nest, hull: &Range<u64>, gap: u64) -> bool {
    // What is read several times lies in the hull once.
    let runs = nest.loops.iter().filter(|l| l.src != 0).fold(1u64, |n, l| n.saturating_mul(l.count));
    let gaps = (hull.end - hull.start).saturating_sub(runs.saturating_mul(nest.run));
    gaps <= runs.saturating_mul(gap)
}
