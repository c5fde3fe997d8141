//! What was read and waits to be answered: between the reader and the compute thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that may wait, or be in work, before reading stops. A larger chunk gets in when it is alone.
const MAX_BYTES: usize = 4 << 20;
/// Buffers of more bytes than this are not used again.
const MAX_SPARE_BYTES: usize = 256 << 10;
/// Empty buffers that are kept.
const MAX_SPARES: usize = 16;

/// What the reader hands over, in the order it was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// Whole lines with their newlines; the last line of all may lack its own.
    Lines(Vec<u8>),
    /// A line over the limit, which was not kept.
    TooLong,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// Bytes that wait or are in work.
    bytes: usize,
    /// Nothing more comes.
    ended: bool,
    /// What waits is not wanted any more.
    stopped: bool,
    spares: Vec<Vec<u8>>,
}

/// A queue that is bounded in bytes.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    filled: Condvar,
    drained: Condvar,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked here left whole values behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty buffer, used before if there is one.
    pub fn buffer(&self) -> Vec<u8> {
        self.state().spares.pop().unwrap_or_default()
    }

    /// Hands a chunk over once there is room. False: nobody wants it any more.
    pub fn push(&self, chunk: Chunk) -> bool {
        let bytes = chunk.bytes();
        let mut state = self.state();
        while state.bytes > 0 && state.bytes + bytes > MAX_BYTES && !state.stopped {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += bytes;
        state.chunks.push_back(chunk);
        self.filled.notify_one();
        !state.stopped
    }

    /// Nothing more comes; what waits is still wanted.
    pub fn end(&self) {
        self.state().ended = true;
        self.filled.notify_one();
    }

    /// What waits is not wanted any more.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.filled.notify_one();
        self.drained.notify_one();
    }

    /// The next chunk once there is one; none after the last, and none once stopped.
    pub fn next(&self) -> Option<Chunk> {
        let mut state = self.state();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(chunk) = state.chunks.pop_front() {
                return Some(chunk);
            }
            if state.ended {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a chunk waits.
    pub fn waits(&self) -> bool {
        !self.state().chunks.is_empty()
    }

    /// A chunk is done with: its bytes no longer count, and its buffer may be used again.
    pub fn done(&self, chunk: Chunk) {
        let mut state = self.state();
        state.bytes -= chunk.bytes();
        if let Chunk::Lines(mut buffer) = chunk
            && buffer.capacity() <= MAX_SPARE_BYTES
            && state.spares.len() < MAX_SPARES
        {
            buffer.clear();
            state.spares.push(buffer);
        }
        self.drained.notify_one();
    }
}

impl Chunk {
    fn bytes(&self) -> usize {
        match self {
            Chunk::Lines(lines) => lines.len(),
            Chunk::TooLong => 1,
        }
    }
}
