//! One batch on its way: the queues of the sessions, and who works on them.
//!
//! Each session has a queue of its own. A publisher's connections take from the queues of its sessions in turn, a
//! request at a time, so that they are in flight together; publishers work apart, so that a slow one holds up its
//! own sessions alone. What a publisher leaves when it fails goes on to the next one that offers the session, where
//! that is allowed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use restage_transport::{Cancel, EntryError, Move, Task};

use crate::RemoteError;
use crate::client::TcpTransport;
use crate::frame::Kind;
use crate::limits::{READ_BYTES, WINDOW};
use crate::peer::{Peer, lock};
use crate::want::{Want, entry_error, take};

/// What is to be read of one session.
pub(crate) struct Queue<'d> {
    /// Its index in the batch.
    session: u32,
    /// The last is taken first.
    tasks: Vec<Task<'d>>,
    /// Requests that another publisher did not answer.
    left: Vec<Want<'d>>,
}

impl<'d> Queue<'d> {
    /// A queue of tasks; the last is taken first.
    pub fn of(session: u32, tasks: Vec<Task<'d>>) -> Self {
        Queue { session, tasks, left: Vec::new() }
    }

    /// Bytes that are wanted.
    pub fn bytes(&self) -> u64 {
        self.tasks.iter().map(Task::bytes).sum::<u64>() + self.left.iter().map(Want::left).sum::<u64>()
    }

    /// Entry, address and bytes of all that is wanted.
    fn wanted(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let left = self.left.iter().flat_map(|w| w.missing().iter().map(|p| (p.entry, p.address, p.bytes)));
        left.chain(self.tasks.iter().map(|t| (t.entry(), t.nest().src, t.bytes())))
    }
}

/// The queues of one publisher, and the one whose turn it is.
struct Turns<'d> {
    queues: Vec<Queue<'d>>,
    next: usize,
}

impl<'d> Turns<'d> {
    /// The next request; `number` gives the publisher's number of a session.
    fn take(&mut self, number: impl Fn(u32) -> u32) -> Option<Want<'d>> {
        for _ in 0..self.queues.len() {
            self.next = (self.next + 1) % self.queues.len();
            let queue = &mut self.queues[self.next];
            if let Some(want) = queue.left.pop() {
                return Some(want);
            }
            if let Some(want) = take(&mut queue.tasks, &number) {
                return Some(want);
            }
        }
        None
    }
}

/// Faults of entries, requests made, what was read elsewhere.
#[derive(Default)]
pub(crate) struct Report {
    pub faults: Vec<(usize, EntryError)>,
    pub requests: u64,
    pub moves: Vec<Move>,
}

impl Report {
    fn merge(&mut self, other: Report) {
        self.faults.extend(other.faults);
        self.requests += other.requests;
        other.moves.into_iter().for_each(|m| m.add_to(&mut self.moves));
    }
}

/// What one connection did.
struct Done<'d> {
    report: Report,
    /// Requests that were not answered whole, and why.
    left: Vec<Want<'d>>,
    broken: Option<RemoteError>,
}

/// A batch that is read.
pub(crate) struct Pull<'t> {
    pub transport: &'t TcpTransport,
    /// Names of the batch's sessions.
    pub names: &'t [Arc<str>],
    pub cancel: &'t Cancel,
}

