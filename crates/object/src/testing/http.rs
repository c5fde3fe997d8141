//! A server of HTTP ranges in this process.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// How a request for a range is answered. Requests for an object's length are always answered well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Answers {
    /// As asked.
    #[default]
    Well,
    /// With half of the bytes, whose number is given; `Content-Range` is as asked.
    Short,
    /// With half of the bytes, and the connection closed in their midst, each time.
    Cut,
    /// Likewise once; from then on well.
    CutOnce,
    /// With one byte more than asked; `Content-Range` is as asked.
    Long,
    /// With all of the object and status 200.
    Whole,
    /// With a range that starts one byte later, and says so.
    Elsewhere,
    /// With no `Content-Range`.
    Unsaid,
    /// With a length of the object other than it was.
    Resized,
    /// With another version of the object, without a look at `If-Match`.
    Replaced,
    /// With `Content-Encoding: gzip`.
    Encoded,
    /// With status 503 once; from then on well.
    BusyOnce,
    /// Never.
    Silent,
}

#[derive(Debug, Default)]
struct State {
    objects: Mutex<HashMap<String, Arc<[u8]>>>,
    answers: Mutex<Answers>,
    requests: AtomicU64,
    largest: AtomicU64,
    stop: AtomicBool,
}

/// Serves objects from memory, each connection on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    state: Arc<State>,
}

impl HttpServer {
    /// A server without objects, on a free port of the loopback address.
    ///
    /// # Panics
    /// When there is no such port.
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port of the loopback address");
        let address = listener.local_addr().expect("the address of a listener");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for connection in listener.incoming() {
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(connection) = connection else { continue };
                let shared = Arc::clone(&shared);
                // A client that goes away is no concern of the server's.
                thread::spawn(move || serve(connection, &shared).ok());
            }
        });
        HttpServer { address, state }
    }

    /// The URL of a path; it starts with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Serves `bytes` at a path, which starts with a slash.
    pub fn put(&self, path: &str, bytes: impl Into<Arc<[u8]>>) {
        let mut objects = self.state.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.insert(path.to_owned(), bytes.into());
    }

    /// Says how ranges are answered from now on.
    pub fn answer(&self, answers: Answers) {
        *self.state.answers.lock().unwrap_or_else(PoisonError::into_inner) = answers;
    }

    /// Requests for ranges so far.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// The longest range that was asked for so far, in bytes.
    pub fn largest(&self) -> u64 {
        self.state.largest.load(Ordering::Relaxed)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        // Wakes the listener.
        TcpStream::connect(self.address).ok();
    }
}

/// A request, as far as it matters here.
#[derive(Debug, Default)]
struct Request {
    head: bool,
    path: String,
    range: Option<Range<u64>>,
    if_match: Option<String>,
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let mut request = Request { head: words.next() == Some("HEAD"), ..Request::default() };
    request.path = words.next().unwrap_or_default().to_owned();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Some(request));
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (start, end) =
                    value.trim().strip_prefix("bytes=").and_then(|r| r.split_once('-')).unwrap_or_default();
                if let (Ok(start), Ok(last)) = (start.parse(), end.parse::<u64>()) {
                    request.range = Some(start..last.saturating_add(1));
                }
            }
            "if-match" => request.if_match = Some(value.trim().to_owned()),
            _ => {}
        }
    }
}

fn serve(connection: TcpStream, state: &State) -> io::Result<()> {
    // A head and its body are two writes: the second would wait for the first to be acknowledged.
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut out = connection;
    while let Some(request) = read_request(&mut reader)? {
        let objects = state.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let object = objects.get(&request.path).cloned();
        drop(objects);
        let Some(object) = object else {
            out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        if !answer(&mut out, &request, &object, state)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Answers one request; false where the connection ends with it.
fn answer(out: &mut TcpStream, request: &Request, object: &[u8], state: &State) -> io::Result<bool> {
    let size = object.len() as u64;
    let etag = format!("\"{size}-1\"");
    let Some(range) = request.range.clone().filter(|_| !request.head) else {
        write!(out, "HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Length: {size}\r\n\r\n")?;
        if !request.head {
            out.write_all(object)?;
        }
        return Ok(true);
    };
    state.requests.fetch_add(1, Ordering::Relaxed);
    state.largest.fetch_max(range.end.saturating_sub(range.start), Ordering::Relaxed);
    let answers = {
        let mut answers = state.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let now = *answers;
        if matches!(now, Answers::CutOnce | Answers::BusyOnce) {
            *answers = Answers::Well;
        }
        now
    };
    if request.if_match.as_ref().is_some_and(|wanted| *wanted != etag) {
        out.write_all(b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(true);
    }
    if range.start >= size || range.end <= range.start {
        out.write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(true);
    }
    let range = range.start..range.end.min(size);
    let slice = |range: Range<u64>| &object[range.start as usize..range.end as usize];
    let half = range.start..range.start + (range.end - range.start) / 2;
    let partial = |out: &mut TcpStream, said: &Range<u64>, size: u64, length: u64, more: &str| {
        let (first, last) = (said.start, said.end - 1);
        write!(
            out,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/{size}\r\n\
             Content-Length: {length}\r\n{more}\r\n"
        )
    };
    let tag = format!("ETag: {etag}\r\n");
    let length = range.end - range.start;
    match answers {
        Answers::Well => {
            partial(out, &range, size, length, &tag)?;
            out.write_all(slice(range))?;
        }
        Answers::Short => {
            partial(out, &range, size, half.end - half.start, &tag)?;
            out.write_all(slice(half))?;
        }
        Answers::Cut | Answers::CutOnce => {
            partial(out, &range, size, length, &tag)?;
            out.write_all(slice(half))?;
            return Ok(false);
        }
        Answers::Long => {
            partial(out, &range, size, length + 1, &tag)?;
            out.write_all(slice(range))?;
            out.write_all(b"x")?;
        }
        Answers::Whole => {
            write!(out, "HTTP/1.1 200 OK\r\n{tag}Content-Length: {size}\r\n\r\n")?;
            out.write_all(object)?;
        }
        Answers::Elsewhere => {
            let moved = range.start + 1..range.end + 1;
            partial(out, &moved, size + 1, length, &tag)?;
            out.write_all(slice(range))?;
        }
        Answers::Unsaid => {
            write!(out, "HTTP/1.1 206 Partial Content\r\n{tag}Content-Length: {length}\r\n\r\n")?;
            out.write_all(slice(range))?;
        }
        Answers::Resized => {
            partial(out, &range, size + 1, length, &tag)?;
            out.write_all(slice(range))?;
        }
        Answers::Replaced => {
            partial(out, &range, size, length, "ETag: \"another\"\r\n")?;
            out.write_all(slice(range))?;
        }
        Answers::Encoded => {
            partial(out, &range, size, length, &format!("{tag}Content-Encoding: gzip\r\n"))?;
            out.write_all(slice(range))?;
        }
        Answers::BusyOnce => {
            out.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")?;
        }
        Answers::Silent => {
            // Until the client closes its side.
            let mut rest = [0; 64];
            while io::Read::read(out, &mut rest)? > 0 {}
            return Ok(false);
        }
    }
    Ok(true)
}
