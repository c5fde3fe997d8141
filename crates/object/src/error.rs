//! Why a place or an object cannot be used.

use std::error::Error;
use std::sync::Arc;

use thiserror::Error;

/// A URL, a store or an object that was refused before anything was read of it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The URL cannot be read.
    #[error("{url} is no URL of objects: {reason}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The URL is of a store that this build has no support for.
    #[error("{url} needs the cargo feature {feature:?} of restage-object, which this build lacks")]
    NotBuilt {
        /// What was given.
        url: String,
        /// The missing feature.
        feature: &'static str,
    },
    /// The store refused, or could not be reached.
    #[error("{object}: {reason}")]
    Store {
        /// The object or the store.
        object: String,
        /// What the store said, its causes included.
        reason: String,
        /// True when the store says that there is no such object.
        missing: bool,
    },
    /// An object is longer than what was agreed to hold of it.
    #[error("{object} has {found} bytes, at most {limit} are read of it")]
    TooLong {
        /// The object.
        object: String,
        /// Its length, in bytes.
        found: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A session is registered twice.
    #[error("session {session} is already registered")]
    SessionTaken {
        /// Name of the session.
        session: Arc<str>,
    },
    /// The threads that talk to the stores cannot be started.
    #[error("cannot start the threads that read objects: {0}")]
    Threads(#[source] std::io::Error),
}

/// An error and its causes, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Most errors of this kind repeat their cause.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
