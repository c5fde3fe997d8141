//! The transport: several publishers, each with connections of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use restage_transport::{
    Abilities, Batch, Cancel, EntryError, Extents, Move, Receipt, Task, Transport, TransportError, check,
};

use crate::RemoteError;
use crate::hello::Token;
use crate::limits::DIGEST_BYTES;
use crate::link::Pace;
use crate::peer::{Peer, Stretch};
use crate::pull::{Pull, Queue};

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
    /// A publisher of which nothing is heard for so long while an answer is waited for is dead or cut off. One that is
    /// slow is heard of once a second.
    pub silence: Duration,
    /// Where a publisher fails, the rest of its sessions is read from others that offer the same. Sessions that
    /// several offer are compared by digest then, all of them, before anything is read.
    pub failover: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        // The publisher works as much as this side does; beyond a few, connections share the same wire.
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let connections = (processors / 2).clamp(1, 4);
        ReadOptions {
            token: None,
            connections,
            deadline: Duration::from_secs(30),
            silence: Duration::from_secs(10),
            failover: false,
        }
    }
}

impl ReadOptions {
    pub(crate) fn pace(&self) -> Pace {
        Pace { deadline: self.deadline, silence: self.silence }
    }
}

struct Session {
    extents: Extents,
    /// The publishers that offer it, in the order they were given in.
    offers: Vec<usize>,
}

/// Reads the sessions of publishers over TCP.
///
/// A publisher that goes away, is silent or sends what it may not fails the entries that wait for it, within
/// the deadline; the next read connects anew. Nothing is tried twice within a read, unless failover is allowed: then
/// what a publisher did not send is read from another that offers the same session, and that one is read from in its
/// place from then on.
pub struct TcpTransport {
    pub(crate) peers: Vec<Peer>,
    sessions: HashMap<Arc<str>, Session>,
    pub(crate) options: ReadOptions,
}

impl std::fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers: Vec<_> = self.peers.iter().map(|p| &p.address).collect();
        write!(f, "TcpTransport({peers:?}, {} sessions)", self.sessions.len())
    }
}

