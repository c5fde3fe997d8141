//! Stretches: contiguous parts of shards that are read as a whole and replayed from staging.
//!
//! The law: every part of the copies lies in exactly one stretch, and a stretch reaches from the first byte that
//! its parts need to the last (widened to the alignment). Nothing here grows with rows, except where a limit on
//! staging makes stretches that short.

use restage_nest::{Nest, NestError};

use crate::limits::Limits;
use crate::need::{Need, Piece};
use crate::plan::Reason;
use crate::source::Shard;
use crate::spread::Place;
use crate::tiles::over_shard;

/// Unneeded bytes that are not read to save a descriptor: parts of one shard that lie as far apart become
/// stretches of their own, as long as the bound on descriptors allows it.
const WORTH: u64 = 64 << 10;

/// Parts that one source may be cut into by a limit on staging.
const MOST_PARTS: usize = 1 << 20;

/// A part of a copy, read as a whole.
struct Part<'a> {
    /// Index among the copies of the source.
    copy: usize,
    session: usize,
    shard: &'a Shard,
    /// From the shard's first element to the parameter, in elements.
    nest: Nest,
    /// First byte that is read for it and one past the last, as addresses of the session.
    low: u64,
    high: u64,
}

/// One contiguous read, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub session: usize,
    /// Addresses of the session.
    pub start: u64,
    pub end: u64,
    /// Where the shard's first element lies, which may be before the stretch.
    base: u64,
    /// Index in [`Staged::buffers`], and the position there.
    pub buffer: usize,
    pub at: u64,
}

/// What is staged of one source.
#[derive(Debug, Clone, Default)]
pub(crate) struct Staged {
    pub stretches: Vec<Stretch>,
    /// Bytes of each staging buffer.
    pub buffers: Vec<u64>,
    /// Per buffer: copies by their index, and nests from the buffer to the parameter, in elements.
    pub replays: Vec<Vec<(usize, Vec<Nest>)>>,
}

impl Staged {
    /// Bytes that are read.
    pub fn bytes(&self) -> u64 {
        self.stretches.iter().map(|s| s.end - s.start).sum()
    }

    /// Reads that it takes.
    pub fn descriptors(&self) -> u64 {
        self.stretches.len() as u64
    }
}

/// Stages these copies of a source, given by index with their pieces, by stretches of the shards that they need.
pub(crate) fn by_stretches(
    need: &Need<'_>,
    copies: &[(usize, &[Piece])],
    places: &[Place<'_>],
    limits: &Limits,
) -> Result<Staged, Reason> {
    let budget = limits.max_descriptors.saturating_mul(copies.len() as u64);
    let fine = stretches(need, copies, places, limits, WORTH)?;
    if fine.descriptors() <= budget {
        return Ok(fine);
    }
    let coarse = stretches(need, copies, places, limits, u64::MAX)?;
    Ok(if coarse.descriptors() < fine.descriptors() { coarse } else { fine })
}

/// Stages these copies from the whole source, which is cut by rows: every tile as one stretch. `None` where that
/// breaks the limits on staging and alignment.
pub(crate) fn by_rows(
    need: &Need<'_>,
    copies: &[(usize, &[Piece])],
    places: &[Place<'_>],
    limits: &Limits,
) -> Result<Option<Staged>, Reason> {
    let dtype = need.source.dtype;
    let bytes_of = |elements: i64| dtype.bytes(elements as u64).ok_or(Reason::Bytes(NestError::Overflow));
    let row: i64 = need.source.shape.iter().skip(1).product();
    let mut all: Vec<Stretch> = Vec::with_capacity(places.len());
    for (tile, &(session, shard)) in need.tiles.tiles.iter().zip(places) {
        let (start, end) = (tile.region.start(), tile.region.end());
        let rows = end.first().map_or(1, |&end| end - start[0]);
        let before = start.first().map_or(0, |&s| s - shard.region.start()[0]);
        let from = shard.addr + bytes_of(before * row)?;
        let to = from + bytes_of(rows * row)?;
        if !to.is_multiple_of(limits.alignment.max(1)) && to != end_of(shard, need) {
            return Ok(None);
        }
        match all.last_mut() {
            Some(last) if last.session == session && last.end == from => last.end = to,
            _ => all.push(Stretch { session, start: from, end: to, base: from, buffer: 0, at: 0 }),
        }
    }
    let mut at = 0;
    for s in &mut all {
        s.at = at;
        at += s.end - s.start;
    }
    let straight = |s: &Stretch| s.start.is_multiple_of(limits.alignment.max(1));
    if limits.staging_bytes.is_some_and(|most| at > most) || !all.iter().all(straight) {
        return Ok(None);
    }
    let mut parts = Vec::new();
    for &(copy, pieces) in copies {
        for (t, piece) in pieces {
            let (session, shard) = places[*t];
            parts.push(part(copy, session, shard, over_shard(piece, &shard.region), need)?);
        }
    }
    let mut staged = Staged { stretches: all, buffers: vec![at], replays: Vec::new() };
    staged.replay(parts, need)?;
    Ok(Some(staged))
}

/// One past the last byte of a shard, as an address.
fn end_of(shard: &Shard, need: &Need<'_>) -> u64 {
    // The catalog has checked that it fits.
    let bytes = shard.region.numel().and_then(|n| need.source.dtype.bytes(n as u64));
    shard.addr.saturating_add(bytes.unwrap_or(0))
}

fn part<'a>(
    copy: usize,
    session: usize,
    shard: &'a Shard,
    nest: Nest,
    need: &Need<'_>,
) -> Result<Part<'a>, Reason> {
    let packing = need.source.dtype.packing();
    let side = nest
        .src_hull()
        .and_then(|(low, high)| {
            // Only the side that is read is scaled: the other may be of a type without blocks.
            Nest::contiguous(low, 0, high - low).into_scaled(packing.elements, packing.bytes, shard.addr)
        })
        .map_err(Reason::Bytes)?;
    Ok(Part { copy, session, shard, nest, low: side.src, high: side.src + side.run })
}

