//! The publisher: listens, and serves a shelf to whoever proves to have the token.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

use crate::answer::Answers;
use crate::ask::{self, Piece};
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind, checksum};
use crate::hello::{self, Token};
use crate::limits::WINDOW;
use crate::shelf::Shelf;
use crate::voice::Voice;

/// How a publisher serves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PublishOptions {
    /// What clients must prove to have.
    pub token: Option<Token>,
    /// Connections at once; more are turned away.
    pub connections: usize,
    /// A peer that takes nothing for so long, or says nothing, is dropped.
    pub patience: Duration,
    /// While an answer takes longer, the peer is told so often that it is being worked on.
    pub beat: Duration,
    /// A peer must be through with the hello by then.
    pub hello: Duration,
    /// How long a stop waits for what was asked before.
    pub grace: Duration,
}

impl Default for PublishOptions {
    fn default() -> Self {
        PublishOptions {
            token: None,
            connections: 64,
            patience: Duration::from_secs(60),
            beat: Duration::from_secs(1),
            hello: Duration::from_secs(5),
            grace: Duration::from_secs(5),
        }
    }
}

/// Why a publisher did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Without a token, only this host may reach it.
    #[error("{address} can be reached from other hosts, and there is no token: a token is needed for that")]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// The address is none, or cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen {
        /// What was asked for.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The shelf cannot be sent, or the system has no thread for it.
    #[error("cannot publish")]
    Start(#[source] io::Error),
}

/// Connections that are open, by number.
#[derive(Default)]
struct Open {
    next: u64,
    streams: HashMap<u64, TcpStream>,
}

struct Shared {
    shelf: Shelf,
    table: Vec<u8>,
    catalog: Vec<u8>,
    options: PublishOptions,
    stopping: AtomicBool,
    open: Mutex<Open>,
    closed: Condvar,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running publisher. Dropping it stops it.
pub struct Publisher {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Publisher({})", self.address)
    }
}

impl Publisher {
    /// Listens at `address`, `HOST:PORT`; port 0 chooses a free one.
    ///
    /// # Errors
    /// [`PublishError`]: the address cannot be listened at, or is not a loopback address and there is no token.
    pub fn start(address: &str, mut shelf: Shelf, options: PublishOptions) -> Result<Self, PublishError> {
        let listen = |source| PublishError::Listen { address: address.to_owned(), source };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(listen)?.collect();
        if options.token.is_none()
            && let Some(&address) = addresses.iter().find(|a| !a.ip().is_loopback())
        {
            return Err(PublishError::Open { address });
        }
        let listener = TcpListener::bind(&addresses[..]).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let bound = listener.local_addr().map_err(listen)?;
        let [table, catalog] = shelf.blobs().map_err(PublishError::Start)?;
        let shared = Arc::new(Shared {
            shelf,
            table,
            catalog,
            options,
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
            closed: Condvar::new(),
        });
        let accepting = thread::Builder::new().name("publish".into()).spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        let accepting = Some(accepting.map_err(PublishError::Start)?);
        Ok(Publisher { address: bound, shared, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections and requests, answers those that were made, and ends: after the grace of the
    /// options at the latest.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.shared.stopping.store(true, Ordering::Relaxed);
        let _ = accepting.join();
        let until = Instant::now() + self.shared.options.grace;
        let mut open = self.shared.open();
        // What has arrived is still read and answered; then the connection ends.
        open.streams.values().for_each(|s| drop(s.shutdown(Shutdown::Read)));
        while !open.streams.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                open.streams.values().for_each(|s| drop(s.shutdown(Shutdown::Both)));
                break;
            }
            let waited = self.shared.closed.wait_timeout(open, left);
            open = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.end();
    }
}

/// How long the listener takes to see that it is to stop.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stopping.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        if !matches!(poll(&mut ready, Some(&GLANCE)), Ok(1..)) {
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => admit(stream, shared),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, most likely: others must end first.
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn admit(stream: TcpStream, shared: &Arc<Shared>) {
    let Ok(kept) = stream.try_clone() else { return };
    let (number, count) = {
        let mut open = shared.open();
        open.next += 1;
        let number = open.next;
        open.streams.insert(number, kept);
        (number, open.streams.len())
    };
    let limit = shared.options.connections;
    let serving = Arc::clone(shared);
    let leave = move |shared: &Shared| {
        shared.open().streams.remove(&number);
        shared.closed.notify_all();
    };
    // Some are still let in to be told that they are too many; beyond that they are dropped.
    let spawned = (count <= limit + 8).then(|| {
        thread::Builder::new().name("publish-peer".into()).spawn(move || {
            // A peer that breaks the protocol or goes away concerns nobody else.
            let _ = serve(&stream, &serving, count > limit);
            let _ = stream.shutdown(Shutdown::Both);
            leave(&serving);
        })
    });
    if !matches!(spawned, Some(Ok(_))) {
        leave(shared);
    }
}

/// What a peer asked for.
enum Request {
    Table(u64),
    Catalog(u64),
    Ping(u64),
    Read(u64, Vec<Piece>),
    Digest(u64, u32, Range<u64>),
}

/// What ends a connection early.
#[derive(Debug, Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Hello(#[from] hello::HelloError),
}

