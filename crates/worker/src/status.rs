//! The reply to `status`.

use serde::Serialize;

use crate::counters::{Counters, peak_rss_bytes, rss_bytes};
use crate::sequences::SequenceId;
use crate::stage::{Role, Stage};

/// How a stage stands. Its members follow the `request_id` of the reply.
#[derive(Debug, Serialize)]
pub(crate) struct Status<'a> {
    stage: u64,
    num_stages: u64,
    role: Role,
    uptime_ms: u64,
    sequences: Vec<Held<'a>>,
    memory: Memory,
    counters: Counts,
}

/// A sequence that is held: null is the default one.
#[derive(Debug, Serialize)]
pub(crate) struct Held<'a> {
    pub sequence: &'a SequenceId,
    pub length: u64,
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
struct Memory {
    /// Null where the system does not say.
    rss_bytes: Option<u64>,
    peak_rss_bytes: Option<u64>,
    weight_bytes: u64,
    /// Read to load the weights.
    read_bytes: u64,
    sequence_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Counts {
    requests: u64,
    errors: u64,
    panics: u64,
}

impl<'a> Status<'a> {
    pub fn new(
        stage: Stage,
        counters: &Counters,
        sequences: Vec<Held<'a>>,
        [weight_bytes, read_bytes]: [u64; 2],
    ) -> Self {
        let sequence_bytes = sequences.iter().fold(0, |sum: u64, held| sum.saturating_add(held.bytes));
        Status {
            stage: stage.index(),
            num_stages: stage.count(),
            role: stage.role(),
            uptime_ms: counters.uptime_ms(),
            sequences,
            memory: Memory {
                rss_bytes: rss_bytes(),
                peak_rss_bytes: peak_rss_bytes(),
                weight_bytes,
                read_bytes,
                sequence_bytes,
            },
            counters: Counts {
                requests: counters.requests(),
                errors: counters.errors(),
                panics: counters.panics(),
            },
        }
    }
}
