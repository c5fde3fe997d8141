//! What a pull did, or why it did not.

use std::sync::Arc;
use std::time::Duration;

use restage_plan::Refusal;
use restage_transport::{Move, TransportError};
use thiserror::Error;

/// What a pull did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Parameters that were provided in full.
    pub params: usize,
    /// Bytes moved over the transport.
    pub bytes: u64,
    /// Entries handed to the transport.
    pub entries: u64,
    /// Reads that the transport issued to its medium.
    pub requests: u64,
    /// Sessions that were read on from another place because one had failed, with what that took.
    pub moves: Vec<Move>,
    /// Most bytes that were in staging at the same time.
    pub staged_bytes: u64,
    /// Bytes copied locally out of staging.
    pub replayed_bytes: u64,
    /// Time in reads, and in what follows them before parameters are handed over.
    pub reading: Duration,
    /// Time in the sink. Where parameters are handed over one wave after the other, the next is read meanwhile.
    pub handing_over: Duration,
    /// Sources that were not read, with the reason.
    pub refused: Vec<Refusal>,
    /// Parameters that were not provided in full, and so not handed over.
    pub incomplete: Vec<String>,
}

/// Why a pull failed. Parameters that were handed over before are complete.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PullError {
    /// The plan has strided segments and the transport takes flat descriptors only.
    #[error("the plan has strided segments, and transport {transport} takes flat descriptors only")]
    Abilities {
        /// Name of the transport.
        transport: &'static str,
    },
    /// No plan can be made.
    #[error(transparent)]
    Plan(#[from] restage_plan::PlanError),
    /// Parameters that are needed in full and cannot be provided.
    #[error("not provided in full: {}", params.join(", "))]
    Incomplete {
        /// Their names.
        params: Vec<String>,
    },
    /// The number or a size of the caller's buffers is not the plan's.
    #[error("{what}: expected {expected}, found {found}")]
    Buffers {
        /// Which.
        what: String,
        /// Bytes, or a number of buffers, by the plan.
        expected: u64,
        /// Found.
        found: u64,
    },
    /// The transport refused the batch.
    #[error("transport {transport} refused to read: {error}")]
    Refused {
        /// Name of the transport.
        transport: &'static str,
        /// Why.
        error: TransportError,
    },
    /// A read failed.
    #[error("reading {source_name} for {target}: {error}")]
    Read {
        /// Source that was being read.
        source_name: Arc<str>,
        /// Parameter or staging that it was for.
        target: String,
        /// What happened.
        error: restage_transport::EntryError,
    },
    /// The transport says that it moved another number of bytes than was planned.
    #[error("{planned} bytes were planned and {moved} moved")]
    Moved {
        /// Bytes of the plan.
        planned: u64,
        /// Bytes that the transport reports.
        moved: u64,
    },
    /// A replay out of staging failed, which the plan's proof should have ruled out.
    #[error("replaying from staging: {0}")]
    Replay(TransportError),
    /// A value operation that cannot be carried out, which planning should have refused.
    #[error("{param}: {error}")]
    Conversion {
        /// The parameter.
        param: String,
        /// What is wrong.
        error: restage_geometry::ValueError,
    },
    /// The sink did not take a parameter.
    #[error("handing over {param}: {error}")]
    Sink {
        /// The parameter.
        param: String,
        /// What the sink said.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}
