//! What can go wrong with a connection.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::frame::FrameError;
use crate::hello::HelloError;

/// Why a publisher cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Its address leads nowhere, or nobody listens there.
    #[error("{publisher}: cannot connect")]
    Connect {
        /// Its address.
        publisher: Arc<str>,
        /// What the system said.
        source: io::Error,
    },
    /// The two sides did not come together.
    #[error("{publisher}: {source}")]
    Hello {
        /// Its address.
        publisher: Arc<str>,
        /// Why.
        source: HelloError,
    },
    /// The connection failed, or nothing came within the deadline.
    #[error("{publisher}: {reason}")]
    Io {
        /// Its address.
        publisher: Arc<str>,
        /// Kind of the failure.
        kind: io::ErrorKind,
        /// What the system said.
        reason: String,
    },
    /// It sent what it may not.
    #[error("{publisher}: {source}")]
    Frame {
        /// Its address.
        publisher: Arc<str>,
        /// What it was.
        source: FrameError,
    },
    /// What it offers is not what it offered when it was connected to first: another publisher took its place.
    #[error("{publisher}: another publisher has taken its place")]
    Replaced {
        /// Its address.
        publisher: Arc<str>,
    },
    /// Two publishers offer one session with different bytes.
    #[error(
        "session {session} has other bytes at {second} than at {first}, within {length} from {address:#x}"
    )]
    Differ {
        /// Name of the session.
        session: Arc<str>,
        /// Address of one publisher.
        first: Arc<str>,
        /// Address of the other.
        second: Arc<str>,
        /// Where they differ, at the earliest.
        address: u64,
        /// Bytes from there that were compared at once.
        length: u64,
    },
    /// Two publishers offer one session with different extents.
    #[error("session {session} has other extents at {second} than at {first}")]
    Disagree {
        /// Name of the session.
        session: Arc<str>,
        /// Address of one.
        first: Arc<str>,
        /// Address of the other.
        second: Arc<str>,
    },
}

impl RemoteError {
    /// The kind that says most of it, for errors of entries.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            RemoteError::Connect { source, .. } => source.kind(),
            RemoteError::Io { kind, .. } => *kind,
            RemoteError::Hello { .. } => io::ErrorKind::PermissionDenied,
            RemoteError::Frame { .. } => io::ErrorKind::InvalidData,
            RemoteError::Replaced { .. } | RemoteError::Disagree { .. } | RemoteError::Differ { .. } => {
                io::ErrorKind::Other
            }
        }
    }
}
