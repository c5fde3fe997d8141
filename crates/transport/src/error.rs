//! What can go wrong: before a byte moves ([`TransportError`]), and with a single entry ([`EntryError`]).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::Extents;

/// A registration or a batch that was refused as a whole, or ([`TransportError::Entry`]) the first failure
/// of one that was executed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// An entry reads from a session that is not registered.
    #[error("session {session} is not registered")]
    UnknownSession {
        /// Name of the session.
        session: Arc<str>,
    },
    /// An entry's session index is past the batch's list of sessions.
    #[error("entry {entry} reads session {index}, but the batch lists {sessions}")]
    SessionIndex {
        /// Index of the entry.
        entry: usize,
        /// Session index found.
        index: u32,
        /// Number of sessions in the batch.
        sessions: usize,
    },
    /// An entry's destination index is past the list of destinations.
    #[error("entry {entry} writes destination {index}, but there are {dests}")]
    DestIndex {
        /// Index of the entry.
        entry: usize,
        /// Destination index found.
        index: u32,
        /// Number of destinations.
        dests: usize,
    },
    /// A run reaches outside every extent of its session.
    #[error("entry {entry} reads {length} bytes at {address:#x} of session {session}, which has {extents}")]
    SourceRange {
        /// Index of the entry.
        entry: usize,
        /// Name of the session.
        session: Arc<str>,
        /// Address of the first such run.
        address: u64,
        /// Length of that run, in bytes.
        length: u64,
        /// What is registered.
        extents: Extents,
    },
    /// An entry reaches past the end of its destination.
    #[error("entry {entry} writes up to byte {end} of destination {dest}, which has {size} bytes")]
    DestRange {
        /// Index of the entry.
        entry: usize,
        /// Index of the destination.
        dest: u32,
        /// One past the last byte written.
        end: u64,
        /// Size of the destination, in bytes.
        size: u64,
    },
    /// A position of an entry, or its number of bytes, does not fit in 64 bits.
    #[error(
        "entry {entry} wraps around: {length} bytes a run from {address:#x} of session {session} \
         to byte {offset} of destination {dest}"
    )]
    WrapAround {
        /// Index of the entry.
        entry: usize,
        /// Name of the session.
        session: Arc<str>,
        /// Address of the first run.
        address: u64,
        /// Length of a run, in bytes.
        length: u64,
        /// Index of the destination.
        dest: u32,
        /// Destination offset of the first run.
        offset: u64,
    },
    /// Two entries, or two runs of one, write the same byte.
    #[error("entries {first} and {second} both write near byte {at} of destination {dest}")]
    Overlap {
        /// Index of the destination.
        dest: u32,
        /// Index of one entry.
        first: usize,
        /// Index of the other, which may be the same.
        second: usize,
        /// Offset near which they meet.
        at: u64,
    },
    /// A session is registered twice.
    #[error("session {session} is already registered")]
    SessionTaken {
        /// Name of the session.
        session: Arc<str>,
    },
    /// A region overlaps one that its session already has, or reaches past the last address.
    #[error("{length} bytes at {address:#x} of session {session} {reason}")]
    Region {
        /// Name of the session.
        session: Arc<str>,
        /// First address of the refused region.
        address: u64,
        /// Length of the refused region, in bytes.
        length: u64,
        /// Why it was refused.
        reason: &'static str,
    },
    /// A session's file could not be opened.
    #[error("{} of session {session} cannot be opened", path.display())]
    Open {
        /// Name of the session.
        session: Arc<str>,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An entry of an executed batch failed.
    #[error("entry {entry} failed")]
    Entry {
        /// Index of the entry.
        entry: usize,
        /// What happened.
        #[source]
        error: EntryError,
    },
}

/// Why one entry was not moved.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The medium ended early.
    #[error("session {session}: {expected} bytes wanted at {address:#x}, {found} found")]
    ShortRead {
        /// Name of the session.
        session: Arc<str>,
        /// Address of the read.
        address: u64,
        /// Bytes wanted there.
        expected: u64,
        /// Bytes that there were.
        found: u64,
    },
    /// The medium failed.
    #[error("session {session}: {length} bytes at {address:#x}: {reason}")]
    Io {
        /// Name of the session.
        session: Arc<str>,
        /// Address of the read.
        address: u64,
        /// Bytes wanted there.
        length: u64,
        /// Kind of the failure.
        kind: io::ErrorKind,
        /// What the system said.
        reason: String,
    },
    /// The read was ended before these bytes were moved: see [`Cancel`](crate::Cancel).
    #[error("session {session}: {length} bytes at {address:#x} were not read: the read was cancelled")]
    Cancelled {
        /// Name of the session.
        session: Arc<str>,
        /// Address of the first of them.
        address: u64,
        /// How many of them there are in the piece of the entry that was not read.
        length: u64,
    },
}
