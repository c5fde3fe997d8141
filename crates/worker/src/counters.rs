//! What a worker has done so far, for `status` and for heartbeats.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Counts since the start. Threads read them while the compute thread counts.
#[derive(Debug)]
pub struct Counters {
    started: Instant,
    requests: AtomicU64,
    errors: AtomicU64,
    panics: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            started: Instant::now(),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Lines that got a reply, or are getting one.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Replies that were errors.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Panics that became errors.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Milliseconds since the start.
    pub fn uptime_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Bytes of memory that this process has resident, where the system says so (Linux).
pub(crate) fn rss_bytes() -> Option<u64> {
    memory("VmRSS:")
}

/// The most that it had so far.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    memory("VmHWM:")
}

fn memory(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}
