//! Answering requests on one connection: gathers what is asked for and streams it in bounded frames.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;

use restage_nest::Nest;
use restage_transport::fill_at;
use sha2::{Digest, Sha256};

use crate::ask::Piece;
use crate::fault::{Cause, Fault};
use crate::frame::{Checksum, Header, Kind};
use crate::limits::REPLY_BYTES;
use crate::shelf::{Body, Shelf, Shelved};
use crate::voice::Voice;

/// Runs of fewer bytes are copied together; longer ones are handed to the kernel where they lie.
const COPY_BELOW: usize = 1024;
/// Pieces of memory that one write takes; the kernel's own limit is 1024.
const SEGMENTS: usize = 1000;
/// Bytes that are read ahead where a file is read in short runs.
const AHEAD: usize = 64 << 10;
/// Runs that lie farther apart are read one by one.
const NEAR: u64 = 16 << 10;

enum Segment<'a> {
    /// Of the scratch buffer.
    Copied(Range<usize>),
    Lent(&'a [u8]),
}

/// The side of a connection that writes.
pub(crate) struct Answers<'a> {
    voice: &'a Voice<'a>,
    shelf: &'a Shelf,
    scratch: Vec<u8>,
    copied: usize,
    segments: Vec<Segment<'a>>,
    /// Bytes of the segments.
    bytes: usize,
    ahead: Vec<u8>,
}

/// A stretch of a file that was read ahead.
#[derive(Default)]
struct Window {
    at: u64,
    length: usize,
}

impl<'a> Answers<'a> {
    pub fn new(voice: &'a Voice<'a>, shelf: &'a Shelf) -> Self {
        let (scratch, ahead) = (vec![0; REPLY_BYTES], Vec::new());
        Answers { voice, shelf, scratch, copied: 0, segments: Vec::new(), bytes: 0, ahead }
    }

    /// A frame of its own.
    pub fn send(&mut self, kind: Kind, id: u64, payload: &[u8]) -> io::Result<()> {
        let header = Header::of(kind, id, payload).encode();
        self.voice.send(&mut [IoSlice::new(&header), IoSlice::new(payload)])
    }

    /// A blob in as many frames as it takes: each says how many bytes follow after it.
    pub fn blob(&mut self, id: u64, blob: &[u8]) -> io::Result<()> {
        let mut left = blob;
        loop {
            let (head, rest) = left.split_at(left.len().min(REPLY_BYTES - 8));
            let mut payload = (rest.len() as u64).to_le_bytes().to_vec();
            payload.extend_from_slice(head);
            self.send(Kind::Blob, id, &payload)?;
            left = rest;
            if left.is_empty() {
                return Ok(());
            }
        }
    }

    /// The bytes of all pieces, one after the other; a fault in the place of what cannot be read.
    pub fn read(&mut self, id: u64, pieces: &[Piece]) -> io::Result<()> {
        for (at, piece) in pieces.iter().enumerate() {
            let mut done = 0;
            let fault = match self.shelf.session(piece.session) {
                Some(session) => self.piece(id, session, &piece.nest, &mut done)?,
                None => Some(Fault::outside(&piece.nest)),
            };
            if let Some(fault) = fault {
                self.flush(id)?;
                let fault = Fault { piece: at as u32, done, ..fault };
                self.send(Kind::Fault, id, &fault.encode())?;
            }
        }
        self.flush(id)
    }

    /// The digest of a stretch, or a fault.
    pub fn digest(&mut self, id: u64, session: u32, stretch: Range<u64>) -> io::Result<()> {
        match hash(self.shelf.session(session), &stretch, &mut self.scratch) {
            Ok(hash) => self.send(Kind::Hash, id, &hash),
            Err(fault) => self.send(Kind::Fault, id, &fault.encode()),
        }
    }

    fn piece(
        &mut self,
        id: u64,
        session: &'a Shelved,
        nest: &Nest,
        done: &mut u64,
    ) -> io::Result<Option<Fault>> {
        let hull = nest.src_side().and_then(|s| Ok(s.start..s.end()?));
        let whole = hull.as_ref().ok().and_then(|hull| session.extents.find(hull));
        let mut window = Window::default();
        let end = hull.map_or(0, |h| h.end);
        let near = nest.run < COPY_BELOW as u64
            && nest.loops.last().is_some_and(|l| l.src.unsigned_abs() <= NEAR && l.count > 1);
        let mut runs = nest.runs().peekable();
        while let Some(mut run) = runs.next() {
            let extent = whole.or_else(|| session.extents.find(&(run.src..run.src.saturating_add(run.len))));
            let Some(extent) = extent else { return Ok(Some(Fault::outside(nest))) };
            // Only in one extent are adjacent addresses one piece of memory.
            while let Some(next) = whole.and(runs.next_if(|next| next.src == run.src + run.len)) {
                run.len += next.len;
            }
            let fault = match &session.body {
                Body::Memory(regions) => {
                    let base = session.extents.ranges()[extent].start;
                    let from = (run.src - base) as usize;
                    let region = regions[extent].as_ref().as_ref();
                    match region.get(from..from + run.len as usize) {
                        Some(bytes) => {
                            self.lend(id, bytes)?;
                            *done += run.len;
                            None
                        }
                        None => Some(Fault::outside(nest)),
                    }
                }
                Body::File(file) if near => {
                    self.near(id, file, (run.src, run.len, end), &mut window, done)?
                }
                Body::File(file) => self.pread(id, file, run.src, run.len, done)?,
            };
            if fault.is_some() {
                return Ok(fault);
            }
        }
        Ok(None)
    }

