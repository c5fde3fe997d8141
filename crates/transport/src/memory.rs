//! Sessions that are regions of this process's memory: the reference backend, and the way to replay locally
//! what was staged.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use restage_nest::Nest;

use crate::chunk::{self, Report};
use crate::{Abilities, Batch, Cancel, EntryError, Extents, Receipt, Task, Transport, TransportError, check};

/// Runs below this many bytes are cut so that both sides of a job stay compact, longer ones so that the
/// destination of a job is one range: a cache line.
const SMALL_RUN: u64 = 64;

/// Bytes that stay where they are, and what they are, for as long as this lives: a mapping, an array of another library.
pub type Kept = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The bytes of a region: owned, shared or borrowed. None of them is copied.
#[derive(Clone)]
#[non_exhaustive]
pub enum Bytes<'a> {
    /// A buffer that outlives the transport.
    Borrowed(&'a [u8]),
    /// A buffer handed over.
    Owned(Vec<u8>),
    /// A buffer shared with others.
    Shared(Arc<[u8]>),
    /// Whatever else keeps bytes.
    Kept(Kept),
}

impl Bytes<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
            Bytes::Kept(bytes) => (**bytes).as_ref(),
        }
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Bytes::Borrowed(_) => "borrowed",
            Bytes::Owned(_) => "owned",
            Bytes::Shared(_) => "shared",
            Bytes::Kept(_) => "kept",
        };
        write!(f, "{} bytes, {kind}", self.as_slice().len())
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Bytes::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for Bytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::Owned(bytes)
    }
}

impl From<Arc<[u8]>> for Bytes<'_> {
    fn from(bytes: Arc<[u8]>) -> Self {
        Bytes::Shared(bytes)
    }
}

impl From<Kept> for Bytes<'_> {
    fn from(bytes: Kept) -> Self {
        Bytes::Kept(bytes)
    }
}

#[derive(Debug)]
struct Session<'a> {
    extents: Extents,
    /// In the order of the extents; empty regions are not kept.
    regions: Vec<(u64, Bytes<'a>)>,
}

/// Reads registered regions of memory.
///
/// ```
/// use restage_nest::{Loop, Nest};
/// use restage_transport::{Batch, Entry, MemoryTransport, Transport};
///
/// let mut memory = MemoryTransport::new();
/// memory.register("trainer-0", 0x1000, vec![1, 2, 3, 4, 5, 6])?;
/// // Every other byte.
/// let nest = Nest { src: 0x1000, dst: 0, run: 1, loops: vec![Loop { count: 3, src: 2, dst: 1 }] };
/// let batch = Batch {
///     sessions: vec!["trainer-0".into()],
///     entries: vec![Entry { session: 0, dest: 0, nest }],
/// };
/// let mut dest = [0; 3];
/// let receipt = memory.read(&batch, &mut [&mut dest])?.into_result()?;
/// assert_eq!((dest, receipt.bytes()), ([1, 3, 5], 3));
/// # Ok::<(), restage_transport::TransportError>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryTransport<'a> {
    sessions: HashMap<Arc<str>, Session<'a>>,
}

impl<'a> MemoryTransport<'a> {
    /// A transport with no sessions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region to a session: `bytes` can be read from address `addr` on. The first region makes the
    /// session known, even where it is empty.
    ///
    /// # Errors
    /// [`TransportError::Region`] when the region overlaps one that the session has, or its end does not fit
    /// in 64 bits. The session is left as it was.
    pub fn register(
        &mut self,
        session: impl Into<Arc<str>>,
        addr: u64,
        bytes: impl Into<Bytes<'a>>,
    ) -> Result<(), TransportError> {
        let (session, bytes) = (session.into(), bytes.into());
        let length = bytes.as_slice().len() as u64;
        let refuse = |reason| {
            let session = Arc::clone(&session);
            TransportError::Region { session, address: addr, length, reason }
        };
        let end = addr.checked_add(length).ok_or_else(|| refuse("reach past the last address"))?;
        let empty = || Session { extents: Extents::from_zero(0), regions: Vec::new() };
        let known = self.sessions.entry(Arc::clone(&session)).or_insert_with(empty);
        if length == 0 {
            return Ok(());
        }
        let ranges = known.extents.ranges().iter().cloned().chain(std::iter::once(addr..end));
        known.extents = Extents::new(ranges).ok_or_else(|| refuse("overlap a registered region"))?;
        let at = known.regions.partition_point(|(start, _)| *start < addr);
        known.regions.insert(at, (addr, bytes));
        Ok(())
    }
}

impl Transport for MemoryTransport<'_> {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn abilities(&self) -> Abilities {
        Abilities { gathers: true }
    }

    /// See [`Transport::read`]. A request is counted for each entry that moves any bytes.
    fn read_with(
        &self,
        batch: &Batch,
        dests: &mut [&mut [u8]],
        cancel: &Cancel,
    ) -> Result<Receipt, TransportError> {
        let extents = |name: &str| self.sessions.get(name).map(|s| s.extents.clone());
        let tasks = check(batch, &extents, dests)?.into_tasks();
        let sessions: Vec<_> = batch.sessions.iter().map(|name| self.sessions.get(name)).collect();
        let work = |job: Vec<Task<'_>>| {
            let mut report = Report::default();
            let mut open = Vec::new();
            for task in job {
                let session = task.session() as usize;
                open.push(task);
                gather(&mut open, sessions[session], &batch.sessions[session], &mut report);
            }
            report
        };
        let report = chunk::run(batch, chunk::shatter(tasks, loop_to_halve), cancel, work);
        let mut receipt = chunk::receipt(batch, report);
        receipt.requests = receipt.outcomes.iter().filter(|moved| matches!(moved, Ok(1..))).count() as u64;
        Ok(receipt)
    }
}

/// Elements are cut where they repeat most, which keeps a job's share of a transpose near square and so uses
/// whole cache lines on both sides; rows are cut along the destination.
fn loop_to_halve(nest: &Nest) -> usize {
    if nest.run >= SMALL_RUN {
        return 0;
    }
    let counts = nest.loops.iter().enumerate().rev();
    counts.max_by_key(|(_, l)| l.count).map_or(0, |(at, _)| at)
}

/// Copies each open task out of the region that holds its source, or its halves where they lie in different
/// ones, until none is left.
fn gather(open: &mut Vec<Task<'_>>, session: Option<&Session<'_>>, name: &Arc<str>, report: &mut Report) {
    while let Some(mut task) = open.pop() {
        let region = session.and_then(|s| {
            let side = task.nest().src_side().ok()?;
            s.regions.get(s.extents.find(&(side.start..side.end().ok()?))?)
        });
        if let Some((addr, bytes)) = region
            && task.gather(bytes.as_slice(), *addr).is_some()
        {
            continue;
        }
        // The check has seen every run inside one region, but canonical order joins runs that touch.
        let at = task.nest().loops.iter().position(|l| l.count > 1);
        if at.is_some() || task.nest().run > 1 {
            let (first, second) = match at {
                Some(at) => task.split_loop(at),
                None => task.split_run(),
            };
            open.extend(second);
            open.push(first);
            continue;
        }
        // Not reached by what was checked; were it, the entry must say so.
        let (address, expected) = (task.nest().src, task.nest().run);
        let fault = EntryError::ShortRead { session: Arc::clone(name), address, expected, found: 0 };
        report.faults.push((task.entry(), fault));
    }
}
