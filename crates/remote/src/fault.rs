//! The payload of a fault: which piece of a read cannot be served, and why.

use restage_nest::Nest;

use crate::cursor::Cursor;
use crate::limits::TEXT_BYTES;

/// Why a piece cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The medium ended early.
    Short = 1,
    /// The medium failed.
    Io = 2,
    /// It lies outside what is published.
    Outside = 3,
}

/// A piece that cannot be served. The bytes of it before the fault were sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Position of the piece in its request.
    pub piece: u32,
    /// Why.
    pub cause: Cause,
    /// Bytes of the piece that were sent before.
    pub done: u64,
    /// Where it happened.
    pub address: u64,
    /// Bytes wanted there.
    pub wanted: u64,
    /// Bytes found there.
    pub found: u64,
    /// What the publisher's system said; at most 1024 bytes.
    pub text: String,
}

impl Fault {
    /// A fault at an address; the piece and what was sent of it are yet to be said.
    pub fn new(cause: Cause, address: u64, wanted: u64, found: u64, text: &str) -> Self {
        let mut end = text.len().min(TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Fault { piece: 0, cause, done: 0, address, wanted, found, text: text[..end].to_owned() }
    }

    /// A piece that reaches outside.
    pub fn outside(nest: &Nest) -> Self {
        Fault::new(Cause::Outside, nest.src, nest.run, 0, "")
    }

    /// The bytes of the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut into = Vec::with_capacity(40 + self.text.len());
        into.extend_from_slice(&self.piece.to_le_bytes());
        into.extend_from_slice(&(self.cause as u32).to_le_bytes());
        for number in [self.done, self.address, self.wanted, self.found] {
            into.extend_from_slice(&number.to_le_bytes());
        }
        into.extend_from_slice(self.text.as_bytes());
        into
    }

    /// Reads a payload; `None` when it is malformed.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut from = Cursor(payload);
        let piece = from.u32()?;
        let cause = match from.u32()? {
            1 => Cause::Short,
            2 => Cause::Io,
            3 => Cause::Outside,
            _ => return None,
        };
        let (done, address, wanted, found) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
        if from.0.len() > TEXT_BYTES {
            return None;
        }
        let text = std::str::from_utf8(from.0).ok()?.to_owned();
        Some(Fault { piece, cause, done, address, wanted, found, text })
    }
}
