//! What is asked of a transport, what it answers, and the trait between them.

use std::sync::Arc;

use restage_nest::Nest;

use crate::{EntryError, TransportError};

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
    fn read(&self, batch: &Batch, dests: &mut [&mut [u8]]) -> Result<Receipt, TransportError>;
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
        }
    )*};
}

forward!(Box<T>, Arc<T>, &T);
