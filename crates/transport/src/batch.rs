//! What is asked of a transport, what it answers, and the trait between them.

use std::sync::Arc;

use restage_nest::Nest;

use crate::{Cancel, EntryError, TransportError};

/// One strided copy out of one session into one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Index of the session in [`Batch::sessions`].
    pub session: u32,
    /// Index of the destination among those handed to [`Transport::read`].
    pub dest: u32,
    /// The copy, in bytes: `src` is an address in the session's address space, `dst` an offset in the
    /// destination.
    pub nest: Nest,
}

/// Copies that are executed together. Their destinations must be disjoint; sources may overlap and repeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Names of the sessions, indexed by [`Entry::session`]. A name that no entry uses need not be known.
    pub sessions: Vec<Arc<str>>,
    /// The copies, in any order.
    pub entries: Vec<Entry>,
}

/// What a backend can do, for planners that choose the form of what they ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abilities {
    /// A strided entry is taken whole and gathered by the backend. Where false, each run of it costs a
    /// request of its own.
    pub gathers: bool,
}

/// What became of a batch that was not refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Per entry, in entry order: the bytes moved, or why they were not. The destination bytes of a failed
    /// entry are unspecified.
    pub outcomes: Vec<Result<u64, EntryError>>,
    /// Reads issued to the medium.
    pub requests: u64,
    /// What was read from another place than the session's first, because that had failed.
    pub moves: Vec<Move>,
}

/// Bytes of a session that were read from another place than the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Name of the session.
    pub session: Arc<str>,
    /// The place that failed.
    pub from: Arc<str>,
    /// The place that was read from instead.
    pub to: Arc<str>,
    /// What became of the first.
    pub reason: String,
    /// Bytes that were read from the other place.
    pub bytes: u64,
    /// Bytes of them that the first place had sent already, as parts of copies that it did not finish.
    pub again: u64,
}

impl Move {
    /// Adds a move to a list that has one entry for each session and pair of places.
    pub fn add_to(self, list: &mut Vec<Move>) {
        let same = |m: &&mut Move| (&m.session, &m.from, &m.to) == (&self.session, &self.from, &self.to);
        match list.iter_mut().find(same) {
            Some(m) => (m.bytes, m.again) = (m.bytes + self.bytes, m.again + self.again),
            None => list.push(self),
        }
    }
}

impl std::fmt::Display for Move {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Move { session, from, to, reason, bytes, again } = self;
        write!(
            f,
            "session {session} moved from {from} to {to}: {bytes} bytes were read there, {again} of them "
        )?;
        write!(f, "for the second time ({reason})")
    }
}

impl Receipt {
    /// Bytes moved by the entries that succeeded.
    pub fn bytes(&self) -> u64 {
        self.outcomes.iter().flatten().sum()
    }

    /// The receipt, if every entry succeeded.
    ///
    /// # Errors
    /// [`TransportError::Entry`] with the first entry that failed; it names the session, the address and
    /// the length.
    pub fn into_result(self) -> Result<Self, TransportError> {
        let failed = self.outcomes.iter().enumerate().find_map(|(i, o)| Some((i, o.as_ref().err()?)));
        match failed {
            Some((entry, error)) => Err(TransportError::Entry { entry, error: error.clone() }),
            None => Ok(self),
        }
    }
}

/// Moves bytes from registered sessions into the caller's buffers.
pub trait Transport: Send + Sync {
    /// Name of the backend, for reports; a wrapper gives the name of what it wraps.
    fn name(&self) -> &'static str;

    /// What the backend can do.
    fn abilities(&self) -> Abilities;

    /// Executes `batch`: entry `e` writes into `dests[e.dest]`. An empty batch and entries of no bytes are
    /// ordinary.
    ///
    /// # Errors
    /// An error means that no byte has moved: a session is not known, an entry reaches outside a session's
    /// extents or its destination, a position wraps around, or two writes meet. What fails later is
    /// reported per entry in the [`Receipt`].
    fn read(&self, batch: &Batch, dests: &mut [&mut [u8]]) -> Result<Receipt, TransportError> {
        self.read_with(batch, dests, &Cancel::never())
    }

    /// As [`Transport::read`], until `cancel` is used. What was not moved by then is
    /// [`EntryError::Cancelled`] in the [`Receipt`]; what was moved whole stays so. No destination is written after
    /// the return, and the transport is as usable as before.
    ///
    /// # Errors
    /// As [`Transport::read`]: a batch is refused or not whether it is cancelled or not.
    fn read_with(
        &self,
        batch: &Batch,
        dests: &mut [&mut [u8]],
        cancel: &Cancel,
    ) -> Result<Receipt, TransportError>;
}

macro_rules! forward {
    ($($outer:ty),*) => {$(
        impl<T: Transport + ?Sized> Transport for $outer {
            fn name(&self) -> &'static str {
                (**self).name()
            }

            fn abilities(&self) -> Abilities {
                (**self).abilities()
            }

            fn read(&self, batch: &Batch, dests: &mut [&mut [u8]]) -> Result<Receipt, TransportError> {
                (**self).read(batch, dests)
            }

            fn read_with(
                &self,
                batch: &Batch,
                dests: &mut [&mut [u8]],
                cancel: &Cancel,
            ) -> Result<Receipt, TransportError> {
                (**self).read_with(batch, dests, cancel)
            }
        }
    )*};
}

forward!(Box<T>, Arc<T>, &T);
