//! The proof, made before a byte moves, that a batch can be executed.
//!
//! Every run that is read lies inside one extent of a known session, every byte that is written lies inside
//! its destination, and no byte is written twice. The cost is that of the entries and not of their runs,
//! except where a source straddles extents or destinations interleave irregularly.

use std::sync::Arc;

use restage_nest::cover::{self, Overlap};
use restage_nest::{Nest, Strided};

use crate::chunk::halves;
use crate::{Batch, Entry, Extents, TransportError};

/// A batch that was found safe to execute, with the destinations it was found safe for.
///
/// Only [`check`] makes one, so whoever holds it may rely on the proof.
#[derive(Debug)]
pub struct Checked<'b, 'd> {
    batch: &'b Batch,
    dests: Vec<&'d mut [u8]>,
}

impl<'b, 'd> Checked<'b, 'd> {
    /// The batch that was checked.
    pub fn batch(&self) -> &'b Batch {
        self.batch
    }

    pub(crate) fn into_parts(self) -> (&'b Batch, Vec<&'d mut [u8]>) {
        (self.batch, self.dests)
    }
}

/// Checks `batch` against the `extents` of the sessions it reads and the sizes of `dests`.
///
/// An entry of no bytes needs a known session and an existing destination, and may stand at any address.
///
/// # Errors
/// The first fault found: see [`Transport::read`](crate::Transport::read).
pub fn check<'b, 'd>(
    batch: &'b Batch,
    extents: &dyn Fn(&str) -> Option<Extents>,
    dests: &'d mut [&mut [u8]],
) -> Result<Checked<'b, 'd>, TransportError> {
    let mut known: Vec<Option<Extents>> = vec![None; batch.sessions.len()];
    let mut written: Vec<(Vec<usize>, Vec<Strided>)> = vec![Default::default(); dests.len()];
    for (index, entry) in batch.entries.iter().enumerate() {
        let name = batch.sessions.get(entry.session as usize).ok_or(TransportError::SessionIndex {
            entry: index,
            index: entry.session,
            sessions: batch.sessions.len(),
        })?;
        let slot = &mut known[entry.session as usize];
        if slot.is_none() {
            let found =
                extents(name).ok_or_else(|| TransportError::UnknownSession { session: Arc::clone(name) })?;
            *slot = Some(found);
        }
        let size = dests
            .get(entry.dest as usize)
            .map(|d| d.len() as u64)
            .ok_or(TransportError::DestIndex { entry: index, index: entry.dest, dests: dests.len() })?;
        let (side, end) = write_side(index, name, entry)?;
        if side.run == 0 {
            continue;
        }
        if end > size {
            return Err(TransportError::DestRange { entry: index, dest: entry.dest, end, size });
        }
        let (entries, sides) = &mut written[entry.dest as usize];
        entries.push(index);
        sides.push(side);
    }
    for (dest, (entries, sides)) in written.iter().enumerate() {
        cover::disjoint(sides).map_err(|Overlap { first, second, at }| TransportError::Overlap {
            dest: dest as u32,
            first: entries[first],
            second: entries[second],
            at,
        })?;
    }
    // Only now, as disjoint writes bound the number of runs: a source may have to be walked.
    for (index, entry) in batch.entries.iter().enumerate() {
        let Some(extents) = known[entry.session as usize].as_ref() else { continue };
        if entry.nest.is_empty() {
            continue;
        }
        if let Err((address, length)) = inside(&entry.nest, extents) {
            return Err(TransportError::SourceRange {
                entry: index,
                session: Arc::clone(&batch.sessions[entry.session as usize]),
                address,
                length,
                extents: extents.clone(),
            });
        }
    }
    Ok(Checked { batch, dests: dests.iter_mut().map(|d| &mut **d).collect() })
}

/// The positions that an entry writes and their end, once both of its sides are known not to wrap around.
fn write_side(index: usize, session: &Arc<str>, entry: &Entry) -> Result<(Strided, u64), TransportError> {
    // One run, the form of nearly all entries of a very long batch.
    if let Nest { src, dst, run, loops } = &entry.nest
        && loops.is_empty()
        && src.checked_add(*run).is_some()
        && let Some(end) = dst.checked_add(*run)
    {
        return Ok((Strided { start: *dst, run: *run, loops: Vec::new() }, end));
    }
    let sides = || {
        entry.nest.total()?;
        entry.nest.src_side()?;
        let side = entry.nest.dst_side()?;
        let end = side.end()?;
        Ok((side, end))
    };
    sides().map_err(|_: restage_nest::NestError| TransportError::WrapAround {
        entry: index,
        session: Arc::clone(session),
        address: entry.nest.src,
        length: entry.nest.run,
        dest: entry.dest,
        offset: entry.nest.dst,
    })
}

/// Whether every run of `nest` is read from one of `extents`; the first run that is not, otherwise.
fn inside(nest: &Nest, extents: &Extents) -> Result<(), (u64, u64)> {
    let outside = (nest.src, nest.run);
    if nest.loops.is_empty() {
        // Checked not to wrap around.
        let run = nest.src..nest.src.saturating_add(nest.run);
        return extents.find(&run).map(drop).ok_or(outside);
    }
    let hull = nest.src_side().and_then(|s| Ok(s.start..s.end()?)).map_err(|_| outside)?;
    if extents.find(&hull).is_some() {
        return Ok(());
    }
    let Some(at) = (0..nest.loops.len()).find(|&at| nest.loops[at].count > 1) else {
        return Err(outside);
    };
    let (first, second) = halves(nest, at);
    inside(&first, extents)?;
    inside(&second, extents)
}