fn stretches(
    need: &Need<'_>,
    copies: &[(usize, &[Piece])],
    places: &[Place<'_>],
    limits: &Limits,
    worth: u64,
) -> Result<Staged, Reason> {
    let dtype = need.source.dtype;
    let packing = dtype.packing();
    let align = limits.alignment.max(1);
    let limit = limits.staging_bytes.unwrap_or(u64::MAX);
    let too_small = |needed| Reason::Staging { needed, limit };
    // In whole blocks, and with room for what the alignment adds at either end.
    let room = if align > 1 { limit.saturating_sub(2 * align) } else { limit };
    let elements = |bytes: u64| (bytes / packing.bytes).saturating_mul(packing.elements);
    let cut = Cut {
        worth: elements(worth),
        most: limits.max_descriptors,
        limit: elements(room),
        block: packing.elements,
    };
    if cut.limit == 0 {
        return Err(too_small(packing.bytes));
    }
    let mut parts = Vec::new();
    let mut nests = Vec::new();
    for &(copy, pieces) in copies {
        for (t, piece) in pieces {
            let (session, shard) = places[*t];
            cut.split(over_shard(piece, &shard.region), &mut nests);
            if parts.len() + nests.len() > MOST_PARTS {
                return Err(too_small(room));
            }
            for nest in nests.drain(..) {
                let mut part = part(copy, session, shard, nest, need)?;
                part.align(align, need)?;
                parts.push(part);
            }
        }
    }
    parts.sort_by_key(|p| (p.session, p.low, p.high, p.copy));
    let mut staged = Staged::default();
    let mut last: Option<&Shard> = None;
    for p in &parts {
        let joins = staged.stretches.last().is_some_and(|s: &Stretch| {
            let same = last.is_some_and(|shard| std::ptr::eq(shard, p.shard));
            let near = p.low <= s.end || same && p.low - s.end < worth;
            let phase = p.shard.addr.abs_diff(s.base).is_multiple_of(packing.bytes);
            s.session == p.session && near && phase && s.end.max(p.high) - s.start <= limit
        });
        match staged.stretches.last_mut().filter(|_| joins) {
            Some(s) => s.end = s.end.max(p.high),
            None => staged.stretches.push(Stretch {
                session: p.session,
                start: p.low,
                end: p.high,
                base: p.shard.addr,
                buffer: 0,
                at: 0,
            }),
        }
        last = Some(p.shard);
    }
    staged.place(limit, packing.bytes)?;
    staged.replay(parts, need)?;
    Ok(staged)
}

impl Part<'_> {
    /// Widens what is read to the alignment, within the shard.
    fn align(&mut self, to: u64, need: &Need<'_>) -> Result<(), Reason> {
        if to == 1 {
            return Ok(());
        }
        let down = self.low - self.low % to;
        if down < self.shard.addr {
            let session = self.shard.session.clone();
            return Err(Reason::Alignment { session, addr: self.low, alignment: to });
        }
        self.low = down;
        let end = end_of(self.shard, need);
        self.high = self.high.checked_next_multiple_of(to).map_or(end, |high| high.min(end));
        Ok(())
    }
}

impl Staged {
    /// Lays the stretches out in buffers of at most `limit` bytes each, so that elements fall on whole blocks.
    fn place(&mut self, limit: u64, block: u64) -> Result<(), Reason> {
        for s in &mut self.stretches {
            let len = s.end - s.start;
            // The stretch may begin before the shard's first whole block after it, by the alignment.
            let lead = (s.start - s.base.min(s.start)) % block;
            let pad = |used: u64| (lead + block - used % block) % block;
            if len.saturating_add(lead) > limit {
                return Err(Reason::Staging { needed: len + lead, limit });
            }
            let used = match self.buffers.last() {
                Some(&used) if used.saturating_add(pad(used)).saturating_add(len) <= limit => used,
                _ => {
                    self.buffers.push(0);
                    0
                }
            };
            s.buffer = self.buffers.len() - 1;
            s.at = used + pad(used);
            if let Some(last) = self.buffers.last_mut() {
                *last = s.at + len;
            }
        }
        Ok(())
    }

