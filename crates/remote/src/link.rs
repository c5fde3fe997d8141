//! One connection of a client.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use restage_transport::{Cancel, Watch};

use crate::RemoteError;
use crate::ask::encode_stretch;
use crate::fault::Fault;
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind, checksum};
use crate::hello::{self, HelloError, Token};
use crate::limits::{BLOB_BYTES, REPLY_BYTES};

/// Bytes of the payload before its part of a blob.
const BLOB_HEAD: usize = 8;

/// How long a publisher is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Of one answer.
    pub deadline: Duration,
    /// Without a byte of it.
    pub silence: Duration,
}

impl Pace {
    /// The longest wait at once. One that is too long is noticed when it ends: the last one must end in time.
    fn wait(self) -> Duration {
        (self.deadline.min(self.silence) / 4).max(Duration::from_millis(1))
    }
}

/// A connection after its hello. One that has failed must not be used again.
pub(crate) struct Link {
    pub publisher: Arc<str>,
    stream: TcpStream,
    next: u64,
    pace: Pace,
    /// When the answer that is waited for is late.
    until: Instant,
    /// When it was last heard of, or asked while nothing was waited for.
    pub heard: Instant,
    /// A frame's payload.
    pub scratch: Vec<u8>,
}

impl Link {
    /// Connects and goes through the hello.
    pub fn open(publisher: &Arc<str>, token: Option<&Token>, pace: Pace) -> Result<Self, RemoteError> {
        let refused = |source| RemoteError::Connect { publisher: Arc::clone(publisher), source };
        let wait = pace.wait();
        let stream = connect(publisher, pace.deadline.min(pace.silence)).map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        stream.set_read_timeout(Some(wait)).map_err(refused)?;
        stream.set_write_timeout(Some(wait)).map_err(refused)?;
        let pace =
            Pace { deadline: pace.deadline.saturating_sub(wait), silence: pace.silence.saturating_sub(wait) };
        let now = Instant::now();
        let (publisher, until, scratch) = (Arc::clone(publisher), now + pace.deadline, vec![0; REPLY_BYTES]);
        let mut link = Link { publisher, stream, next: 0, pace, until, heard: now, scratch };
        hello::as_client(&mut Hello(&mut link), token).map_err(|source| link.hello_failed(source))?;
        Ok(link)
    }

    fn hello_failed(&self, source: HelloError) -> RemoteError {
        match source {
            HelloError::Io(e) => self.failed(&e),
            source => RemoteError::Hello { publisher: Arc::clone(&self.publisher), source },
        }
    }

