//! The transport: several publishers, each with connections of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use restage_transport::{
    Abilities, Batch, Cancel, EntryError, Extents, Receipt, Task, Transport, TransportError, check, chunk,
};

use crate::frame::Kind;
use crate::hello::Token;
use crate::limits::{READ_BYTES, WINDOW};
use crate::link::Link;
use crate::want::{Want, entry_error, take};
use crate::{RemoteError, table};

/// How a client reads.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The secret shared with the publishers. Where it is given, a publisher that has none is refused.
    pub token: Option<Token>,
    /// Connections to one publisher at once.
    pub connections: usize,
    /// A request that is not answered by then has failed. Counted anew for each request, of 1 MiB at most, from
    /// when the one before it was answered.
    pub deadline: Duration,
}

impl Default for ReadOptions {
    fn default() -> Self {
        // The publisher works as much as this side does; beyond a few, connections share the same wire.
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let connections = (processors / 2).clamp(1, 4);
        ReadOptions { token: None, connections, deadline: Duration::from_secs(30) }
    }
}

/// A connection that was not used for so long is asked whether it is still there before it is relied on.
const STALE: Duration = Duration::from_secs(1);

struct Peer {
    address: Arc<str>,
    table: Vec<u8>,
    catalog: Vec<u8>,
    idle: Mutex<Vec<Link>>,
}

/// Reads the sessions of publishers over TCP.
///
/// A publisher that goes away, is silent or sends what it may not fails the entries that wait for it, within
/// the deadline; the next read connects anew. Nothing is tried twice within a read.
pub struct TcpTransport {
    peers: Vec<Peer>,
    /// Peer, number there, extents.
    sessions: HashMap<Arc<str>, (usize, u32, Extents)>,
    options: ReadOptions,
}

impl std::fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers: Vec<_> = self.peers.iter().map(|p| &p.address).collect();
        write!(f, "TcpTransport({peers:?}, {} sessions)", self.sessions.len())
    }
}

/// Faults of entries, requests made, and what ended the connection.
#[derive(Default)]
struct Report {
    faults: Vec<(usize, EntryError)>,
    requests: u64,
    broken: Option<RemoteError>,
}

