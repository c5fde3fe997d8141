//! How much is asked for at once.

use std::time::Duration;

/// Bytes of a gap that is fetched along rather than skipped: a further request to an object store takes about as
/// long as moving this much.
pub const GAP: u64 = 1 << 20;

/// Bytes of the longest range that is asked for at once: the size from which stores answer at full rate.
pub const LARGEST: u64 = 8 << 20;

/// Bytes of all ranges that are asked for or held at one time.
pub const IN_FLIGHT: u64 = 128 << 20;

/// Requests that are open at one time, whatever their size.
pub const REQUESTS: usize = 32;

/// Time that one range may take, retries included.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Tuning of an [`ObjectTransport`](crate::ObjectTransport).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Gaps between wanted bytes of up to this many bytes are fetched along. 1 MiB unless said otherwise.
    pub gap: u64,
    /// Longest range of one request, in bytes; at least 1. 8 MiB unless said otherwise.
    pub largest: u64,
    /// Bytes of the ranges asked for at one time. A request that is larger is made alone. This and one network
    /// frame a request is the memory that a read takes. 128 MiB unless said otherwise.
    pub in_flight: u64,
    /// Requests open at one time; at least 1. 32 unless said otherwise.
    pub requests: usize,
    /// Time that one range may take, retries included. 60 s unless said otherwise.
    pub deadline: Duration,
}

impl Limits {
    /// What each limit is unless said otherwise.
    pub const DEFAULT: Limits =
        Limits { gap: GAP, largest: LARGEST, in_flight: IN_FLIGHT, requests: REQUESTS, deadline: DEADLINE };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}
