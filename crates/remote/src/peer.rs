//! A publisher as a client knows it: its table of sessions and the connections to it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use restage_transport::Extents;

use crate::frame::{FrameError, Kind};
use crate::link::Link;
use crate::want::entry_error;
use crate::{ReadOptions, RemoteError, table};

/// A connection that was not used for so long is asked whether it is still there before it is relied on.
const STALE: Duration = Duration::from_secs(1);

/// A part of a session.
pub(crate) type Stretch = (Arc<str>, Range<u64>);

/// The sessions that a publisher offers.
type Offers = Vec<(Arc<str>, Extents)>;

/// A publisher.
pub(crate) struct Peer {
    pub address: Arc<str>,
    /// Its numbers of the sessions.
    pub numbers: HashMap<Arc<str>, u32>,
    /// What it says of itself.
    pub catalog: Vec<u8>,
    table: Vec<u8>,
    idle: Mutex<Vec<Link>>,
    /// Why it is not read from any more, where others took over from it.
    gone: Mutex<Option<Arc<str>>>,
}

impl Peer {
    /// Connects, and learns what is offered.
    pub fn meet(address: Arc<str>, options: &ReadOptions) -> Result<(Self, Offers), RemoteError> {
        let mut link = Link::open(&address, options.token.as_ref(), options.pace())?;
        let table = link.blob(Kind::Sessions)?;
        let catalog = link.blob(Kind::Catalog)?;
        let malformed = FrameError::Content { id: 0, what: "a malformed table of sessions" };
        let sessions = table::decode(&table).ok_or_else(|| link.broken(malformed))?;
        let numbers =
            sessions.iter().enumerate().map(|(n, (name, _))| (Arc::clone(name), n as u32)).collect();
        let (idle, gone) = (Mutex::new(vec![link]), Mutex::default());
        Ok((Peer { address, numbers, catalog, table, idle, gone }, sessions))
    }

    /// A connection that can be relied on: an idle one, or a new one to the same publisher as before.
    pub fn link(&self, options: &ReadOptions) -> Result<Link, RemoteError> {
        while let Some(mut link) = lock(&self.idle).pop() {
            if link.heard.elapsed() < STALE || link.ping().is_ok() {
                return Ok(link);
            }
        }
        let mut link = Link::open(&self.address, options.token.as_ref(), options.pace())?;
        match link.blob(Kind::Sessions)? == self.table {
            true => Ok(link),
            false => Err(RemoteError::Replaced { publisher: Arc::clone(&self.address) }),
        }
    }

    /// Takes back a connection that did not fail.
    pub fn rest(&self, link: Link) {
        lock(&self.idle).push(link);
    }

    /// The digests of stretches of sessions, in their order.
    pub fn digests(
        &self,
        stretches: &[Stretch],
        options: &ReadOptions,
    ) -> Result<Vec<[u8; 32]>, RemoteError> {
        if stretches.is_empty() {
            return Ok(Vec::new());
        }
        let mut link = self.link(options)?;
        let mut digests = Vec::with_capacity(stretches.len());
        for (session, stretch) in stretches {
            let number = self.numbers.get(session).copied().unwrap_or(u32::MAX);
            digests.push(link.digest(number, stretch)?.map_err(|fault| RemoteError::Io {
                publisher: Arc::clone(&self.address),
                kind: std::io::ErrorKind::Other,
                reason: entry_error(session, &fault).to_string(),
            })?);
        }
        self.rest(link);
        Ok(digests)
    }

    /// Why it is not read from any more.
    pub fn gone(&self) -> Option<Arc<str>> {
        lock(&self.gone).clone()
    }

    /// From now on others are read from in its place.
    pub fn leave(&self, why: &RemoteError) {
        *lock(&self.gone) = Some(why.to_string().into());
    }
}

/// What is behind these locks has no invariant that a panic could have broken.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