impl TcpTransport {
    /// Connects to publishers, each `HOST:PORT`, and learns what they offer. A session that several of them
    /// offer is read from the first.
    ///
    /// # Errors
    /// [`RemoteError`]: one cannot be reached or refuses, or two disagree on the extents of a session.
    pub fn connect<'a>(
        publishers: impl IntoIterator<Item = &'a str>,
        options: ReadOptions,
    ) -> Result<Self, RemoteError> {
        let mut transport = TcpTransport { peers: Vec::new(), sessions: HashMap::new(), options };
        for address in publishers {
            transport.add(address.into())?;
        }
        Ok(transport)
    }

    /// One transport over the publishers of several.
    ///
    /// # Errors
    /// [`RemoteError::Disagree`] when two disagree on the extents of a session.
    pub fn join(transports: impl IntoIterator<Item = Self>) -> Result<Self, RemoteError> {
        let mut transports = transports.into_iter();
        let Some(mut all) = transports.next() else {
            return TcpTransport::connect([], ReadOptions::default());
        };
        for other in transports {
            let before = all.peers.len();
            all.peers.extend(other.peers);
            for (name, (peer, number, extents)) in other.sessions {
                all.offer(name, before + peer, number, extents)?;
            }
        }
        Ok(all)
    }

    /// Takes note of a session, unless one before has it.
    fn offer(
        &mut self,
        name: Arc<str>,
        peer: usize,
        number: u32,
        extents: Extents,
    ) -> Result<(), RemoteError> {
        let address = |peer: usize| Arc::clone(&self.peers[peer].address);
        match self.sessions.get(&name) {
            Some((first, _, known)) if *known != extents => {
                let (first, second) = (address(*first), address(peer));
                return Err(RemoteError::Disagree { session: name, first, second });
            }
            Some(_) => {}
            None => drop(self.sessions.insert(name, (peer, number, extents))),
        }
        Ok(())
    }

    fn add(&mut self, address: Arc<str>) -> Result<(), RemoteError> {
        let mut link = Link::open(&address, self.options.token.as_ref(), self.options.deadline)?;
        let bytes = link.blob(Kind::Sessions)?;
        let catalog = link.blob(Kind::Catalog)?;
        let malformed = crate::frame::FrameError::Content { id: 0, what: "a malformed table of sessions" };
        let sessions = table::decode(&bytes).ok_or_else(|| link.broken(malformed))?;
        let idle = Mutex::new(vec![link]);
        let peer = self.peers.len();
        self.peers.push(Peer { address, table: bytes, catalog, idle });
        for (number, (name, extents)) in sessions.into_iter().enumerate() {
            self.offer(name, peer, number as u32, extents)?;
        }
        Ok(())
    }

    /// What each publisher says of itself, in the order they were given in.
    pub fn catalogs(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.peers.iter().map(|p| (&*p.address, &p.catalog[..]))
    }

    /// The sessions and their extents, in no particular order.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = (&str, &Extents)> {
        self.sessions.iter().map(|(name, (_, _, extents))| (&**name, extents))
    }

    /// A connection that can be relied on: an idle one, or a new one to the same publisher as before.
    fn link(&self, peer: &Peer) -> Result<Link, RemoteError> {
        while let Some(mut link) = lock(&peer.idle).pop() {
            if link.heard.elapsed() < STALE || link.ping().is_ok() {
                return Ok(link);
            }
        }
        let mut link = Link::open(&peer.address, self.options.token.as_ref(), self.options.deadline)?;
        match link.blob(Kind::Sessions)? == peer.table {
            true => Ok(link),
            false => Err(RemoteError::Replaced { publisher: Arc::clone(&peer.address) }),
        }
    }

    /// Reads from one publisher over one connection until nothing is left to ask for.
    fn pull<'d>(
        &self,
        peer: &Peer,
        names: &[Arc<str>],
        queue: &Mutex<Vec<Task<'d>>>,
        cancel: &Cancel,
    ) -> Report {
        let mut report = Report::default();
        if cancel.is_cancelled() {
            return report;
        }
        let mut link = match self.link(peer) {
            Ok(link) => link,
            Err(e) => return Report { broken: Some(e), ..report },
        };
        let watch = match link.closed_by(cancel) {
            Ok(watch) => watch,
            Err(e) => return Report { broken: Some(e), ..report },
        };
        let number = |session: u32| self.sessions.get(&names[session as usize]).map_or(u32::MAX, |s| s.1);
        let mut open: std::collections::VecDeque<Want<'d>> = Default::default();
        let done = 'pull: loop {
            while open.len() < WINDOW {
                let Some(mut want) = take(&mut lock(queue), number) else { break };
                let asked = link.ask(Kind::Read, &want.payload);
                if open.is_empty() {
                    link.start();
                }
                report.requests += 1;
                want.payload = Vec::new();
                want.id = *asked.as_ref().unwrap_or(&0);
                open.push_back(want);
                if let Err(e) = asked {
                    break 'pull Err(e);
                }
            }
            let Some(want) = open.front_mut() else { break Ok(()) };
            let faults = &mut report.faults;
            let received = want.receive(&mut link, |piece, fault| {
                faults.push((piece.entry, entry_error(&names[piece.session as usize], fault)));
            });
            if let Err(e) = received {
                break Err(e);
            }
            open.pop_front();
            link.start();
        };
        // From here on nothing closes the link.
        drop(watch);
        match done {
            Ok(()) if cancel.is_cancelled() => {}
            Ok(()) => {
                link.heard = Instant::now();
                lock(&peer.idle).push(link);
            }
            Err(e) => {
                for piece in open.iter().flat_map(Want::missing) {
                    let session = &names[piece.session as usize];
                    let fault = lost(session, piece.address, piece.bytes, cancel, &e);
                    report.faults.push((piece.entry, fault));
                }
                report.broken = Some(e);
            }
        }
        report
    }

    /// Reads from one publisher; what it cannot give any more is a fault.
    fn pull_all(&self, peer: &Peer, batch: &Batch, tasks: Vec<Task<'_>>, cancel: &Cancel) -> Report {
        let names = &batch.sessions;
        let bytes: u64 = tasks.iter().map(Task::bytes).sum();
        let useful = (bytes / READ_BYTES).clamp(1, self.options.connections.max(1) as u64);
        let queue = Mutex::new(tasks);
        let mut all = Report::default();
        let reports: Vec<Report> = match useful {
            1 => vec![self.pull(peer, names, &queue, cancel)],
            _ => thread::scope(|scope| {
                let work = || self.pull(peer, names, &queue, cancel);
                let workers: Vec<_> = (1..useful).map(|_| scope.spawn(work)).collect();
                let own = work();
                workers
                    .into_iter()
                    .map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
                    .chain([own])
                    .collect()
            }),
        };
        for report in reports {
            all.faults.extend(report.faults);
            all.requests += report.requests;
            all.broken = report.broken.or(all.broken);
        }
        for task in queue.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let session = &names[task.session() as usize];
            // Left only where every connection broke, or all were told to end.
            match &all.broken {
                _ if cancel.is_cancelled() => all.faults.push(chunk::cancelled(batch, &task)),
                Some(e) => {
                    let fault = lost(session, task.nest().src, task.bytes(), cancel, e);
                    all.faults.push((task.entry(), fault));
                }
                None => {}
            }
        }
        all
    }
}

