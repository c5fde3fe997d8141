//! Carrying nests out: bytes from one buffer to another, on one thread.
//!
//! Everything is checked before the first byte moves, so that the loops have nothing left to check but the
//! bounds of slices. Nests are carried out in their order: where destinations overlap, the later one wins.

use restage_nest::{Loop, Nest, NestError};
use thiserror::Error;

use crate::dtype::Packing;
use crate::stream;

/// Repetitions of two loops that are done as one tile, where source and destination are walked across each
/// other: a tile's lines of either side stay in the first cache.
const TILE: u64 = 8;

/// Bytes of a run from which on there is nothing to gain from tiles.
const WIDE: u64 = 64;

/// Bytes of a run, and of all runs of one loop, from which on the copy goes past the caches: shorter runs leave
/// too many lines half written, and less in all may still be wanted in a cache.
const STREAM_RUN: usize = 512;
const STREAM_ALL: u64 = 4 << 20;

/// A copy that leaves its buffers or cuts a block.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MoveError {
    /// A nest whose positions are no bytes.
    #[error("nest {index}: {problem}")]
    Nest {
        /// Index of the nest in the slice.
        index: usize,
        /// What is wrong with it.
        problem: NestError,
    },
    /// A nest that reaches past the end of a buffer.
    #[error("nest {index} reaches byte {end} of a {side} of {len} bytes")]
    Outside {
        /// Index of the nest in the slice.
        index: usize,
        /// `source` or `destination`.
        side: &'static str,
        /// One past the last byte that it reaches.
        end: u64,
        /// Bytes of the buffer.
        len: usize,
    },
}

/// Copies elements from `src` to `dst` as the nests say; their units are elements, of which `packing` tells
/// the bytes.
///
/// # Errors
/// [`MoveError`]; nothing has been written then.
///
/// ```
/// use restage_geometry::{copy_nests, Dtype};
/// use restage_nest::{Loop, Nest};
/// // The second column of a 3 x 2 matrix of bytes.
/// let column = Nest { src: 1, dst: 0, run: 1, loops: vec![Loop { count: 3, src: 2, dst: 1 }] };
/// let mut out = [0; 3];
/// copy_nests(&[column], Dtype::U8.packing(), &[1, 2, 3, 4, 5, 6], &mut out)?;
/// assert_eq!(out, [2, 4, 6]);
/// # Ok::<(), restage_geometry::MoveError>(())
/// ```
pub fn copy_nests(nests: &[Nest], packing: Packing, src: &[u8], dst: &mut [u8]) -> Result<(), MoveError> {
    let checked = nests.iter().enumerate().map(|(index, nest)| {
        let problem = |problem| MoveError::Nest { index, problem };
        let nest = nest.scaled(packing.elements, packing.bytes, 0).map_err(problem)?;
        for (side, strided, len) in
            [("source", nest.src_side(), src.len()), ("destination", nest.dst_side(), dst.len())]
        {
            let strided = strided.map_err(problem)?;
            let end = if strided.run == 0 { 0 } else { strided.end().map_err(problem)? };
            if end > len as u64 {
                return Err(MoveError::Outside { index, side, end, len });
            }
        }
        Ok(nest)
    });
    let checked: Vec<Nest> = checked.collect::<Result<_, _>>()?;
    for nest in &checked {
        if !nest.is_empty() {
            carry_out(nest, src, dst);
        }
    }
    Ok(())
}

/// One nest in bytes, not empty and inside of both buffers.
fn carry_out(nest: &Nest, src: &[u8], dst: &mut [u8]) {
    let mut loops = nest.loops.clone();
    // Where the loop that is innermost on the side that is read is not so on the other, elements would be read a
    // cache line apart, and each line many times. Within a nest that writes no byte twice the order is free.
    let last = loops.len().saturating_sub(1);
    let nearest = (0..loops.len()).min_by_key(|&i| loops[i].src.unsigned_abs()).unwrap_or(0);
    let tiled = nest.run <= WIDE
        && nearest != last
        && nest.dst_side().is_ok_and(|side| nested(&side.loops, side.run));
    if tiled {
        let l = loops.remove(nearest);
        loops.insert(last - 1, l);
    }
    let outer = if tiled { loops.len() - 2 } else { loops.len().saturating_sub(1) };
    let inner = loops.split_off(outer);
    let mut at = Walk { loops: &loops, index: vec![0; loops.len()], src: nest.src, dst: nest.dst };
    loop {
        match inner[..] {
            [] => row(nest.run, Loop { count: 1, src: 0, dst: 0 }, at.src, at.dst, src, dst),
            [l] => row(nest.run, l, at.src, at.dst, src, dst),
            [outer, inner, ..] => tile(nest.run, outer, inner, at.src, at.dst, src, dst),
        }
        if !at.advance() {
            return;
        }
    }
}