    fn failed(&self, error: &io::Error) -> RemoteError {
        let (kind, reason) = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                (io::ErrorKind::TimedOut, "it said nothing within the deadline".to_owned())
            }
            io::ErrorKind::UnexpectedEof => {
                (io::ErrorKind::UnexpectedEof, "it closed the connection".to_owned())
            }
            kind => (kind, error.to_string()),
        };
        RemoteError::Io { publisher: Arc::clone(&self.publisher), kind, reason }
    }

    pub fn broken(&self, source: FrameError) -> RemoteError {
        RemoteError::Frame { publisher: Arc::clone(&self.publisher), source }
    }

    /// Closes the connection when `cancel` is used, for as long as the watch lives: what waits for it then fails.
    pub fn closed_by<'c>(&self, cancel: &'c Cancel) -> Result<Watch<'c>, RemoteError> {
        let stream = self.stream.try_clone().map_err(|e| self.failed(&e))?;
        // One that is closed already is as good.
        Ok(cancel.watch(move || drop(stream.shutdown(Shutdown::Both))))
    }

    /// The time of the next answer starts now.
    pub fn start(&mut self) {
        self.heard = Instant::now();
        self.until = self.heard + self.pace.deadline;
    }

    fn late(&self, reason: String) -> RemoteError {
        let kind = io::ErrorKind::TimedOut;
        RemoteError::Io { publisher: Arc::clone(&self.publisher), kind, reason }
    }

    /// An error once an answer is late or nothing is heard any more: slow is told from dead.
    fn in_time(&self) -> Result<(), RemoteError> {
        let now = Instant::now();
        let quiet = now.saturating_duration_since(self.heard);
        if quiet >= self.pace.silence {
            let quiet = quiet.as_secs_f64();
            return Err(self.late(format!("nothing was heard of it for {quiet:.1} s: it is dead or cut off")));
        }
        if now >= self.until {
            return Err(self.late("it is there, and did not answer within the deadline".to_owned()));
        }
        Ok(())
    }

    /// What became of a write or a read: done by so many bytes, or to be tried again.
    fn outcome(&mut self, done: io::Result<usize>, reads: bool) -> Result<usize, RemoteError> {
        let count = match done {
            Ok(0) if reads => return Err(self.failed(&io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => 0,
            Err(e) => return Err(self.failed(&e)),
        };
        if reads && count > 0 {
            self.heard = Instant::now();
        }
        self.in_time()?;
        Ok(count)
    }

    /// Sends a request and returns its number.
    pub fn ask(&mut self, kind: Kind, payload: &[u8]) -> Result<u64, RemoteError> {
        let id = self.next;
        self.next += 1;
        let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
        frame.extend_from_slice(&Header::of(kind, id, payload).encode());
        frame.extend_from_slice(payload);
        let mut left = &frame[..];
        while !left.is_empty() {
            let written = self.stream.write(left);
            left = &left[self.outcome(written, false)?..];
        }
        Ok(id)
    }

    /// The header of the next frame, which must answer request `id`.
    pub fn header(&mut self, id: u64) -> Result<Header, RemoteError> {
        loop {
            let mut bytes = [0; HEADER_BYTES];
            self.fill(&mut [IoSliceMut::new(&mut bytes)])?;
            let header = Header::decode(&bytes, false).map_err(|e| self.broken(e))?;
            match header.kind {
                // Being heard of is all that it is for.
                Kind::Beat if header.length == 0 => {}
                Kind::Beat => {
                    return Err(self.broken(FrameError::Content { id, what: "a heartbeat that says more" }));
                }
                _ if header.id != id => {
                    return Err(self.broken(FrameError::Id { expected: id, found: header.id }));
                }
                _ => return Ok(header),
            }
        }
    }

    /// Fills all of several slices.
    pub fn fill(&mut self, mut slices: &mut [IoSliceMut<'_>]) -> Result<(), RemoteError> {
        IoSliceMut::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let read = self.stream.read_vectored(slices);
            IoSliceMut::advance_slices(&mut slices, self.outcome(read, true)?);
        }
        Ok(())
    }

    /// The payload of a frame, verified, at the start of the scratch buffer.
    pub fn payload(&mut self, header: &Header) -> Result<(), RemoteError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let filled = self.fill(&mut [IoSliceMut::new(&mut scratch[..header.length])]);
        self.scratch = scratch;
        filled?;
        header.verify(checksum(&self.scratch[..header.length])).map_err(|e| self.broken(e))
    }

    /// All of a blob. What is held grows with what arrives, and never beyond 64 MiB.
    pub fn blob(&mut self, kind: Kind) -> Result<Vec<u8>, RemoteError> {
        self.start();
        let id = self.ask(kind, &[])?;
        let mut blob = Vec::new();
        let mut expected: Option<u64> = None;
        loop {
            let header = self.header(id)?;
            let content = |what| FrameError::Content { id, what };
            if header.kind != Kind::Blob || header.length < BLOB_HEAD {
                return Err(self.broken(content("not the part of a table or catalog that was asked for")));
            }
            self.payload(&header)?;
            let mut left = [0; BLOB_HEAD];
            left.copy_from_slice(&self.scratch[..BLOB_HEAD]);
            let left = u64::from_le_bytes(left);
            let part = &self.scratch[BLOB_HEAD..header.length];
            let total = (blob.len() as u64 + part.len() as u64).checked_add(left);
            if total.is_none_or(|t| t > BLOB_BYTES) || expected.is_some_and(|e| Some(e) != total) {
                return Err(self.broken(content("a table or catalog that is too long or changes its length")));
            }
            if part.is_empty() && left > 0 {
                return Err(self.broken(content("a part of no bytes")));
            }
            expected = total;
            blob.extend_from_slice(part);
            if left == 0 {
                self.heard = Instant::now();
                return Ok(blob);
            }
            self.start();
        }
    }

    /// The digest of a stretch of a session, by the publisher's number of it.
    pub fn digest(
        &mut self,
        session: u32,
        stretch: &Range<u64>,
    ) -> Result<Result<[u8; 32], Fault>, RemoteError> {
        self.start();
        let id = self.ask(Kind::Digest, &encode_stretch(session, stretch))?;
        let header = self.header(id)?;
        self.payload(&header)?;
        let payload = &self.scratch[..header.length];
        let told = match header.kind {
            Kind::Hash => payload.try_into().ok().map(Ok),
            Kind::Fault => Fault::decode(payload).map(Err),
            _ => None,
        };
        self.heard = Instant::now();
        told.ok_or_else(|| self.broken(FrameError::Content { id, what: "not the digest that was asked for" }))
    }

    /// Hears whether the publisher is still there.
    pub fn ping(&mut self) -> Result<(), RemoteError> {
        self.start();
        let id = self.ask(Kind::Ping, &[])?;
        let header = self.header(id)?;
        if header.kind != Kind::Pong || header.length != 0 {
            return Err(self.broken(FrameError::Content { id, what: "not the pong that was asked for" }));
        }
        self.heard = Instant::now();
        Ok(())
    }
}

/// Tries each address of a name.
fn connect(publisher: &str, wait: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let addresses: Vec<SocketAddr> = publisher.to_socket_addrs()?.collect();
    for address in addresses {
        match TcpStream::connect_timeout(&address, wait) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A connection during its hello, within the deadline as a whole.
struct Hello<'a>(&'a mut Link);

impl Read for Hello<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if Instant::now() >= self.0.until.min(self.0.heard + self.0.pace.silence) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.0.stream.read(into) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                done => return done,
            }
        }
    }
}

impl Write for Hello<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
