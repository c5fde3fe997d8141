//! Counting what is read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Abilities, Batch, Cancel, Receipt, Transport, TransportError};

/// What was read from one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Entries executed, failed ones and those of no bytes included.
    pub entries: u64,
    /// Runs of those entries: what a transport that takes flat descriptors would have been asked for.
    pub descriptors: u64,
    /// Bytes moved by the entries that succeeded.
    pub bytes: u64,
}

/// What went through a [`Metered`] transport so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Per session that any bytes were asked of.
    pub sessions: BTreeMap<Arc<str>, Traffic>,
    /// Batches executed. Refused ones count nowhere, as they move nothing.
    pub batches: u64,
    /// Reads issued to the medium, as the backend counts them.
    pub requests: u64,
}

impl Snapshot {
    /// The sum over all sessions.
    pub fn total(&self) -> Traffic {
        self.sessions.values().fold(Traffic::default(), |sum, t| Traffic {
            entries: sum.entries + t.entries,
            descriptors: sum.descriptors + t.descriptors,
            bytes: sum.bytes + t.bytes,
        })
    }

    /// Whether any byte was asked of `session`.
    pub fn was_read(&self, session: &str) -> bool {
        self.sessions.contains_key(session)
    }
}

/// One contiguous read, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Read {
    /// Name of the session.
    pub session: Arc<str>,
    /// Address in the session.
    pub src: u64,
    /// Length, in bytes.
    pub len: u64,
}

#[derive(Debug, Default)]
struct State {
    seen: Snapshot,
    reads: Vec<Read>,
}

/// A transport that counts what goes through the one it wraps.
#[derive(Debug)]
pub struct Metered<T> {
    inner: T,
    records: bool,
    state: Mutex<State>,
}

impl<T> Metered<T> {
    /// Counts what goes through `inner`.
    pub fn new(inner: T) -> Self {
        Metered { inner, records: false, state: Mutex::default() }
    }

    /// Counts what goes through `inner`, and keeps a list of every run. The list grows with each batch: it
    /// is meant for tests.
    pub fn recording(inner: T) -> Self {
        Metered { records: true, ..Self::new(inner) }
    }

    /// What went through so far.
    pub fn snapshot(&self) -> Snapshot {
        self.state().seen.clone()
    }

    /// Every run that was asked for, in the order of the entries; empty unless [`Metered::recording`].
    pub fn reads(&self) -> Vec<Read> {
        self.state().reads.clone()
    }

    /// Starts counting anew, and forgets the list.
    pub fn reset(&self) {
        *self.state() = State::default();
    }

    /// The transport that is wrapped.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport that was wrapped.
    pub fn into_inner(self) -> T {
        self.inner
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counts have no invariant that a panic elsewhere could have broken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Transport> Transport for Metered<T> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn read_with(
        &self,
        batch: &Batch,
        dests: &mut [&mut [u8]],
        cancel: &Cancel,
    ) -> Result<Receipt, TransportError> {
        let receipt = self.inner.read_with(batch, dests, cancel)?;
        let mut traffic: Vec<Traffic> = vec![Traffic::default(); batch.sessions.len()];
        let mut reads = Vec::new();
        for (entry, outcome) in batch.entries.iter().zip(&receipt.outcomes) {
            let (Some(seen), Some(name)) =
                (traffic.get_mut(entry.session as usize), batch.sessions.get(entry.session as usize))
            else {
                continue;
            };
            seen.entries += 1;
            // A count that does not fit would have been refused.
            seen.descriptors += entry.nest.run_count().unwrap_or(0);
            seen.bytes += outcome.as_ref().copied().unwrap_or(0);
            if self.records {
                let run = |r: restage_nest::Run| Read { session: Arc::clone(name), src: r.src, len: r.len };
                reads.extend(entry.nest.runs().map(run));
            }
        }
        let mut state = self.state();
        for (name, seen) in batch.sessions.iter().zip(traffic).filter(|(_, t)| t.descriptors > 0) {
            let sum = state.seen.sessions.entry(Arc::clone(name)).or_default();
            sum.entries += seen.entries;
            sum.descriptors += seen.descriptors;
            sum.bytes += seen.bytes;
        }
        state.seen.batches += 1;
        state.seen.requests += receipt.requests;
        state.reads.extend(reads);
        Ok(receipt)
    }
}