/// True when each loop steps over all that is inside of it, so that no byte is written twice.
fn nested(loops: &[(u64, u64)], run: u64) -> bool {
    let mut extent = run;
    loops.iter().rev().all(|&(count, stride)| {
        let clear = stride >= extent;
        extent += stride.saturating_mul(count - 1);
        clear
    })
}

/// A position that walks the outer loops, the last one fastest.
struct Walk<'a> {
    loops: &'a [Loop],
    index: Vec<u64>,
    src: u64,
    dst: u64,
}

impl Walk<'_> {
    /// Goes to the next repetition; false after the last.
    fn advance(&mut self) -> bool {
        for (l, i) in self.loops.iter().zip(&mut self.index).rev() {
            *i += 1;
            self.src = self.src.wrapping_add_signed(l.src);
            self.dst = self.dst.wrapping_add_signed(l.dst);
            if *i < l.count {
                return true;
            }
            self.src = self.src.wrapping_add_signed(l.src.wrapping_mul(-(l.count as i64)));
            self.dst = self.dst.wrapping_add_signed(l.dst.wrapping_mul(-(l.count as i64)));
            *i = 0;
        }
        false
    }
}

/// Two loops in tiles.
fn tile(run: u64, outer: Loop, inner: Loop, from: u64, to: u64, src: &[u8], dst: &mut [u8]) {
    for o in (0..outer.count).step_by(TILE as usize) {
        for i in (0..inner.count).step_by(TILE as usize) {
            let part = Loop { count: TILE.min(inner.count - i), ..inner };
            for k in o..(o + TILE).min(outer.count) {
                let step = |a: u64, x: i64, y: i64| {
                    a.wrapping_add_signed(x.wrapping_mul(k as i64))
                        .wrapping_add_signed(y.wrapping_mul(i as i64))
                };
                row(run, part, step(from, outer.src, inner.src), step(to, outer.dst, inner.dst), src, dst);
            }
        }
    }
}

/// One loop over runs.
fn row(run: u64, l: Loop, from: u64, to: u64, src: &[u8], dst: &mut [u8]) {
    match run {
        1 => elements::<1>(l, from, to, src, dst),
        2 => elements::<2>(l, from, to, src, dst),
        4 => elements::<4>(l, from, to, src, dst),
        8 => elements::<8>(l, from, to, src, dst),
        16 => elements::<16>(l, from, to, src, dst),
        _ => {
            let (mut s, mut d, run) = (from as usize, to as usize, run as usize);
            if run >= STREAM_RUN && l.count > STREAM_ALL / run as u64 {
                for i in 0..l.count {
                    let next = s.wrapping_add_signed(l.src as isize);
                    let ahead = if i + 1 < l.count { &src[next..next + run] } else { &[] };
                    stream::copy(&mut dst[d..d + run], &src[s..s + run], ahead);
                    s = next;
                    d = d.wrapping_add_signed(l.dst as isize);
                }
                stream::settle();
                return;
            }
            for _ in 0..l.count {
                dst[d..d + run].copy_from_slice(&src[s..s + run]);
                s = s.wrapping_add_signed(l.src as isize);
                d = d.wrapping_add_signed(l.dst as isize);
            }
        }
    }
}