    /// Queues bytes that lie in memory.
    fn lend(&mut self, id: u64, mut bytes: &'a [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(REPLY_BYTES - self.bytes));
            match head.len() < COPY_BELOW {
                true => self.copy(head),
                false => self.segments.push(Segment::Lent(head)),
            }
            self.bytes += head.len();
            bytes = rest;
            self.flush_if_full(id)?;
        }
        Ok(())
    }

    /// Puts bytes into the scratch buffer; there is room, as all of a frame fits.
    fn copy(&mut self, bytes: &[u8]) {
        self.scratch[self.copied..self.copied + bytes.len()].copy_from_slice(bytes);
        self.copied(bytes.len());
    }

    fn copied(&mut self, length: usize) {
        let from = self.copied;
        self.copied += length;
        match self.segments.last_mut() {
            Some(Segment::Copied(last)) => last.end = self.copied,
            _ => self.segments.push(Segment::Copied(from..self.copied)),
        }
    }

    /// Queues a run of a file.
    fn pread(
        &mut self,
        id: u64,
        file: &File,
        mut at: u64,
        mut length: u64,
        done: &mut u64,
    ) -> io::Result<Option<Fault>> {
        while length > 0 {
            let part = length.min((REPLY_BYTES - self.bytes) as u64) as usize;
            let into = &mut self.scratch[self.copied..self.copied + part];
            match fill_at(file, into, at, &mut 0) {
                Ok(found) if found == part => {}
                Ok(found) => {
                    let short = Fault::new(Cause::Short, at, length, found as u64, "");
                    return Ok(Some(short));
                }
                Err(e) => return Ok(Some(Fault::new(Cause::Io, at, length, 0, &e.to_string()))),
            }
            self.copied(part);
            self.bytes += part;
            (at, length) = (at + part as u64, length - part as u64);
            *done += part as u64;
            self.flush_if_full(id)?;
        }
        Ok(None)
    }

    /// Queues a short run of a file that has others nearby: a stretch of them is read at once.
    fn near(
        &mut self,
        id: u64,
        file: &File,
        (at, length, end): (u64, u64, u64),
        window: &mut Window,
        done: &mut u64,
    ) -> io::Result<Option<Fault>> {
        let covered = |w: &Window| at >= w.at && at + length <= w.at + w.length as u64;
        if !covered(window) {
            self.ahead.resize(AHEAD, 0);
            let wanted = (AHEAD as u64).min(end.saturating_sub(at)) as usize;
            window.length = fill_at(file, &mut self.ahead[..wanted], at, &mut 0).unwrap_or(0);
            window.at = at;
        }
        if !covered(window) {
            // Too long, or not to be had: the plain way says what is wrong.
            return self.pread(id, file, at, length, done);
        }
        let ahead = std::mem::take(&mut self.ahead);
        let from = (at - window.at) as usize;
        let mut bytes = &ahead[from..from + length as usize];
        let mut sent = Ok(());
        while !bytes.is_empty() && sent.is_ok() {
            let (head, rest) = bytes.split_at(bytes.len().min(REPLY_BYTES - self.bytes));
            self.copy(head);
            self.bytes += head.len();
            bytes = rest;
            sent = self.flush_if_full(id);
        }
        self.ahead = ahead;
        sent?;
        *done += length;
        Ok(None)
    }

    fn flush_if_full(&mut self, id: u64) -> io::Result<()> {
        match self.bytes == REPLY_BYTES || self.segments.len() == SEGMENTS {
            true => self.flush(id),
            false => Ok(()),
        }
    }

    /// Sends what is queued as one frame.
    fn flush(&mut self, id: u64) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let mut sum = Checksum::default();
        let mut slices = Vec::with_capacity(self.segments.len() + 1);
        slices.push(IoSlice::new(&[]));
        for segment in &self.segments {
            let bytes = match segment {
                Segment::Copied(range) => &self.scratch[range.clone()],
                Segment::Lent(bytes) => bytes,
            };
            // Here it enters the cache that the kernel copies it out of.
            sum.add(bytes);
            slices.push(IoSlice::new(bytes));
        }
        let header = Header { kind: Kind::Data, id, length: self.bytes, checksum: sum.get() }.encode();
        slices[0] = IoSlice::new(&header);
        let sent = self.voice.send(&mut slices);
        self.segments.clear();
        (self.copied, self.bytes) = (0, 0);
        sent
    }
}

/// SHA-256 of a stretch that lies in one extent.
fn hash(session: Option<&Shelved>, stretch: &Range<u64>, scratch: &mut [u8]) -> Result<[u8; 32], Fault> {
    let (start, length) = (stretch.start, stretch.end - stretch.start);
    let outside = || Fault::outside(&Nest::contiguous(start, 0, length));
    let session = session.ok_or_else(outside)?;
    let extent = session.extents.find(stretch).ok_or_else(outside)?;
    let mut hash = Sha256::new();
    match &session.body {
        Body::Memory(regions) => {
            let from = (start - session.extents.ranges()[extent].start) as usize;
            let region = regions[extent].as_ref().as_ref();
            hash.update(region.get(from..from + length as usize).ok_or_else(outside)?);
        }
        Body::File(file) => {
            let mut at = start;
            while at < stretch.end {
                let part = (stretch.end - at).min(scratch.len() as u64) as usize;
                match fill_at(file, &mut scratch[..part], at, &mut 0) {
                    Ok(found) if found == part => hash.update(&scratch[..part]),
                    Ok(found) => {
                        return Err(Fault::new(Cause::Short, at, stretch.end - at, found as u64, ""));
                    }
                    Err(e) => return Err(Fault::new(Cause::Io, at, stretch.end - at, 0, &e.to_string())),
                }
                at += part as u64;
            }
        }
    }
    Ok(hash.finalize().into())
}
