//! Loop nests over the row-major positions of a box, cut so that every loop moves along one dimension.
//!
//! The law: the pieces that come out are disjoint and together are the nest that went in; in each, every loop
//! moves along one dimension by a fixed step and none carries over the end of it. A loop that would carry is
//! split there first. Clipping to a box keeps the law.

use restage_nest::{Loop, Nest};
use thiserror::Error;

/// Most pieces that one nest may be cut into. Real loaders need a handful; a chain that needs more is
/// refused instead of growing a plan without bound.
pub const MAX_PIECES: usize = 1 << 16;

/// One loop along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridLoop {
    /// Repetitions; at least 2.
    pub count: u64,
    /// The dimension that it moves along; with `step` 0 none.
    pub dim: usize,
    /// Indices per repetition, 0 or more.
    pub step: i64,
    /// Destination elements per repetition.
    pub dst: i64,
}

/// A nest of single elements whose source positions are indices of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridNest {
    /// Source index of the first element.
    pub origin: Vec<i64>,
    /// Destination position of the first element.
    pub dst: u64,
    /// Loops, in no particular order.
    pub loops: Vec<GridLoop>,
}

/// A nest that falls into more than [`MAX_PIECES`] pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the view falls into more than {MAX_PIECES} pieces")]
pub struct TooManyPieces;

/// Cuts a nest over the row-major positions of `shape` into pieces that move along single dimensions.
/// Positions must lie inside; units are elements.
///
/// # Errors
/// [`TooManyPieces`].
pub fn to_grid(nest: &Nest, shape: &[i64]) -> Result<Vec<GridNest>, TooManyPieces> {
    let mut out = Vec::new();
    if nest.is_empty() {
        return Ok(out);
    }
    let mut places = vec![1i64; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        places[d] = places[d + 1] * shape[d + 1];
    }
    let mut work = Work { src: nest.src as i64, dst: nest.dst, loops: nest.loops.clone() };
    work.loops.push(Loop { count: nest.run, src: 1, dst: 1 });
    work.loops.retain(|l| l.count > 1);
    for l in work.loops.iter_mut().filter(|l| l.src < 0) {
        let last = l.count as i64 - 1;
        work.src += l.src * last;
        work.dst = work.dst.wrapping_add_signed(l.dst * last);
        (l.src, l.dst) = (-l.src, -l.dst);
    }
    Space { shape, places: &places }.cut(work, &mut out)?;
    Ok(out)
}

#[derive(Clone)]
struct Work {
    src: i64,
    dst: u64,
    loops: Vec<Loop>,
}

impl Work {
    /// The same nest with loop `at` replaced, started `skip` of its repetitions later.
    fn with(&self, at: usize, skip: u64, replace: &[Loop]) -> Work {
        let l = self.loops[at];
        let mut loops = self.loops.clone();
        loops.splice(at..=at, replace.iter().copied().filter(|l| l.count > 1));
        Work {
            src: self.src + l.src * skip as i64,
            dst: self.dst.wrapping_add_signed(l.dst * skip as i64),
            loops,
        }
    }

    /// Loop `at` regrouped into an outer loop over whole periods of `period` repetitions, and what is left.
    fn periods(&self, at: usize, period: u64) -> Vec<Work> {
        let l = self.loops[at];
        let (whole, rest) = (l.count / period, l.count % period);
        let outer = Loop { count: whole, src: l.src * period as i64, dst: l.dst * period as i64 };
        let mut out = vec![self.with(at, 0, &[outer, Loop { count: period, ..l }])];
        if rest > 0 {
            out.push(self.with(at, whole * period, &[Loop { count: rest, ..l }]));
        }
        out
    }

    /// Loop `at` cut after `head` repetitions.
    fn cut_at(&self, at: usize, head: u64) -> Vec<Work> {
        let l = self.loops[at];
        vec![
            self.with(at, 0, &[Loop { count: head, ..l }]),
            self.with(at, head, &[Loop { count: l.count - head, ..l }]),
        ]
    }
}

