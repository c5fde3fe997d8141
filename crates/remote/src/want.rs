//! One read request of a client: built from tasks, and filled as the answer arrives.

use std::io::IoSliceMut;

use restage_transport::{EntryError, Task};

use crate::RemoteError;
use crate::ask::{encode, encoded_bytes};
use crate::fault::{Cause, Fault};
use crate::frame::{Checksum, FrameError, Header, Kind};
use crate::limits::{LOOPS, READ_BYTES, READ_RUNS, REQUEST_BYTES};
use crate::link::Link;

/// Runs that are shorter on the average are received together and copied to where they belong.
const COPY_BELOW: usize = 512;
/// Pieces of memory that one read takes; the kernel's own limit is 1024.
const SEGMENTS: usize = 1000;

/// A piece of a request that is waited for.
pub(crate) struct Waiting {
    pub entry: usize,
    pub session: u32,
    pub address: u64,
    pub bytes: u64,
    /// One past its last slice.
    end: usize,
    /// Where it begins in the request.
    asked: usize,
}

/// A request and where its answer goes.
pub(crate) struct Want<'d> {
    pub id: u64,
    pub payload: Vec<u8>,
    pub pieces: Vec<Waiting>,
    slices: Vec<&'d mut [u8]>,
    bytes: u64,
    /// The piece that comes next, the slice of it, the byte of that.
    at: (usize, usize, usize),
    /// Bytes of the next piece that have arrived.
    done: u64,
}

/// Takes tasks off the end of a list until one request has enough; `None` when the list is empty. `session`
/// gives the number that the publisher knows a session by.
pub(crate) fn take<'d>(queue: &mut Vec<Task<'d>>, session: impl Fn(u32) -> u32) -> Option<Want<'d>> {
    let mut want = Want {
        id: 0,
        payload: Vec::new(),
        pieces: Vec::new(),
        slices: Vec::new(),
        bytes: 0,
        at: (0, 0, 0),
        done: 0,
    };
    let mut runs = 0;
    while let Some(task) = queue.pop() {
        let nest = task.nest();
        let times: u64 = nest.loops.iter().map(|l| l.count).product();
        if task.bytes() > READ_BYTES || times > READ_RUNS || nest.loops.len() > LOOPS {
            let (first, second) = match task.nest().loops.iter().position(|l| l.count > 1) {
                Some(at) => task.split_loop(at),
                None => task.split_run(),
            };
            queue.extend(second);
            queue.push(first);
            continue;
        }
        let (bytes, size) = (task.bytes(), encoded_bytes(nest));
        let full = want.bytes + bytes > READ_BYTES
            || runs + times > READ_RUNS
            || want.payload.len() + size > REQUEST_BYTES;
        if full {
            queue.push(task);
            break;
        }
        encode(&mut want.payload, session(task.session()), nest);
        let (entry, address, of, asked) = (task.entry(), nest.src, task.session(), want.payload.len() - size);
        task.each_slice(|slice| want.slices.push(slice));
        let end = want.slices.len();
        want.pieces.push(Waiting { entry, session: of, address, bytes, end, asked });
        (want.bytes, runs) = (want.bytes + bytes, runs + times);
    }
    (!want.pieces.is_empty()).then_some(want)
}

impl<'d> Want<'d> {
    /// What has not arrived whole, as a request to another publisher that knows the session by this number; with the
    /// bytes that arrived in vain. All of it must be of one session.
    pub fn rest(mut self, session: u32) -> (Self, u64) {
        let (first, in_vain) = (self.at.0.min(self.pieces.len()), self.done);
        let slice = self.start_of(first);
        let asked = self.pieces.get(first).map_or(self.payload.len(), |p| p.asked);
        self.pieces.drain(..first);
        self.slices.drain(..slice);
        self.payload.drain(..asked);
        for piece in &mut self.pieces {
            (piece.end, piece.asked) = (piece.end - slice, piece.asked - asked);
            self.payload[piece.asked..piece.asked + 4].copy_from_slice(&session.to_le_bytes());
        }
        (self.at, self.done) = ((0, 0, 0), 0);
        (self, in_vain)
    }

