//! The payloads of requests: of a read, strided pieces whose bytes are wanted one after the other; of a digest, a
//! stretch of a session.

use std::ops::Range;

use restage_nest::{Loop, Nest};

use crate::cursor::Cursor;
use crate::frame::FrameError;
use crate::limits::{DIGEST_BYTES, LOOPS, READ_BYTES, READ_RUNS};

/// Bytes of a piece that has no loops.
pub const PIECE_BYTES: usize = 24;
/// Bytes of one loop.
pub const LOOP_BYTES: usize = 16;

/// A part of a session: what is read of it, in the order of the nest. The destinations of the nest are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Position of the session in the publisher's table.
    pub session: u32,
    /// Where the bytes lie.
    pub nest: Nest,
}

/// Bytes that a piece takes in a request.
pub fn encoded_bytes(nest: &Nest) -> usize {
    PIECE_BYTES + LOOP_BYTES * nest.loops.len()
}

/// Appends a piece to a request.
pub fn encode(into: &mut Vec<u8>, session: u32, nest: &Nest) {
    into.extend_from_slice(&session.to_le_bytes());
    into.extend_from_slice(&(nest.loops.len() as u32).to_le_bytes());
    into.extend_from_slice(&nest.src.to_le_bytes());
    into.extend_from_slice(&nest.run.to_le_bytes());
    for l in &nest.loops {
        into.extend_from_slice(&l.count.to_le_bytes());
        into.extend_from_slice(&l.src.to_le_bytes());
    }
}

/// Reads the pieces of a request.
///
/// # Errors
/// [`FrameError::Content`]: it is cut short, asks for more bytes or runs than allowed, has an empty piece, or
/// a position of it does not fit in 64 bits.
pub fn decode(id: u64, payload: &[u8]) -> Result<Vec<Piece>, FrameError> {
    let wrong = |what| FrameError::Content { id, what };
    let mut from = Cursor(payload);
    let mut pieces = Vec::with_capacity(payload.len() / PIECE_BYTES);
    let (mut bytes, mut runs) = (0u64, 0u64);
    while !from.0.is_empty() {
        let piece = piece(&mut from).ok_or_else(|| wrong("a piece is cut short or has too many loops"))?;
        let nest = &piece.nest;
        let sizes = || Some((nest.total().ok()?, nest.run_count().ok()?, nest.src_side().ok()?.end().ok()?));
        let (more, times, _) = sizes().ok_or_else(|| wrong("a piece wraps around"))?;
        if more == 0 {
            return Err(wrong("a piece of no bytes"));
        }
        (bytes, runs) = (bytes.saturating_add(more), runs.saturating_add(times));
        if bytes > READ_BYTES || runs > READ_RUNS {
            return Err(wrong("more is asked for than one request may"));
        }
        pieces.push(piece);
    }
    Ok(pieces)
}

fn piece(from: &mut Cursor<'_>) -> Option<Piece> {
    let (session, loops) = (from.u32()?, from.u32()? as usize);
    let (src, run) = (from.u64()?, from.u64()?);
    if loops > LOOPS {
        return None;
    }
    let loops = (0..loops)
        .map(|_| Some(Loop { count: from.u64()?, src: from.u64()? as i64, dst: 0 }))
        .collect::<Option<Vec<_>>>()?;
    Some(Piece { session, nest: Nest { src, dst: 0, run, loops } })
}

/// The payload of a request for a digest.
pub fn encode_stretch(session: u32, stretch: &Range<u64>) -> Vec<u8> {
    let mut into = Vec::new();
    encode(&mut into, session, &Nest::contiguous(stretch.start, 0, stretch.end - stretch.start));
    into
}

/// Reads the payload of a request for a digest: one piece without loops.
///
/// # Errors
/// [`FrameError::Content`]: it is none, is of no bytes or of more than [`DIGEST_BYTES`], or wraps around.
pub fn decode_stretch(id: u64, payload: &[u8]) -> Result<(u32, Range<u64>), FrameError> {
    let wrong = FrameError::Content { id, what: "not a stretch that a digest can be asked of" };
    let mut from = Cursor(payload);
    let Some(Piece { session, nest }) = piece(&mut from) else { return Err(wrong) };
    let end = nest.src.checked_add(nest.run);
    match end {
        Some(end) if from.0.is_empty() && nest.loops.is_empty() && (1..=DIGEST_BYTES).contains(&nest.run) => {
            Ok((session, nest.src..end))
        }
        _ => Err(wrong),
    }
}
