//! Sessions that are local files; addresses are offsets in the file.
//!
//! Files are read by position and not mapped. `benches/file.rs` compares the two on a cached file: 64 MiB
//! into a buffer whose pages are present, two threads on two cores of a server CPU, the best of many:
//!
//! | pull | this | mapped for the pull | ratio |
//! |---|---|---|---|
//! | contiguous | 6.1 ms | 3.7 ms | 1.6 |
//! | 384 of every 1152 bytes | 12.2 ms | 6.2 ms | 2.0 |
//! | 5461 of every 16384 bytes | 10.1 ms | 5.1 ms | 2.0 |
//! | 1 KiB of every 5 KiB | 26 ms | 7.7 ms | 3.4 |
//! | 24 of every 48 KiB | 7.0 ms | 5.4 ms | 1.3 |
//! | transpose of 2-byte elements | 24 ms | 24 ms | 1.0 |
//!
//! So a mapping is faster as long as the file is cached, where it saves a copy and leaves the gaps alone.
//! It is still not used: when a mapped file is cut short by someone else, touching what is gone kills the
//! process with SIGBUS, which no check made before can rule out, and a read that fails halfway takes the
//! process down instead of reporting the entry. A file that comes from a disk is read at the disk's speed
//! either way. Where the files are known to stay as they are, a caller can map them and register the mapping
//! with [`MemoryTransport`](crate::MemoryTransport).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use crate::chunk::Report;
use crate::positioned::{fill_at, open_regular};
use crate::sieve::Medium;
use crate::{
    Abilities, Batch, Cancel, EntryError, Extents, Receipt, Task, Transport, TransportError, check, chunk,
    sieve,
};

#[derive(Debug, Clone)]
struct Session {
    file: Arc<File>,
    extents: Extents,
}

/// Reads registered files.
///
/// A file is opened once, when it is registered, and keeps being read under its name: one that is replaced
/// at its path afterwards is seen only by a transport that registers it anew. One that has become shorter
/// gives [`EntryError::ShortRead`](crate::EntryError::ShortRead) for the entries that lie past its end.
#[derive(Debug, Default)]
pub struct FileTransport {
    sessions: HashMap<Arc<str>, Session>,
}

impl FileTransport {
    /// A transport with no sessions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the file at `path` as `session`, whose one extent is what the file holds now.
    ///
    /// # Errors
    /// [`TransportError::SessionTaken`] when the session is registered already, [`TransportError::Open`]
    /// when the file cannot be opened or is not a regular one.
    pub fn register(
        &mut self,
        session: impl Into<Arc<str>>,
        path: impl AsRef<Path>,
    ) -> Result<(), TransportError> {
        let (session, path) = (session.into(), path.as_ref());
        if self.sessions.contains_key(&session) {
            return Err(TransportError::SessionTaken { session });
        }
        let (file, len) = open_regular(path).map_err(|source| TransportError::Open {
            session: Arc::clone(&session),
            path: path.to_owned(),
            source,
        })?;
        self.sessions.insert(session, Session { file: Arc::new(file), extents: Extents::from_zero(len) });
        Ok(())
    }
}

impl Transport for FileTransport {
    fn name(&self) -> &'static str {
        "file"
    }

    fn abilities(&self) -> Abilities {
        Abilities { gathers: true }
    }

    /// See [`Transport::read`]. A request is one positioned read.
    fn read_with(
        &self,
        batch: &Batch,
        dests: &mut [&mut [u8]],
        cancel: &Cancel,
    ) -> Result<Receipt, TransportError> {
        let extents = |name: &str| self.sessions.get(name).map(|s| s.extents.clone());
        let tasks = check(batch, &extents, dests)?.into_tasks();
        let tasks = tasks.into_iter().map(Task::by_source).collect();
        // By source, so that a job reads one stretch of a file, whichever entries want it.
        let mut tasks = chunk::shatter(tasks, |_| 0);
        tasks.par_sort_unstable_by_key(|t| (t.session(), t.nest().src));
        let sources: Vec<Source<'_>> = batch
            .sessions
            .iter()
            .map(|name| Source { name, file: self.sessions.get(name).map(|s| &*s.file) })
            .collect();
        let work = |job: Vec<Task<'_>>| {
            let mut files = Files { sources: &sources, report: Report::default() };
            sieve::read(job, &mut files);
            files.report
        };
        Ok(chunk::receipt(batch, chunk::run(batch, tasks, cancel, work)))
    }
}

/// A session of a batch, as its reader needs it.
#[derive(Debug, Clone, Copy)]
struct Source<'f> {
    name: &'f Arc<str>,
    /// `None` where nothing is read from it, so that it need not be known.
    file: Option<&'f File>,
}

impl Source<'_> {
    /// As [`fill_at`]; of a session that has no file there is nothing to find.
    fn fill(&self, bytes: &mut [u8], at: u64, requests: &mut u64) -> io::Result<usize> {
        self.file.map_or(Ok(0), |file| fill_at(file, bytes, at, requests))
    }
}

struct Files<'f> {
    /// In the order of the batch.
    sources: &'f [Source<'f>],
    report: Report,
}

/// The constants are near where the two ways cost the same on a cached file: with 1 KiB of every 5 KiB, sieving takes
/// 0.8 of the time of single reads, with 1 KiB of every 9 KiB 1.3; with 384 of every 1152 bytes 0.15. With runs of
/// 8 KiB and gaps of 2 KiB it takes 0.9, with runs of 32 KiB 1.2.
impl<'d> Medium<'d> for Files<'_> {
    /// Copying a gap out of the page cache takes about as long as a further request does.
    const GAP: u64 = 4 << 10;

    const DIRECT_RUN: u64 = 16 << 10;

    fn span(&mut self, session: usize, bytes: &mut [u8], at: u64) -> usize {
        self.sources[session].fill(bytes, at, &mut self.report.requests).unwrap_or(0)
    }

    fn direct(&mut self, mut task: Task<'d>) {
        let source = self.sources[task.session() as usize];
        let requests = &mut self.report.requests;
        let done = task.each_run(|address, bytes| {
            let expected = bytes.len() as u64;
            let session = || Arc::clone(source.name);
            match source.fill(bytes, address, requests) {
                Ok(found) if found as u64 == expected => Ok(()),
                Ok(found) => {
                    Err(EntryError::ShortRead { session: session(), address, expected, found: found as u64 })
                }
                Err(e) => Err(EntryError::Io {
                    session: session(),
                    address,
                    length: expected,
                    kind: e.kind(),
                    reason: e.to_string(),
                }),
            }
        });
        if let Err(fault) = done {
            self.report.faults.push((task.entry(), fault));
        }
    }
}
