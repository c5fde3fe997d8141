//! The table of sessions, as it is sent.

use std::sync::Arc;

use restage_transport::Extents;

use crate::cursor::Cursor;
use crate::limits::NAME_BYTES;

/// Bytes of the mark of a publisher's run: another run, even of the same files, has another.
pub const MARK_BYTES: usize = 16;

/// The bytes of a table.
pub fn encode<'a>(
    mark: &[u8; MARK_BYTES],
    sessions: impl ExactSizeIterator<Item = (&'a str, &'a Extents)>,
) -> Vec<u8> {
    let mut into = mark.to_vec();
    into.extend_from_slice(&(sessions.len() as u32).to_le_bytes());
    for (name, extents) in sessions {
        into.extend_from_slice(&(name.len() as u32).to_le_bytes());
        into.extend_from_slice(name.as_bytes());
        into.extend_from_slice(&(extents.ranges().len() as u32).to_le_bytes());
        for range in extents.ranges() {
            into.extend_from_slice(&range.start.to_le_bytes());
            into.extend_from_slice(&(range.end - range.start).to_le_bytes());
        }
    }
    into
}

/// Reads a table; `None` when it is malformed: cut short, followed by more, a name that is too long, is no text
/// or comes twice, extents that overlap or wrap around.
pub fn decode(bytes: &[u8]) -> Option<Vec<(Arc<str>, Extents)>> {
    let mut from = Cursor(bytes);
    from.bytes(MARK_BYTES)?;
    let mut sessions = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..from.u32()? {
        let length = from.u32()? as usize;
        let name: Arc<str> = std::str::from_utf8(from.bytes(length)?).ok()?.into();
        if length > NAME_BYTES || !seen.insert(Arc::clone(&name)) {
            return None;
        }
        let mut ranges = Vec::new();
        for _ in 0..from.u32()? {
            let (start, length) = (from.u64()?, from.u64()?);
            ranges.push(start..start.checked_add(length)?);
        }
        sessions.push((name, Extents::new(ranges)?));
    }
    from.0.is_empty().then_some(sessions)
}