fn serve(stream: &TcpStream, shared: &Shared, full: bool) -> Result<(), Broken> {
    let options = &shared.options;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(options.hello))?;
    hello::as_publisher(&mut Hurried::new(stream, options.hello), options.token.as_ref(), full)?;
    stream.set_read_timeout(Some(options.patience.min(options.beat)))?;
    stream.set_write_timeout(Some(options.patience))?;
    let voice = &Voice::new(stream);
    let (ask, asked) = mpsc::sync_channel(WINDOW);
    thread::scope(|scope| {
        let answering =
            thread::Builder::new().name("publish-answers".into()).spawn_scoped(scope, move || {
                let mut answers = Answers::new(voice, &shared.shelf);
                let mut answer = |request| match request {
                    Request::Table(id) => answers.blob(id, &shared.table),
                    Request::Catalog(id) => answers.blob(id, &shared.catalog),
                    Request::Ping(id) => answers.send(Kind::Pong, id, &[]),
                    Request::Read(id, pieces) => answers.read(id, &pieces),
                    Request::Digest(id, session, stretch) => answers.digest(id, session, stretch),
                };
                let done = asked.into_iter().try_for_each(|request| voice.at_work(|| answer(request)));
                // Whether all is said or the peer takes no more: the reader must not wait for it any longer.
                let _ = stream.shutdown(if done.is_ok() { Shutdown::Write } else { Shutdown::Both });
            })?;
        let read = requests(stream, voice, options, ask);
        let _ = answering.join();
        read
    })
}

/// Reads requests and queues them, until the peer is done.
fn requests(
    stream: &TcpStream,
    voice: &Voice<'_>,
    options: &PublishOptions,
    ask: SyncSender<Request>,
) -> Result<(), Broken> {
    let mut payload = Vec::new();
    loop {
        let mut header = [0; HEADER_BYTES];
        listen(stream, voice, options, &mut header)?;
        let header = Header::decode(&header, true)?;
        payload.resize(header.length, 0);
        listen(stream, voice, options, &mut payload)?;
        header.verify(checksum(&payload))?;
        let id = header.id;
        let request = match header.kind {
            Kind::Sessions => Request::Table(id),
            Kind::Catalog => Request::Catalog(id),
            Kind::Read => Request::Read(id, ask::decode(id, &payload)?),
            Kind::Digest => {
                let (session, stretch) = ask::decode_stretch(id, &payload)?;
                Request::Digest(id, session, stretch)
            }
            _ => Request::Ping(id),
        };
        if ask.send(request).is_err() {
            return Ok(());
        }
    }
}

/// Fills a buffer from a peer, and lets it know meanwhile that an answer is being worked on.
fn listen(
    mut stream: &TcpStream,
    voice: &Voice<'_>,
    options: &PublishOptions,
    mut into: &mut [u8],
) -> io::Result<()> {
    let mut heard = Instant::now();
    while !into.is_empty() {
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                into = &mut into[n..];
                heard = Instant::now();
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if voice.is_busy() {
                    heard = Instant::now();
                }
                if heard.elapsed() >= options.patience {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                voice.beat(options.beat)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A stream whose reads end at one time together, however slowly they trickle.
struct Hurried<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Hurried<'a> {
    fn new(stream: &'a TcpStream, time: Duration) -> Self {
        Hurried { stream, until: Instant::now() + time }
    }
}

impl Read for Hurried<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

impl io::Write for Hurried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