impl TcpTransport {
    /// Connects to publishers, each `HOST:PORT`, and learns what they offer. A session that several of them
    /// offer is read from the first.
    ///
    /// # Errors
    /// [`RemoteError`]: one cannot be reached or refuses, two disagree on the extents of a session, or, with
    /// failover, on its bytes.
    pub fn connect<'a>(
        publishers: impl IntoIterator<Item = &'a str>,
        options: ReadOptions,
    ) -> Result<Self, RemoteError> {
        let mut transport = TcpTransport { peers: Vec::new(), sessions: HashMap::new(), options };
        for address in publishers {
            let (peer, sessions) = Peer::meet(address.into(), &transport.options)?;
            let at = transport.peers.len();
            transport.peers.push(peer);
            for (name, extents) in sessions {
                transport.offer(name, at, extents)?;
            }
        }
        transport.compare()?;
        Ok(transport)
    }

    /// One transport over the publishers of several, with the options of the first.
    ///
    /// # Errors
    /// As [`TcpTransport::connect`], where two disagree.
    pub fn join(transports: impl IntoIterator<Item = Self>) -> Result<Self, RemoteError> {
        let mut transports = transports.into_iter();
        let Some(mut all) = transports.next() else {
            return TcpTransport::connect([], ReadOptions::default());
        };
        for other in transports {
            let before = all.peers.len();
            all.peers.extend(other.peers);
            for (name, session) in other.sessions {
                for peer in session.offers {
                    all.offer(Arc::clone(&name), before + peer, session.extents.clone())?;
                }
            }
        }
        all.compare()?;
        Ok(all)
    }

    /// Takes note of who offers a session.
    fn offer(&mut self, name: Arc<str>, peer: usize, extents: Extents) -> Result<(), RemoteError> {
        let address = |peer: usize| Arc::clone(&self.peers[peer].address);
        match self.sessions.get_mut(&name) {
            Some(known) if known.extents != extents => {
                let (first, second) = (address(known.offers[0]), address(peer));
                return Err(RemoteError::Disagree { session: name, first, second });
            }
            Some(known) => known.offers.push(peer),
            None => drop(self.sessions.insert(name, Session { extents, offers: vec![peer] })),
        }
        Ok(())
    }

    /// Sessions that several publishers offer, by name, and their bytes.
    pub fn replicated(&self) -> impl Iterator<Item = (&str, u64)> {
        let several = self.sessions.iter().filter(|(_, s)| s.offers.len() > 1);
        several.map(|(name, s)| (&**name, s.extents.ranges().iter().map(|r| r.end - r.start).sum()))
    }

    /// With failover, compares what several publishers offer under one name.
    fn compare(&self) -> Result<(), RemoteError> {
        if !self.options.failover {
            return Ok(());
        }
        let mut stretches: Vec<Vec<Stretch>> = vec![Vec::new(); self.peers.len()];
        for (name, session) in self.sessions.iter().filter(|(_, s)| s.offers.len() > 1) {
            for range in session.extents.ranges() {
                for start in range.clone().step_by(DIGEST_BYTES as usize) {
                    let stretch = start..range.end.min(start.saturating_add(DIGEST_BYTES));
                    for &peer in &session.offers {
                        stretches[peer].push((Arc::clone(name), stretch.clone()));
                    }
                }
            }
        }
        let digests = thread::scope(|scope| {
            let work = self.peers.iter().zip(&stretches);
            let asked: Vec<_> =
                work.map(|(peer, of)| scope.spawn(move || peer.digests(of, &self.options))).collect();
            let answers =
                asked.into_iter().map(|a| a.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            answers.collect::<Result<Vec<_>, RemoteError>>()
        })?;
        let mut known: HashMap<(&str, u64), ([u8; 32], &Peer)> = HashMap::new();
        for ((peer, stretches), digests) in self.peers.iter().zip(&stretches).zip(digests) {
            for ((session, stretch), digest) in stretches.iter().zip(digests) {
                let (first, by) = known.entry((session, stretch.start)).or_insert((digest, peer));
                if *first != digest {
                    return Err(RemoteError::Differ {
                        session: Arc::clone(session),
                        first: Arc::clone(&by.address),
                        second: Arc::clone(&peer.address),
                        address: stretch.start,
                        length: stretch.end - stretch.start,
                    });
                }
            }
        }
        Ok(())
    }

    /// What each publisher says of itself, in the order they were given in.
    pub fn catalogs(&self) -> impl ExactSizeIterator<Item = (&str, &[u8])> {
        self.peers.iter().map(|p| (&*p.address, &p.catalog[..]))
    }

    /// The sessions and their extents, in no particular order.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = (&str, &Extents)> {
        self.sessions.iter().map(|(name, session)| (&**name, &session.extents))
    }

    /// The publishers besides one that offer a session.
    pub(crate) fn others(&self, session: &str, but: usize) -> impl Iterator<Item = usize> {
        let offers = self.sessions.get(session).map(|s| &s.offers[..]).unwrap_or_default();
        offers.iter().copied().filter(move |&peer| peer != but)
    }

    /// The publisher that a session is read from, and the first that offers it.
    fn home(&self, session: &str) -> Option<(usize, usize)> {
        let offers = &self.sessions.get(session)?.offers;
        let there = offers.iter().find(|&&peer| self.peers[peer].gone().is_none());
        Some((*there.unwrap_or(&offers[0]), offers[0]))
    }
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
        let extents = |name: &str| self.sessions.get(name).map(|s| s.extents.clone());
        let tasks = check(batch, &extents, dests)?.into_tasks();
        let mut lists: Vec<Vec<Task<'_>>> = batch.sessions.iter().map(|_| Vec::new()).collect();
        // The last is taken first.
        for task in tasks.into_iter().rev() {
            lists[task.session() as usize].push(task);
        }
        let mut work: BTreeMap<usize, Vec<Queue<'_>>> = BTreeMap::new();
        let mut moves = Vec::new();
        for ((session, list), name) in (0..).zip(lists).zip(&batch.sessions) {
            let Some((home, first)) = self.home(name).filter(|_| !list.is_empty()) else { continue };
            let queue = Queue::of(session, list);
            if let Some(reason) = self.peers[first].gone().filter(|_| home != first) {
                let [from, to] = [first, home].map(|peer| Arc::clone(&self.peers[peer].address));
                let (session, reason, bytes) = (Arc::clone(name), reason.to_string(), queue.bytes());
                moves.push(Move { session, from, to, reason, bytes, again: 0 });
            }
            work.entry(home).or_default().push(queue);
        }
        let report = Pull { transport: self, names: &batch.sessions, cancel }.run(work);
        let mut outcomes: Vec<Result<u64, EntryError>> =
            batch.entries.iter().map(|e| Ok(e.nest.total().unwrap_or(0))).collect();
        for (entry, fault) in report.faults {
            if outcomes[entry].is_ok() {
                outcomes[entry] = Err(fault);
            }
        }
        report.moves.into_iter().for_each(|m| m.add_to(&mut moves));
        Ok(Receipt { outcomes, requests: report.requests, moves })
    }
}
