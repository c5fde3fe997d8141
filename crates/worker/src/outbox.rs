//! Replies that wait to be written: between the compute and the writer thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of replies that may wait before computing stops. A larger reply gets in when it is alone.
const MAX_BYTES: usize = 4 << 20;
/// Buffers of more bytes than this are not used again.
const MAX_SPARE_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// Nothing more comes.
    ended: bool,
    /// Nobody waits for room: the process is about to end.
    hurried: bool,
}

/// Whole replies, back to back. The writer takes whatever there is, so that replies leave one by one while it is
/// idle and together while it is busy.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    filled: Condvar,
    drained: Condvar,
}

impl Outbox {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked here left whole values behind.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands replies over once there is room, and leaves the buffer empty.
    pub fn push(&self, replies: &mut Vec<u8>) {
        let mut state = self.state();
        while !state.bytes.is_empty() && state.bytes.len() + replies.len() > MAX_BYTES && !state.hurried {
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.bytes.is_empty() {
            std::mem::swap(&mut state.bytes, replies);
        } else {
            state.bytes.append(replies);
        }
        drop(state);
        self.filled.notify_one();
        forget_large(replies);
    }

    /// Nothing more comes.
    pub fn end(&self) {
        self.state().ended = true;
        self.filled.notify_one();
    }

    /// From now on nobody waits for room.
    pub fn hurry(&self) {
        self.state().hurried = true;
        self.drained.notify_one();
    }

    /// Exchanges an empty buffer for what waits, once there is something. False: nothing more comes.
    pub fn take(&self, replies: &mut Vec<u8>) -> bool {
        replies.clear();
        forget_large(replies);
        let mut state = self.state();
        while state.bytes.is_empty() {
            if state.ended {
                return false;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut state.bytes, replies);
        drop(state);
        self.drained.notify_one();
        true
    }
}

fn forget_large(empty: &mut Vec<u8>) {
    if empty.capacity() > MAX_SPARE_BYTES {
        *empty = Vec::new();
    }
}
