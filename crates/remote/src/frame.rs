//! Frames: what every message after the hello is made of. The layout is that of docs/remote-protocol.md.

use crc_fast::CrcAlgorithm;
use thiserror::Error;

use crate::limits::{REPLY_BYTES, REQUEST_BYTES};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 24;

/// What a frame is. Odd ones are the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asks for the table of sessions.
    Sessions = 1,
    /// Asks for the catalog.
    Catalog = 3,
    /// Asks for bytes.
    Read = 5,
    /// Asks for a pong.
    Ping = 7,
    /// Asks for the digest of a stretch.
    Digest = 9,
    /// A part of a table or a catalog.
    Blob = 2,
    /// Bytes of a read.
    Data = 4,
    /// A piece of a read that cannot be served.
    Fault = 6,
    /// The answer to a ping.
    Pong = 8,
    /// The digest of a stretch.
    Hash = 10,
    /// No answer yet: the publisher is at work on one.
    Beat = 12,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Sessions,
        Kind::Catalog,
        Kind::Read,
        Kind::Ping,
        Kind::Blob,
        Kind::Data,
        Kind::Fault,
        Kind::Pong,
        Kind::Digest,
        Kind::Hash,
        Kind::Beat,
    ];

    /// True for frames that a client sends.
    pub fn is_request(self) -> bool {
        self as u8 % 2 == 1
    }
}

/// A checked header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// The request that it makes or answers.
    pub id: u64,
    /// Bytes of the payload.
    pub length: usize,
    /// CRC-32C of the payload.
    pub checksum: u32,
}

/// A frame that is not one of this protocol, or not an allowed one. The connection is of no more use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The header's own checksum differs.
    #[error("a frame's header has checksum {found:#010x}, its bytes give {expected:#010x}")]
    Header {
        /// What its bytes give.
        expected: u32,
        /// What it says.
        found: u32,
    },
    /// The payload's checksum differs.
    #[error("the payload of request {id} gives checksum {found:#010x}, its header says {expected:#010x}")]
    Payload {
        /// The request.
        id: u64,
        /// What the header says.
        expected: u32,
        /// What the bytes give.
        found: u32,
    },
    /// A kind that does not exist, or that this side does not take.
    #[error("a frame of kind {kind} is not taken here")]
    Kind {
        /// The kind found.
        kind: u8,
    },
    /// More payload than this side takes.
    #[error("a frame of {length} bytes, at most {limit} are taken")]
    Length {
        /// Bytes announced.
        length: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A reply to something else than what was asked.
    #[error("a reply to request {found}, expected one to {expected}")]
    Id {
        /// The request that waits.
        expected: u64,
        /// The request named.
        found: u64,
    },
    /// The payload does not say what its kind must.
    #[error("a frame of request {id}: {what}")]
    Content {
        /// The request.
        id: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// CRC-32C over pieces that follow each other.
pub struct Checksum(crc_fast::Digest);

impl Default for Checksum {
    /// Of no bytes yet.
    fn default() -> Self {
        Checksum(crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Checksum {
    /// Takes in more bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum so far.
    pub fn get(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// CRC-32C of bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl Header {
    /// The header of a payload that is at hand.
    pub fn of(kind: Kind, id: u64, payload: &[u8]) -> Self {
        Header { kind, id, length: payload.len(), checksum: checksum(payload) }
    }

    /// The bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        let own = checksum(&bytes[..20]);
        bytes[20..24].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Reads a header; `requests` says which side reads.
    ///
    /// # Errors
    /// [`FrameError`]: its checksum differs, or its kind or length is not taken by that side.
    pub fn decode(bytes: &[u8; HEADER_BYTES], requests: bool) -> Result<Self, FrameError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (expected, found) = (checksum(&bytes[..20]), word(20));
        if expected != found {
            return Err(FrameError::Header { expected, found });
        }
        let kind = Kind::ALL.into_iter().find(|&k| k as u8 == bytes[4] && k.is_request() == requests);
        let reserved = bytes[5..8] == [0; 3];
        let kind = kind.filter(|_| reserved).ok_or(FrameError::Kind { kind: bytes[4] })?;
        let limit = if requests { REQUEST_BYTES } else { REPLY_BYTES };
        let length = word(0) as usize;
        if length > limit {
            return Err(FrameError::Length { length: length as u64, limit: limit as u64 });
        }
        let id = u64::from(word(8)) | u64::from(word(12)) << 32;
        Ok(Header { kind, id, length, checksum: word(16) })
    }

    /// Holds a payload against this header.
    ///
    /// # Errors
    /// [`FrameError::Payload`] when its checksum is another.
    pub fn verify(&self, found: u32) -> Result<(), FrameError> {
        match found == self.checksum {
            true => Ok(()),
            false => Err(FrameError::Payload { id: self.id, expected: self.checksum, found }),
        }
    }
}