struct Space<'a> {
    shape: &'a [i64],
    places: &'a [i64],
}

impl Space<'_> {
    fn cut(&self, work: Work, out: &mut Vec<GridNest>) -> Result<(), TooManyPieces> {
        let mut todo = vec![work];
        while let Some(work) = todo.pop() {
            if out.len() + todo.len() > MAX_PIECES {
                return Err(TooManyPieces);
            }
            match self.fits(&work) {
                Ok(piece) => out.push(piece),
                Err(parts) => todo.extend(parts.into_iter().rev()),
            }
        }
        Ok(())
    }

    /// The dimension that a stride moves along: the innermost whose place it reaches.
    fn dim_of(&self, stride: i64) -> usize {
        let reaches = |&d: &usize| self.shape[d] > 1 && self.places[d] <= stride;
        (0..self.shape.len()).find(reaches).unwrap_or(0)
    }

    /// The nest as one piece, or the parts that it must be cut into first.
    fn fits(&self, work: &Work) -> Result<GridNest, Vec<Work>> {
        let mut rest = work.src;
        let origin: Vec<i64> = self
            .places
            .iter()
            .map(|&place| {
                let digit = rest / place;
                rest %= place;
                digit
            })
            .collect();
        let mut loops = Vec::with_capacity(work.loops.len());
        for (at, l) in work.loops.iter().enumerate() {
            if l.src == 0 {
                loops.push(GridLoop { count: l.count, dim: 0, step: 0, dst: l.dst });
                continue;
            }
            let dim = self.dim_of(l.src);
            let place = self.places[dim];
            if l.src % place != 0 {
                // A step along several dimensions at once: whole periods of it are not.
                let period = (place / gcd(l.src, place)) as u64;
                return Err(if l.count > period {
                    work.periods(at, period)
                } else {
                    (0..l.count).map(|i| work.with(at, i, &[])).collect()
                });
            }
            loops.push(GridLoop { count: l.count, dim, step: l.src / place, dst: l.dst });
        }
        for (dim, &size) in self.shape.iter().enumerate() {
            let moves = |l: &GridLoop| l.step > 0 && l.dim == dim;
            let reach = |l: &GridLoop| l.step * (l.count as i64 - 1);
            let moved: i64 = loops.iter().filter(|l| moves(l)).map(reach).sum();
            if origin[dim] + moved < size {
                continue;
            }
            // A carry: the outermost of the loops along this dimension is cut.
            let outer = (0..loops.len()).filter(|&i| moves(&loops[i])).max_by_key(|&i| (loops[i].step, i));
            let Some(at) = outer else { continue };
            let GridLoop { count, step, .. } = loops[at];
            let inner = moved - reach(&loops[at]);
            let room = size - 1 - origin[dim] - inner;
            let head = if room < 0 { 0 } else { (room / step + 1) as u64 };
            let period = (size / gcd(step, size)) as u64;
            let aligned = origin[dim] < step;
            return Err(if count > period && (aligned || head == 0) {
                work.periods(at, period)
            } else {
                work.cut_at(at, head.max(1))
            });
        }
        Ok(GridNest { origin, dst: work.dst, loops })
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl GridNest {
    /// Lowest and one past the highest index in each dimension.
    pub fn hull(&self) -> (Vec<i64>, Vec<i64>) {
        let mut end: Vec<i64> = self.origin.iter().map(|o| o + 1).collect();
        for l in self.loops.iter().filter(|l| l.step > 0) {
            end[l.dim] += l.step * (l.count as i64 - 1);
        }
        (self.origin.clone(), end)
    }

    /// Number of elements.
    pub fn numel(&self) -> u64 {
        self.loops.iter().map(|l| l.count).product()
    }

    /// Adds to `out` the pieces that lie in the box `start .. end`.
    pub fn clip(&self, start: &[i64], end: &[i64], out: &mut Vec<GridNest>) {
        // Without a limit there is nothing to refuse.
        let _ = self.clip_from(0, start, end, usize::MAX, out);
    }

    /// As [`clip`](Self::clip), as long as `out` holds no more than `most` pieces.
    pub(crate) fn clip_within(
        &self,
        start: &[i64],
        end: &[i64],
        most: usize,
        out: &mut Vec<GridNest>,
    ) -> Result<(), TooManyPieces> {
        self.clip_from(0, start, end, most, out)
    }

    fn clip_from(
        &self,
        from: usize,
        start: &[i64],
        end: &[i64],
        most: usize,
        out: &mut Vec<GridNest>,
    ) -> Result<(), TooManyPieces> {
        for dim in from..self.origin.len() {
            let along = |l: &GridLoop| l.step > 0 && l.dim == dim;
            let reach = |l: &GridLoop| l.step * (l.count as i64 - 1);
            let low = self.origin[dim];
            let high = low + self.loops.iter().filter(|l| along(l)).map(reach).sum::<i64>();
            if high < start[dim] || low >= end[dim] {
                return Ok(());
            }
            if low >= start[dim] && high < end[dim] {
                continue;
            }
            let outer =
                (0..self.loops.len()).filter(|&i| along(&self.loops[i])).max_by_key(|&i| self.loops[i].step);
            let Some(at) = outer else { return Ok(()) };
            let l = self.loops[at];
            let inner = high - low - reach(&l);
            // Repetitions that lie inside as a whole, and those that reach in at all.
            let clamp = |i: i64| i.clamp(0, l.count as i64);
            let whole = (
                clamp(div_ceil(start[dim] - low, l.step)),
                clamp((end[dim] - 1 - inner - low).div_euclid(l.step) + 1),
            );
            let any = (
                clamp(div_ceil(start[dim] - low - inner, l.step)),
                clamp((end[dim] - 1 - low).div_euclid(l.step) + 1),
            );
            let whole = if whole.0 < whole.1 { whole } else { (any.1, any.1) };
            for i in (any.0..whole.0).chain(whole.1..any.1) {
                self.repeat(at, i, 1).clip_from(dim, start, end, most, out)?;
            }
            if whole.0 < whole.1 {
                self.repeat(at, whole.0, whole.1 - whole.0).clip_from(dim + 1, start, end, most, out)?;
            }
            return Ok(());
        }
        if out.len() >= most {
            return Err(TooManyPieces);
        }
        out.push(self.clone());
        Ok(())
    }

    /// Repetitions `from .. from + count` of one loop.
    fn repeat(&self, at: usize, from: i64, count: i64) -> GridNest {
        let mut piece = self.clone();
        let l = self.loops[at];
        piece.origin[l.dim] += l.step * from;
        piece.dst = piece.dst.wrapping_add_signed(l.dst * from);
        if count == 1 {
            piece.loops.remove(at);
        } else {
            piece.loops[at].count = count as u64;
        }
        piece
    }

    /// The nest over positions that lie `strides` apart along the dimensions, counted from index `base`.
    /// Runs are found; units stay elements.
    pub fn lower(&self, base: &[i64], strides: &[i64]) -> Nest {
        let at: i64 = (0..base.len()).map(|d| (self.origin[d] - base[d]) * strides[d]).sum();
        let src = |l: &GridLoop| if l.step == 0 { 0 } else { l.step * strides[l.dim] };
        let loops = self.loops.iter().map(|l| Loop { count: l.count, src: src(l), dst: l.dst }).collect();
        Nest { src: at as u64, dst: self.dst, run: 1, loops }.canonical()
    }
}

fn div_ceil(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn elements(piece: &GridNest) -> Vec<(Vec<i64>, u64)> {
        let mut out = vec![(piece.origin.clone(), piece.dst)];
        for l in &piece.loops {
            out = out
                .into_iter()
                .flat_map(|(index, dst)| {
                    (0..l.count as i64).map(move |i| {
                        let mut index = index.clone();
                        index[l.dim] += l.step * i;
                        (index, dst.wrapping_add_signed(l.dst * i))
                    })
                })
                .collect();
        }
        out
    }

    fn linear(index: &[i64], shape: &[i64]) -> i64 {
        index.iter().zip(shape).fold(0, |n, (i, s)| n * s + i)
    }

    #[test]
    fn a_flat_range_becomes_head_rows_and_tail() {
        let pieces = to_grid(&Nest::contiguous(3, 0, 14), &[6, 4]).unwrap();
        let shapes: Vec<u64> = pieces.iter().map(GridNest::numel).collect();
        assert_eq!(shapes, [1, 12, 1]);
    }

    #[test]
    fn rows_do_not_cost_pieces() {
        let rows = 1 << 40;
        let pieces = to_grid(&Nest::contiguous(0, 0, rows * 4), &[rows as i64, 4]).unwrap();
        assert_eq!(pieces.len(), 1);
    }

    #[test]
    fn a_nest_in_too_many_pieces_is_refused() {
        // A diagonal of a large square: every element is a piece of its own.
        let n = 1 << 20;
        let diagonal =
            Nest { src: 0, dst: 0, run: 1, loops: vec![Loop { count: n, src: n as i64 + 1, dst: 1 }] };
        assert_eq!(to_grid(&diagonal, &[n as i64, n as i64]), Err(TooManyPieces));
    }

    prop_compose! {
        fn nests()(shape in proptest::collection::vec(1i64..6, 1..4))
            (loops in proptest::collection::vec((1u64..6, -9i64..12), 0..3),
             src in 0i64..shape.iter().product::<i64>(), run in 1u64..8, shape in Just(shape))
            -> (Nest, Vec<i64>)
        {
            // Keep only loops that stay inside of the box.
            let total: i64 = shape.iter().product();
            let mut nest = Nest { src: src as u64, dst: 1000, run: 1, loops: vec![] };
            nest.run = run.min((total - src) as u64);
            let (mut low, mut high) = (src, src + nest.run as i64 - 1);
            for (k, (count, stride)) in loops.into_iter().enumerate() {
                let reach = stride * (count as i64 - 1);
                if low + reach.min(0) >= 0 && high + reach.max(0) < total {
                    low += reach.min(0);
                    high += reach.max(0);
                    nest.loops.push(Loop { count, src: stride, dst: [64, -9][k % 2] });
                }
            }
            (nest, shape)
        }
    }

    proptest! {
        #[test]
        fn pieces_are_the_nest((nest, shape) in nests()) {
            let mut expect: Vec<(i64, u64)> = nest
                .runs()
                .flat_map(|r| (0..r.len).map(move |i| ((r.src + i) as i64, r.dst + i)))
                .collect();
            let pieces = to_grid(&nest, &shape).unwrap();
            let mut got: Vec<(i64, u64)> = pieces
                .iter()
                .flat_map(elements)
                .map(|(index, dst)| {
                    assert!(index.iter().zip(&shape).all(|(i, n)| (0..*n).contains(i)), "carried");
                    (linear(&index, &shape), dst)
                })
                .collect();
            expect.sort_unstable();
            got.sort_unstable();
            prop_assert_eq!(got, expect);
        }

        #[test]
        fn clipping_keeps_what_is_inside((nest, shape) in nests(), cut in proptest::collection::vec((0i64..6, 0i64..6), 3)) {
            let start: Vec<i64> = (0..shape.len()).map(|d| cut[d].0.min(shape[d])).collect();
            let end: Vec<i64> = (0..shape.len()).map(|d| (start[d] + cut[d].1).min(shape[d])).collect();
            let inside = |i: &[i64]| (0..i.len()).all(|d| (start[d]..end[d]).contains(&i[d]));
            for piece in to_grid(&nest, &shape).unwrap() {
                let mut expect: Vec<_> = elements(&piece).into_iter().filter(|(i, _)| inside(i)).collect();
                let mut clipped = Vec::new();
                piece.clip(&start, &end, &mut clipped);
                let mut got: Vec<_> = clipped.iter().flat_map(elements).collect();
                expect.sort_unstable();
                got.sort_unstable();
                prop_assert_eq!(got, expect);
            }
        }
    }
}
