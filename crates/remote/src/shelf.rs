//! What a publisher offers: a catalog of its owner's making, and sessions that lie in memory or in files.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use restage_transport::{Extents, Kept, TransportError, open_regular};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::limits::{BLOB_BYTES, NAME_BYTES};
use crate::table;

pub(crate) enum Body {
    /// In the order of the extents.
    Memory(Vec<Kept>),
    /// Addresses are offsets in it.
    File(File),
}

pub(crate) struct Shelved {
    pub name: Arc<str>,
    pub extents: Extents,
    pub body: Body,
}

/// The sessions of a publisher, and its catalog.
pub struct Shelf {
    catalog: Vec<u8>,
    sessions: Vec<Shelved>,
    names: HashSet<Arc<str>>,
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shelf({} sessions, a catalog of {} bytes)", self.sessions.len(), self.catalog.len())
    }
}

impl Shelf {
    /// A shelf without sessions. The catalog is opaque here: clients get it as it is.
    pub fn new(catalog: impl Into<Vec<u8>>) -> Self {
        Shelf { catalog: catalog.into(), sessions: Vec::new(), names: HashSet::new() }
    }

    /// Offers memory as a session: regions by the address of their first byte. Nothing is copied.
    ///
    /// # Errors
    /// [`TransportError::SessionTaken`] when the session is offered already, [`TransportError::Region`] when two
    /// regions overlap or one wraps around, or when the name has more than 4096 bytes.
    pub fn memory(
        &mut self,
        session: impl Into<Arc<str>>,
        regions: impl IntoIterator<Item = (u64, Kept)>,
    ) -> Result<(), TransportError> {
        let session = session.into();
        let length = |bytes: &Kept| (**bytes).as_ref().len() as u64;
        let refuse = |(address, length), reason| TransportError::Region {
            session: Arc::clone(&session),
            address,
            length,
            reason,
        };
        let mut regions: Vec<_> = regions.into_iter().filter(|(_, bytes)| length(bytes) > 0).collect();
        regions.sort_by_key(|(at, _)| *at);
        let mut ranges = Vec::with_capacity(regions.len());
        for (at, bytes) in &regions {
            let end = at
                .checked_add(length(bytes))
                .ok_or_else(|| refuse((*at, length(bytes)), "reach past the last address"))?;
            ranges.push(*at..end);
        }
        let first = ranges.first().map_or((0, 0), |r| (r.start, r.end - r.start));
        let extents = Extents::new(ranges).ok_or_else(|| refuse(first, "begin regions that overlap"))?;
        let body = Body::Memory(regions.into_iter().map(|(_, bytes)| bytes).collect());
        self.add(session, extents, body)
    }

    /// Offers a file as a session, whose one extent is what the file holds now. It is opened now and read by
    /// position: one that is cut short later gives faults, and never other bytes.
    ///
    /// # Errors
    /// [`TransportError::SessionTaken`] when the session is offered already, [`TransportError::Open`] when the
    /// file cannot be opened or is not a regular one.
    pub fn file(
        &mut self,
        session: impl Into<Arc<str>>,
        path: impl AsRef<Path>,
    ) -> Result<(), TransportError> {
        let (session, path) = (session.into(), path.as_ref());
        let (file, length) = open_regular(path).map_err(|source| TransportError::Open {
            session: Arc::clone(&session),
            path: path.to_owned(),
            source,
        })?;
        self.add(session, Extents::from_zero(length), Body::File(file))
    }

    fn add(&mut self, name: Arc<str>, extents: Extents, body: Body) -> Result<(), TransportError> {
        if name.len() > NAME_BYTES {
            let (address, length) = (0, 0);
            let reason = "have a name of more than 4096 bytes";
            return Err(TransportError::Region { session: name, address, length, reason });
        }
        if !self.names.insert(Arc::clone(&name)) {
            return Err(TransportError::SessionTaken { session: name });
        }
        self.sessions.push(Shelved { name, extents, body });
        Ok(())
    }

    pub(crate) fn session(&self, at: u32) -> Option<&Shelved> {
        self.sessions.get(at as usize)
    }

    /// What clients are sent: the table, marked by random bytes of its own, and the catalog.
    pub(crate) fn blobs(&mut self) -> io::Result<[Vec<u8>; 2]> {
        let mut mark = [0; table::MARK_BYTES];
        if getrandom(&mut mark, GetRandomFlags::empty())? != mark.len() {
            return Err(io::Error::other("the system gave too few random bytes"));
        }
        let table = table::encode(&mark, self.sessions.iter().map(|s| (&*s.name, &s.extents)));
        let catalog = std::mem::take(&mut self.catalog);
        for (what, bytes) in [("table of sessions", table.len()), ("catalog", catalog.len())] {
            if bytes as u64 > BLOB_BYTES {
                let what = format!("a {what} of {bytes} bytes, at most {BLOB_BYTES} can be sent");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        }
        Ok([table, catalog])
    }
}