    /// Takes the whole answer. Pieces that the publisher could not serve are told to `fault`.
    pub fn receive(
        &mut self,
        link: &mut Link,
        mut fault: impl FnMut(&Waiting, &Fault),
    ) -> Result<(), RemoteError> {
        while self.at.0 < self.pieces.len() {
            let header = link.header(self.id)?;
            let id = self.id;
            let content = |what| FrameError::Content { id, what };
            match header.kind {
                Kind::Data if header.length == 0 || header.length as u64 > self.left() => {
                    return Err(link.broken(content("other bytes than are wanted")));
                }
                Kind::Data if self.short() => self.copied(link, &header)?,
                Kind::Data => self.direct(link, &header)?,
                Kind::Fault => {
                    link.payload(&header)?;
                    let told = Fault::decode(&link.scratch[..header.length]);
                    let told = told.filter(|f| f.piece as usize == self.at.0 && f.done == self.done);
                    let Some(told) = told else {
                        return Err(link.broken(content("a fault that does not fit what was sent")));
                    };
                    let piece = &self.pieces[self.at.0];
                    fault(piece, &told);
                    self.bytes -= piece.bytes;
                    self.at = (self.at.0 + 1, piece.end, 0);
                    self.done = 0;
                }
                _ => return Err(link.broken(content("not an answer to a read"))),
            }
        }
        Ok(())
    }

    /// The session that all of it is of.
    pub fn session(&self) -> Option<u32> {
        Some(self.pieces.first()?.session)
    }

    /// Bytes that have not arrived.
    pub fn left(&self) -> u64 {
        self.bytes - self.done
    }

    fn short(&self) -> bool {
        let piece = &self.pieces[self.at.0];
        (piece.bytes as usize) < COPY_BELOW * (piece.end - self.start_of(self.at.0))
    }

    fn start_of(&self, piece: usize) -> usize {
        piece.checked_sub(1).map_or(0, |before| self.pieces[before].end)
    }

    /// Receives a frame into the scratch buffer and copies it out once it is verified.
    fn copied(&mut self, link: &mut Link, header: &Header) -> Result<(), RemoteError> {
        link.payload(header)?;
        let mut from = &link.scratch[..header.length];
        let (_, mut slice, mut byte) = self.at;
        while !from.is_empty() {
            let into = &mut self.slices[slice][byte..];
            let (head, rest) = from.split_at(into.len().min(from.len()));
            into[..head.len()].copy_from_slice(head);
            (slice, byte) =
                if head.len() == into.len() { (slice + 1, 0) } else { (slice, byte + head.len()) };
            from = rest;
        }
        self.advance(header.length as u64, slice, byte);
        Ok(())
    }

    /// Receives a frame where it belongs.
    fn direct(&mut self, link: &mut Link, header: &Header) -> Result<(), RemoteError> {
        let mut sum = Checksum::default();
        let mut left = header.length;
        let (_, mut slice, mut byte) = self.at;
        while left > 0 {
            let (from, skip) = (slice, byte);
            let mut parts: Vec<IoSliceMut<'_>> = Vec::new();
            for into in &mut self.slices[from..] {
                if left == 0 || parts.len() == SEGMENTS {
                    break;
                }
                let start = if slice == from { skip } else { 0 };
                let room = into.len() - start;
                let part = room.min(left);
                parts.push(IoSliceMut::new(&mut into[start..start + part]));
                left -= part;
                (slice, byte) = if part == room { (slice + 1, 0) } else { (slice, start + part) };
            }
            link.fill(&mut parts)?;
            // While it is in the cache. Where the checksum differs, the bytes of these entries mean nothing.
            let end = if byte > 0 { slice + 1 } else { slice };
            for (at, into) in self.slices[from..end].iter().enumerate() {
                let start = if at == 0 { skip } else { 0 };
                let stop = if from + at == slice { byte } else { into.len() };
                sum.add(&into[start..stop]);
            }
        }
        header.verify(sum.get()).map_err(|e| link.broken(e))?;
        self.advance(header.length as u64, slice, byte);
        Ok(())
    }

    /// Goes on by verified bytes.
    fn advance(&mut self, bytes: u64, slice: usize, byte: usize) {
        self.done += bytes;
        let mut piece = self.at.0;
        while let Some(p) = self.pieces.get(piece).filter(|p| p.bytes <= self.done) {
            self.done -= p.bytes;
            self.bytes -= p.bytes;
            piece += 1;
        }
        self.at = (piece, slice, byte);
    }

    /// The pieces that have not arrived whole.
    pub fn missing(&self) -> &[Waiting] {
        &self.pieces[self.at.0.min(self.pieces.len())..]
    }
}

/// What an entry is told of a fault.
pub(crate) fn entry_error(session: &std::sync::Arc<str>, fault: &Fault) -> EntryError {
    let (session, address, length) = (session.clone(), fault.address, fault.wanted);
    match fault.cause {
        Cause::Short => EntryError::ShortRead { session, address, expected: length, found: fault.found },
        Cause::Io => {
            let reason = fault.text.clone();
            EntryError::Io { session, address, length, kind: std::io::ErrorKind::Other, reason }
        }
        Cause::Outside => {
            let reason = "the publisher does not have it".to_owned();
            EntryError::Io { session, address, length, kind: std::io::ErrorKind::NotFound, reason }
        }
    }
}