    /// Turns parts into nests from the buffers that hold them.
    fn replay(&mut self, parts: Vec<Part<'_>>, need: &Need<'_>) -> Result<(), Reason> {
        let packing = need.source.dtype.packing();
        let mut by_start: Vec<usize> = (0..self.stretches.len()).collect();
        by_start.sort_by_key(|&i| (self.stretches[i].session, self.stretches[i].start));
        self.replays = vec![Vec::new(); self.buffers.len()];
        for mut p in parts {
            let after = by_start.partition_point(|&i| {
                let s = &self.stretches[i];
                (s.session, s.start) <= (p.session, p.low)
            });
            // A stretch begins at or before each of its parts; where some overlap, the last that reaches far enough.
            let holds = |&&i: &&usize| {
                let s = &self.stretches[i];
                s.session == p.session
                    && s.end >= p.high
                    && p.shard.addr.abs_diff(s.base).is_multiple_of(packing.bytes)
            };
            let s = by_start[..after].iter().rev().find(holds).map(|&i| self.stretches[i]);
            let s = s.ok_or(Reason::Bytes(NestError::Overflow))?;
            // Blocks between the shard's first element and the buffer's, which may lie on either side.
            let shift = (s.at as i128 + p.shard.addr as i128 - s.start as i128) / packing.bytes as i128
                * packing.elements as i128;
            let shift = i64::try_from(shift).map_err(|_| Reason::Bytes(NestError::Overflow))?;
            p.nest.src = p.nest.src.checked_add_signed(shift).ok_or(Reason::Bytes(NestError::Overflow))?;
            let list = &mut self.replays[s.buffer];
            match list.iter_mut().rev().find(|(copy, _)| *copy == p.copy) {
                Some((_, nests)) => nests.push(p.nest),
                None => list.push((p.copy, vec![p.nest])),
            }
        }
        for list in &mut self.replays {
            list.sort_by_key(|(copy, _)| *copy);
            list.iter_mut().for_each(|(_, nests)| restage_nest::coalesce(nests));
        }
        Ok(())
    }
}

/// How a nest is cut before its parts are joined to stretches; in elements.
struct Cut {
    /// Gap from which on the two sides of it are read apart.
    worth: u64,
    /// Repetitions of a loop that are read apart at most.
    most: u64,
    /// Most elements from the first to the last of a part.
    limit: u64,
    /// Elements of a block, which are not cut.
    block: u64,
}

impl Cut {
    fn split(&self, nest: Nest, out: &mut Vec<Nest>) {
        let reach = |l: &restage_nest::Loop| l.src.unsigned_abs().saturating_mul(l.count - 1);
        let whole = nest.loops.iter().map(reach).fold(nest.run, u64::saturating_add);
        let outer = (0..nest.loops.len()).filter(|&i| nest.loops[i].src != 0);
        let Some(at) = outer.max_by_key(|&i| (nest.loops[i].src.unsigned_abs(), nest.loops[i].count)) else {
            return self.run(nest, out);
        };
        let l = nest.loops[at];
        let inner = whole - reach(&l);
        let stride = l.src.unsigned_abs();
        let apart = stride.saturating_sub(inner) >= self.worth && l.count <= self.most;
        if !apart && whole <= self.limit {
            return out.push(nest);
        }
        let each = if apart || inner > self.limit { 1 } else { (self.limit - inner) / stride + 1 };
        let mut from = 0;
        while from < l.count && out.len() <= MOST_PARTS {
            let mut sub = nest.clone();
            let count = each.min(l.count - from);
            sub.src = sub.src.wrapping_add_signed(l.src.wrapping_mul(from as i64));
            sub.dst = sub.dst.wrapping_add_signed(l.dst.wrapping_mul(from as i64));
            if count == 1 {
                sub.loops.remove(at);
                self.split(sub, out);
            } else {
                sub.loops[at].count = count;
                out.push(sub);
            }
            from += count;
        }
    }

    /// A nest whose source moves along its run alone.
    fn run(&self, nest: Nest, out: &mut Vec<Nest>) {
        let most = (self.limit - self.limit % self.block).max(self.block);
        let mut from = 0;
        while from < nest.run && out.len() <= MOST_PARTS {
            let len = most.min(nest.run - from);
            let (src, dst) = (nest.src + from, nest.dst + from);
            out.push(Nest { src, dst, run: len, loops: nest.loops.clone() });
            from += len;
        }
    }
}
