//! The half of a publisher's connection that writes: whole frames, from the thread that answers or from the one that
//! listens, which tells of an answer that takes long.

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::frame::{Header, Kind};

pub(crate) struct Voice<'a> {
    stream: &'a TcpStream,
    /// When the last frame was sent; held while one is.
    last: Mutex<Instant>,
    /// An answer is being made.
    busy: AtomicBool,
}

impl<'a> Voice<'a> {
    pub fn new(stream: &'a TcpStream) -> Self {
        Voice { stream, last: Mutex::new(Instant::now()), busy: AtomicBool::new(false) }
    }

    /// Sends the bytes of one frame.
    pub fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = write_all(self.stream, slices);
        *last = Instant::now();
        sent
    }

    /// Answers with `answer`; meanwhile the peer can be told that it is being worked on.
    pub fn at_work<T>(&self, answer: impl FnOnce() -> T) -> T {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.busy.store(true, Ordering::Relaxed);
        let answer = answer();
        self.busy.store(false, Ordering::Relaxed);
        answer
    }

    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Tells that an answer is being worked on, where one is and nothing was sent for so long. While a frame is being
    /// sent there is nothing to tell: the peer sees it arrive, or takes nothing.
    pub fn beat(&self, every: Duration) -> io::Result<()> {
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(last)) => last.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if self.is_busy() && last.elapsed() >= every {
            write_all(self.stream, &mut [IoSlice::new(&Header::of(Kind::Beat, 0, &[]).encode())])?;
            *last = Instant::now();
        }
        Ok(())
    }
}

/// Writes all of several slices.
fn write_all(mut stream: &TcpStream, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut slices, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
