#![allow(unsafe_code)]
//! Disjoint write access to the destinations, handed out in pieces to threads.
//!
//! Safe Rust cannot lend interleaved parts of one buffer to several threads: a strided destination is not a
//! slice. Everything here rests on two facts. [`check`](crate::check()) is the only maker of a [`Checked`],
//! and proves that all entries write inside their destination and that no byte is written twice. A [`Task`]
//! stands for the bytes its nest writes: it cannot be cloned, is made once per entry of a [`Checked`] that
//! it consumes, and is only ever split into parts that share no run.

use std::cmp::Reverse;
use std::marker::PhantomData;
use std::ptr;
use std::slice;

use restage_nest::{Loop, Nest};

use crate::Checked;
use crate::chunk::{halves, run_halves};

/// Bytes of the side of a tile in which a transpose is copied: one cache line of the source and one of the
/// destination.
const TILE: usize = 64;

/// Runs of at most this many bytes are copied inline; above it the call of `memcpy` costs nothing.
const INLINE_RUN: usize = 64;

/// The exclusive right to write the destination bytes of one part of one entry.
#[derive(Debug)]
pub struct Task<'d> {
    dest: *mut u8,
    nest: Nest,
    entry: usize,
    session: u32,
    life: PhantomData<&'d mut [u8]>,
}

// SAFETY: a task is a `&mut` of the bytes that its nest writes, and of nothing else.
unsafe impl Send for Task<'_> {}

impl<'d> Checked<'_, 'd> {
    /// One task per entry that moves any bytes, in entry order, its loops in canonical order.
    pub fn into_tasks(self) -> Vec<Task<'d>> {
        let (batch, mut dests) = self.into_parts();
        let dests: Vec<*mut u8> = dests.iter_mut().map(|d| d.as_mut_ptr()).collect();
        let entries = batch.entries.iter().enumerate().filter(|(_, e)| !e.nest.is_empty());
        entries
            .map(|(entry, e)| Task {
                dest: dests[e.dest as usize],
                nest: canonical(e.nest.clone()),
                entry,
                session: e.session,
                life: PhantomData,
            })
            .collect()
    }
}

fn canonical(nest: Nest) -> Nest {
    // The one stride whose sign cannot be turned around.
    if nest.loops.iter().any(|l| l.src == i64::MIN || l.dst == i64::MIN) { nest } else { nest.canonical() }
}

impl<'d> Task<'d> {
    /// Index of the entry in its batch.
    pub fn entry(&self) -> usize {
        self.entry
    }

    /// Index of the session in its batch.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// The copy that this task stands for.
    pub fn nest(&self) -> &Nest {
        &self.nest
    }

    /// Bytes to move.
    pub fn bytes(&self) -> u64 {
        // Cannot overflow: each of them is a byte of the destination.
        self.nest.loops.iter().fold(self.nest.run, |n, l| n * l.count)
    }

    /// The same task with its loops in the order of their source strides, the largest outermost.
    pub fn by_source(mut self) -> Self {
        self.nest.loops.sort_by_key(|l| Reverse(l.src.unsigned_abs()));
        self
    }

    /// Two tasks that are together this one, cut in the middle of loop `at`; only one where there is no such
    /// loop, or it repeats once.
    pub fn split_loop(self, at: usize) -> (Self, Option<Self>) {
        match self.nest.loops.get(at) {
            Some(l) if l.count > 1 => self.split(|nest| halves(nest, at)),
            _ => (self, None),
        }
    }

    /// Two tasks that are together this one, cut in the middle of the run; only one where that is a single
    /// byte.
    pub fn split_run(self) -> (Self, Option<Self>) {
        if self.nest.run > 1 { self.split(run_halves) } else { (self, None) }
    }

    fn split(self, cut: impl Fn(&Nest) -> (Nest, Nest)) -> (Self, Option<Self>) {
        let (first, second) = cut(&self.nest);
        let rest = Task { nest: second, ..self };
        (Task { nest: first, ..self }, Some(rest))
    }

    /// Hands out every run: its source address and its destination bytes, to be filled. Stops at the first
    /// error.
    ///
    /// # Errors
    /// Whatever `fill` returns.
    pub fn each_run<E>(&mut self, mut fill: impl FnMut(u64, &mut [u8]) -> Result<(), E>) -> Result<(), E> {
        for run in self.nest.runs() {
            // SAFETY: inside the destination, which is borrowed for 'd, and in no other task; the runs of a
            // task share no byte, and each slice ends with the call.
            let bytes =
                unsafe { slice::from_raw_parts_mut(self.dest.add(run.dst as usize), run.len as usize) };
            fill(run.src, bytes)?;
        }
        Ok(())
    }