/// What is said of bytes that did not come: of a connection that a cancel closed, no more than that.
fn lost(session: &Arc<str>, address: u64, length: u64, cancel: &Cancel, error: &RemoteError) -> EntryError {
    if cancel.is_cancelled() {
        return EntryError::Cancelled { session: Arc::clone(session), address, length };
    }
    let (session, kind, reason) = (Arc::clone(session), error.kind(), error.to_string());
    EntryError::Io { session, address, length, kind, reason }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn abilities(&self) -> Abilities {
        Abilities { gathers: true }
    }

    /// See [`Transport::read`]. A request is a frame of up to 1 MiB wanted.
    fn read_with(
        &self,
        batch: &Batch,
        dests: &mut [&mut [u8]],
        cancel: &Cancel,
    ) -> Result<Receipt, TransportError> {
        let extents = |name: &str| self.sessions.get(name).map(|s| s.2.clone());
        let tasks = check(batch, &extents, dests)?.into_tasks();
        let names = &batch.sessions;
        let mut queues: Vec<Vec<Task<'_>>> = self.peers.iter().map(|_| Vec::new()).collect();
        let home: Vec<Option<usize>> = names.iter().map(|n| self.sessions.get(n).map(|s| s.0)).collect();
        // The last is taken first.
        for task in tasks.into_iter().rev() {
            if let Some(peer) = home[task.session() as usize] {
                queues[peer].push(task);
            }
        }
        let busy: Vec<_> = self.peers.iter().zip(queues).filter(|(_, q)| !q.is_empty()).collect();
        let reports: Vec<Report> = match busy.len() {
            0 | 1 => {
                busy.into_iter().map(|(peer, queue)| self.pull_all(peer, batch, queue, cancel)).collect()
            }
            _ => thread::scope(|scope| {
                let work = |(peer, queue)| scope.spawn(move || self.pull_all(peer, batch, queue, cancel));
                let workers: Vec<_> = busy.into_iter().map(work).collect();
                workers
                    .into_iter()
                    .map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
                    .collect()
            }),
        };
        let mut outcomes: Vec<Result<u64, EntryError>> =
            batch.entries.iter().map(|e| Ok(e.nest.total().unwrap_or(0))).collect();
        let mut requests = 0;
        for report in reports {
            requests += report.requests;
            for (entry, fault) in report.faults {
                if outcomes[entry].is_ok() {
                    outcomes[entry] = Err(fault);
                }
            }
        }
        Ok(Receipt { outcomes, requests, ..Receipt::default() })
    }
}