impl Pull<'_> {
    /// Reads queues from publishers, all at once.
    pub fn run(&self, work: BTreeMap<usize, Vec<Queue<'_>>>) -> Report {
        let mut report = Report::default();
        let mut work = work.into_iter();
        let Some((own, queues)) = work.next() else { return report };
        thread::scope(|scope| {
            let others = work.map(|(peer, queues)| scope.spawn(move || self.from(peer, queues)));
            let others: Vec<_> = others.collect();
            report.merge(self.from(own, queues));
            for other in others {
                report.merge(other.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            }
        });
        report
    }

    /// Reads queues from one publisher, and from others what it leaves.
    fn from(&self, at: usize, queues: Vec<Queue<'_>>) -> Report {
        let peer = &self.transport.peers[at];
        let bytes: u64 = queues.iter().map(Queue::bytes).sum();
        let useful = (bytes / READ_BYTES).clamp(1, self.transport.options.connections.max(1) as u64);
        let turns = Mutex::new(Turns { queues, next: 0 });
        let work = || self.connection(peer, &turns);
        let done: Vec<Done<'_>> = match useful {
            1 => vec![work()],
            _ => thread::scope(|scope| {
                let others: Vec<_> = (1..useful).map(|_| scope.spawn(work)).collect();
                let own = work();
                let others =
                    others.into_iter().map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
                others.chain([own]).collect()
            }),
        };
        let mut report = Report::default();
        let mut queues = turns.into_inner().unwrap_or_else(PoisonError::into_inner).queues;
        let mut broken = None;
        for done in done {
            report.merge(done.report);
            broken = done.broken.or(broken);
            for want in done.left {
                let home = queues.iter_mut().find(|q| Some(q.session) == want.session());
                if let Some(queue) = home {
                    queue.left.push(want);
                }
            }
        }
        queues.retain(|q| q.wanted().next().is_some());
        // Tasks are left only where every connection broke, or all were told to end.
        match broken {
            _ if self.cancel.is_cancelled() => {
                for queue in &queues {
                    report.faults.extend(queue.wanted().map(|(entry, address, length)| {
                        let session = Arc::clone(&self.names[queue.session as usize]);
                        (entry, EntryError::Cancelled { session, address, length })
                    }));
                }
            }
            Some(broken) => report.merge(self.go_on(at, queues, &broken)),
            None => {}
        }
        report
    }

    /// Reads what a publisher left from those that offer it too; an error for what none may be asked for.
    fn go_on(&self, at: usize, queues: Vec<Queue<'_>>, broken: &RemoteError) -> Report {
        let peers = &self.transport.peers;
        let allowed = self.transport.options.failover;
        if allowed {
            peers[at].leave(broken);
        }
        let mut report = Report::default();
        let mut onward: BTreeMap<usize, Vec<Queue<'_>>> = BTreeMap::new();
        for mut queue in queues {
            let name = &self.names[queue.session as usize];
            let other = self.transport.others(name, at).find(|&other| peers[other].gone().is_none());
            let Some(other) = other.filter(|_| allowed) else {
                let hint = match other {
                    Some(other) => format!(
                        "; {} offers the same session, but failover to it is not allowed (--failover)",
                        peers[other].address
                    ),
                    None => self.others_gone(name, at),
                };
                let (kind, reason) = (broken.kind(), format!("{broken}{hint}"));
                report.faults.extend(queue.wanted().map(|(entry, address, length)| {
                    let (session, reason) = (Arc::clone(name), reason.clone());
                    (entry, EntryError::Io { session, address, length, kind, reason })
                }));
                continue;
            };
            let number = peers[other].numbers.get(name).copied().unwrap_or(u32::MAX);
            let mut again = 0;
            queue.left = queue
                .left
                .into_iter()
                .map(|want| {
                    let (want, in_vain) = want.rest(number);
                    again += in_vain;
                    want
                })
                .collect();
            let (from, to) = (Arc::clone(&peers[at].address), Arc::clone(&peers[other].address));
            let (session, reason, bytes) = (Arc::clone(name), broken.to_string(), queue.bytes());
            Move { session, from, to, reason, bytes, again }.add_to(&mut report.moves);
            onward.entry(other).or_default().push(queue);
        }
        report.merge(self.run(onward));
        report
    }

    /// Why others that offer a session were not asked.
    fn others_gone(&self, name: &str, at: usize) -> String {
        let others = self.transport.others(name, at);
        let gone = others.filter_map(|other| self.transport.peers[other].gone());
        gone.fold(String::new(), |all, why| format!("{all}; before that, {why}"))
    }

    /// Reads over one connection until nothing is left to ask for.
    fn connection<'d>(&self, peer: &Peer, turns: &Mutex<Turns<'d>>) -> Done<'d> {
        let mut report = Report::default();
        if self.cancel.is_cancelled() {
            return Done { report, left: Vec::new(), broken: None };
        }
        let mut link = match peer.link(&self.transport.options) {
            Ok(link) => link,
            Err(e) => return Done { report, left: Vec::new(), broken: Some(e) },
        };
        let watch = match link.closed_by(self.cancel) {
            Ok(watch) => watch,
            Err(e) => return Done { report, left: Vec::new(), broken: Some(e) },
        };
        let number = |session: u32| {
            let name = &self.names[session as usize];
            peer.numbers.get(name).copied().unwrap_or(u32::MAX)
        };
        let mut open: VecDeque<Want<'d>> = VecDeque::new();
        let done = 'pull: loop {
            while open.len() < WINDOW {
                let Some(mut want) = lock(turns).take(number) else { break };
                if open.is_empty() {
                    link.start();
                }
                let asked = link.ask(Kind::Read, &want.payload);
                report.requests += 1;
                want.id = *asked.as_ref().unwrap_or(&0);
                open.push_back(want);
                if let Err(e) = asked {
                    break 'pull Err(e);
                }
            }
            let Some(want) = open.front_mut() else { break Ok(()) };
            let faults = &mut report.faults;
            let received = want.receive(&mut link, |piece, fault| {
                faults.push((piece.entry, entry_error(&self.names[piece.session as usize], fault)));
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
            Ok(()) if self.cancel.is_cancelled() => Done { report, left: Vec::new(), broken: None },
            Ok(()) => {
                link.heard = Instant::now();
                peer.rest(link);
                Done { report, left: Vec::new(), broken: None }
            }
            Err(e) => Done { report, left: open.into(), broken: Some(e) },
        }
    }
}