    /// Gives up the task for its destination bytes, run by run in the order of the nest, to be filled later.
    pub fn each_slice(self, mut take: impl FnMut(&'d mut [u8])) {
        for run in self.nest.runs() {
            // SAFETY: inside the destination, which is borrowed for 'd, and in no other task. The runs of a task
            // share no byte, and the task ends here, so that no second slice of them is made.
            take(unsafe { slice::from_raw_parts_mut(self.dest.add(run.dst as usize), run.len as usize) });
        }
    }

    /// Copies all of it out of `from`, the source bytes that start at address `base`. Returns the number of
    /// bytes, or `None` with nothing written where a source byte lies outside `from`.
    #[must_use]
    pub fn gather(&mut self, from: &[u8], base: u64) -> Option<u64> {
        let side = self.nest.src_side().ok()?;
        let low = side.start.checked_sub(base)?;
        if side.end().ok()?.checked_sub(base)? > from.len() as u64 || low > from.len() as u64 {
            return None;
        }
        arrange(&mut self.nest.loops);
        let Nest { src, dst, run, loops } = &self.nest;
        // SAFETY: the whole source side was just found inside `from`, and the destination side is this
        // task's. They cannot overlap, since `from` is borrowed shared and the destinations are not.
        unsafe {
            let src = from.as_ptr().add((src - base) as usize);
            copy(src, self.dest.add(*dst as usize), *run as usize, loops);
        }
        Some(self.bytes())
    }
}

/// Puts loops in the order that the kernel wants: ascending destinations innermost, and next to it the loop
/// with the smallest steps in the source. Where these differ it is a transpose of the two.
fn arrange(loops: &mut [Loop]) {
    loops.sort_by_key(|l| Reverse(l.dst.unsigned_abs()));
    let steps = loops.iter().enumerate().filter(|(_, l)| l.src != 0);
    if let Some((at, _)) = steps.min_by_key(|(_, l)| l.src.unsigned_abs()) {
        let second = loops.len().saturating_sub(2);
        if at < second {
            loops[at..=second].rotate_left(1);
        }
    }
}

/// # Safety
/// For every index of the loops, `run` bytes can be read at `src` and written at `dst`, each moved by the
/// loops' strides; what is read and what is written do not overlap.
unsafe fn copy(src: *const u8, dst: *mut u8, run: usize, loops: &[Loop]) {
    const ONCE: Loop = Loop { count: 1, src: 0, dst: 0 };
    // SAFETY: as above. An index of some loops, 0 in the others, is an index too, so all sums stay inside.
    unsafe {
        match loops {
            [] => ptr::copy_nonoverlapping(src, dst, run),
            [inner] => plane(src, dst, run, &ONCE, inner),
            [outer, inner] => plane(src, dst, run, outer, inner),
            [l, rest @ ..] => {
                for i in 0..l.count as isize {
                    copy(src.offset(i * l.src as isize), dst.offset(i * l.dst as isize), run, rest);
                }
            }
        }
    }
}

/// # Safety
/// As for [`copy`].
unsafe fn plane(src: *const u8, dst: *mut u8, run: usize, outer: &Loop, inner: &Loop) {
    // SAFETY: as above; the pairs of moves are both inside the run.
    unsafe {
        match run {
            1 => cells::<1, TILE>(src, dst, outer, inner),
            2 => cells::<2, { TILE / 2 }>(src, dst, outer, inner),
            4 => cells::<4, { TILE / 4 }>(src, dst, outer, inner),
            8 => cells::<8, { TILE / 8 }>(src, dst, outer, inner),
            16 => sweep(src, dst, outer, inner, |s, d| cell::<16>(s, d)),
            3 => sweep(src, dst, outer, inner, |s, d| ends::<2>(s, d, run)),
            5..8 => sweep(src, dst, outer, inner, |s, d| ends::<4>(s, d, run)),
            9..16 => sweep(src, dst, outer, inner, |s, d| ends::<8>(s, d, run)),
            17..=32 => sweep(src, dst, outer, inner, |s, d| ends::<16>(s, d, run)),
            33..=INLINE_RUN => sweep(src, dst, outer, inner, |s, d| ends::<32>(s, d, run)),
            _ => sweep(src, dst, outer, inner, |s, d| ptr::copy_nonoverlapping(s, d, run)),
        }
    }
}

/// Calls `cell` for every index of two loops.
///
/// # Safety
/// As for [`copy`], of the runs that `cell` moves.
#[inline(always)]
unsafe fn sweep(src: *const u8, dst: *mut u8, outer: &Loop, inner: &Loop, cell: impl Fn(*const u8, *mut u8)) {
    for row in 0..outer.count as isize {
        // SAFETY: as above.
        let (src, dst) =
            unsafe { (src.offset(row * outer.src as isize), dst.offset(row * outer.dst as isize)) };
        for col in 0..inner.count as isize {
            // SAFETY: as above.
            unsafe { cell(src.offset(col * inner.src as isize), dst.offset(col * inner.dst as isize)) }
        }
    }
}

/// Elements of `N` bytes. A transpose, whose outer loop is dense in the source and whose inner one is dense
/// in the destination, goes by tiles of `SIDE` elements: the rows of one are read and written whole, which
/// touches each cache line once whatever the strides.
///
/// # Safety
/// As for [`copy`] with runs of `N`.
unsafe fn cells<const N: usize, const SIDE: usize>(src: *const u8, dst: *mut u8, outer: &Loop, inner: &Loop) {
    let tiled = |l: &Loop| l.count - l.count % SIDE as u64;
    let (rows, cols) = (tiled(outer), tiled(inner));
    // SAFETY: as above, for parts of both loops; SIDE dense elements are SIDE indices of a loop.
    unsafe {
        if outer.src != N as i64 || inner.dst != N as i64 || rows == 0 || cols == 0 {
            return sweep(src, dst, outer, inner, |s, d| cell::<N>(s, d));
        }
        let every = |l: &Loop, count: u64| {
            let side = SIDE as i64;
            Loop { count: count / SIDE as u64, src: l.src * side, dst: l.dst * side }
        };
        sweep(src, dst, &every(outer, rows), &every(inner, cols), |s, d| {
            tile::<N, SIDE>(s, d, inner.src as isize, outer.dst as isize)
        });
        let from = |l: &Loop, at: u64| {
            let at = at as isize;
            (src.offset(at * l.src as isize), dst.offset(at * l.dst as isize))
        };
        let below = Loop { count: outer.count - rows, ..*outer };
        let (s, d) = from(outer, rows);
        sweep(s, d, &below, inner, |s, d| cell::<N>(s, d));
        let beside = Loop { count: inner.count - cols, ..*inner };
        let (s, d) = from(inner, cols);
        sweep(s, d, &Loop { count: rows, ..*outer }, &beside, |s, d| cell::<N>(s, d));
    }
}

/// Transposes `SIDE x SIDE` elements of `N` bytes, whose rows lie `src_step` and `dst_step` bytes apart.
///
/// # Safety
/// `SIDE * N` bytes can be read at each of the source's rows and written at each of the destination's.
#[inline(always)]
unsafe fn tile<const N: usize, const SIDE: usize>(
    src: *const u8,
    dst: *mut u8,
    src_step: isize,
    dst_step: isize,
) {
    let mut rows = [[[0; N]; SIDE]; SIDE];
    for (i, row) in rows.iter_mut().enumerate() {
        // SAFETY: as above; an array of bytes has no alignment.
        *row = unsafe { src.offset(i as isize * src_step).cast::<[[u8; N]; SIDE]>().read() };
    }
    for i in 0..SIDE {
        let mut column = [[0; N]; SIDE];
        for (cell, row) in column.iter_mut().zip(&rows) {
            *cell = row[i];
        }
        // SAFETY: as above.
        unsafe { dst.offset(i as isize * dst_step).cast::<[[u8; N]; SIDE]>().write(column) };
    }
}

/// # Safety
/// `N` bytes can be read at `src` and written at `dst`.
#[inline(always)]
unsafe fn cell<const N: usize>(src: *const u8, dst: *mut u8) {
    // SAFETY: as above; an array of bytes has no alignment.
    unsafe { dst.cast::<[u8; N]>().write(src.cast::<[u8; N]>().read()) }
}

/// Copies a run of `N..=2 * N` bytes as its first and its last `N`.
///
/// # Safety
/// `run` bytes can be read at `src` and written at `dst`, and `run` is in that range.
#[inline(always)]
unsafe fn ends<const N: usize>(src: *const u8, dst: *mut u8, run: usize) {
    // SAFETY: as above.
    unsafe {
        cell::<N>(src, dst);
        cell::<N>(src.add(run - N), dst.add(run - N));
    }
}