/// One loop over runs of a length that the compiler knows.
fn elements<const N: usize>(l: Loop, from: u64, to: u64, src: &[u8], dst: &mut [u8]) {
    let (mut s, mut d) = (from as usize, to as usize);
    if l.dst == N as i64 {
        // Dense on the side that is written, the usual case.
        let to = dst[d..d + N * l.count as usize].chunks_exact_mut(N);
        if let Ok(step) = usize::try_from(l.src)
            && step >= N
        {
            for (to, from) in to.zip(src[s..].chunks(step)) {
                to.copy_from_slice(&from[..N]);
            }
        } else {
            for to in to {
                to.copy_from_slice(&src[s..s + N]);
                s = s.wrapping_add_signed(l.src as isize);
            }
        }
        return;
    }
    for _ in 0..l.count {
        dst[d..d + N].copy_from_slice(&src[s..s + N]);
        s = s.wrapping_add_signed(l.src as isize);
        d = d.wrapping_add_signed(l.dst as isize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dest, Dtype, Op, Replay, gather, replay};
    use ndarray::{Array2, Axis};
    use proptest::prelude::*;

    #[test]
    fn nothing_moves_when_one_nest_leaves_its_buffer() {
        let mut dst = [9; 4];
        let packing = Dtype::U8.packing();
        let nests = [Nest::contiguous(0, 0, 4), Nest::contiguous(2, 0, 3)];
        let error = copy_nests(&nests, packing, &[1, 2, 3, 4], &mut dst).unwrap_err();
        assert_eq!(error, MoveError::Outside { index: 1, side: "source", end: 5, len: 4 });
        assert_eq!(dst, [9; 4]);
        assert!(copy_nests(&[Nest::contiguous(0, 3, 2)], packing, &[1, 2], &mut dst).is_err());
        assert!(copy_nests(&[Nest::contiguous(0, u64::MAX, 2)], packing, &[1, 2], &mut dst).is_err());
        assert!(copy_nests(&[Nest::contiguous(0, 1, 2)], Dtype::F4.packing(), &[1], &mut dst).is_err());
        assert_eq!(copy_nests(&[Nest::contiguous(9, 9, 0)], packing, &[], &mut dst), Ok(()));
    }

    #[test]
    fn the_later_nest_wins() {
        let mut dst = [0; 3];
        let nests = [Nest::contiguous(0, 0, 3), Nest::contiguous(3, 1, 1)];
        copy_nests(&nests, Dtype::U8.packing(), &[1, 2, 3, 4], &mut dst).unwrap();
        assert_eq!(dst, [1, 4, 3]);
    }

    #[test]
    fn a_transpose_in_tiles_is_ndarrays() {
        let (rows, columns) = (77, 103);
        let src: Vec<u16> = (0..rows as u16 * columns as u16).collect();
        let Ok(Replay::Exact(view)) = replay(&[rows, columns], &[Op::T]) else { panic!() };
        let nests = gather(&view, &Dest::whole(view.shape())).unwrap();
        let bytes = |values: &[u16]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let mut dst = vec![0; src.len() * 2];
        copy_nests(&nests, Dtype::BF16.packing(), &bytes(&src), &mut dst).unwrap();
        let mut expect = Array2::from_shape_vec((rows as usize, columns as usize), src).unwrap();
        expect.swap_axes(0, 1);
        assert_eq!(expect.len_of(Axis(0)), columns as usize);
        assert_eq!(dst, bytes(&expect.iter().copied().collect::<Vec<_>>()));
    }

    /// Enough in runs that are long enough to go past the caches, at odd positions.
    #[test]
    fn long_strided_copies_are_where_the_nest_says() {
        let (rows, run, pitch) = (5000usize, 1001usize, 1999usize);
        let src: Vec<u8> = (0..rows * pitch).map(|i| (i * 7 + i / 251) as u8).collect();
        let l = Loop { count: rows as u64, src: pitch as i64, dst: run as i64 };
        let nest = Nest { src: 3, dst: 5, run: run as u64, loops: vec![l] };
        let mut dst = vec![0; rows * run + 5];
        copy_nests(&[nest], Dtype::U8.packing(), &src, &mut dst).unwrap();
        assert!(dst[5..].chunks(run).zip(src.chunks(pitch)).all(|(d, s)| *d == s[3..3 + run]));
    }

    proptest! {
        /// Runs of every length, loops that overlap, run backwards or stand still: as element by element.
        #[test]
        fn bytes_are_where_the_nest_says(
            parts in proptest::collection::vec(
                (0u64..20, 0u64..20, 0u64..6, proptest::collection::vec((0u64..5, -6i64..9, -6i64..20), 0..4)),
                1..4,
            ),
            bytes in prop::sample::select(vec![1u64, 2, 3, 4, 8, 16]),
        ) {
            let nests: Vec<Nest> = parts
                .into_iter()
                .map(|(src, dst, run, loops)| {
                    let loops = loops.into_iter().map(|(count, src, dst)| Loop { count, src, dst }).collect();
                    Nest { src: src + 72, dst: dst + 72, run, loops }
                })
                .collect();
            let size = 400 * bytes as usize;
            let src: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut expect = vec![0u8; size];
            for run in nests.iter().flat_map(Nest::runs) {
                let (s, d) = ((run.src * bytes) as usize, (run.dst * bytes) as usize);
                let len = (run.len * bytes) as usize;
                expect[d..d + len].copy_from_slice(&src[s..s + len]);
            }
            let mut dst = vec![0u8; size];
            copy_nests(&nests, Packing { elements: 1, bytes }, &src, &mut dst).unwrap();
            prop_assert_eq!(dst, expect);
        }
    }
}
