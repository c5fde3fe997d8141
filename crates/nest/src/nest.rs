//! The nest itself: one contiguous run, repeated by loops.

use thiserror::Error;

/// One loop of a [`Nest`]: `count` repetitions, the source and the destination advancing by their strides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Loop {
    /// Number of repetitions; 0 makes the whole nest empty.
    pub count: u64,
    /// Units that the source position advances by each time; 0 and negative values are legal.
    pub src: i64,
    /// Units that the destination position advances by each time.
    pub dst: i64,
}

/// A strided copy: `run` contiguous units from `src` to `dst`, repeated by `loops` (outermost first).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nest {
    /// Source position of the first run, in units.
    pub src: u64,
    /// Destination position of the first run, in units.
    pub dst: u64,
    /// Contiguous units of one run.
    pub run: u64,
    /// Repetitions, outermost first.
    pub loops: Vec<Loop>,
}

/// One contiguous piece of a [`Nest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Source position, in units.
    pub src: u64,
    /// Destination position, in units.
    pub dst: u64,
    /// Length, in units.
    pub len: u64,
}

/// One side of a nest: positions that are read, or positions that are written.
///
/// Strides are never negative here: a loop that runs backwards covers the same positions as one that runs
/// forwards from its other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strided {
    /// Lowest position.
    pub start: u64,
    /// Contiguous units of one run.
    pub run: u64,
    /// `(count, stride)`, largest stride first; every count is at least 2.
    pub loops: Vec<(u64, u64)>,
}

/// A nest whose positions cannot be represented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NestError {
    /// A position or a length left the range of 64 bits.
    #[error("a position of a strided copy does not fit in 64 bits")]
    Overflow,
    /// A position, a length or a stride is not a multiple of the block it must fall on.
    #[error("{what} {value} is not a multiple of the block of {block}")]
    OffBlock {
        /// Which quantity.
        what: &'static str,
        /// Its value, in units.
        value: i64,
        /// Units per block.
        block: u64,
    },
}

impl Nest {
    /// A single contiguous copy of `len` units.
    pub fn contiguous(src: u64, dst: u64, len: u64) -> Self {
        Nest { src, dst, run: len, loops: Vec::new() }
    }

    /// Number of runs of the flat form; 0 when nothing is copied.
    ///
    /// # Errors
    /// [`NestError::Overflow`] when it does not fit in 64 bits.
    pub fn run_count(&self) -> Result<u64, NestError> {
        if self.is_empty() {
            return Ok(0);
        }
        self.loops.iter().try_fold(1u64, |n, l| n.checked_mul(l.count)).ok_or(NestError::Overflow)
    }

    /// Units copied in all.
    ///
    /// # Errors
    /// [`NestError::Overflow`] when it does not fit in 64 bits.
    pub fn total(&self) -> Result<u64, NestError> {
        self.run_count()?.checked_mul(self.run).ok_or(NestError::Overflow)
    }

    /// True when nothing is copied.
    pub fn is_empty(&self) -> bool {
        self.run == 0 || self.loops.iter().any(|l| l.count == 0)
    }

    /// The same copy in canonical form: no loop of one repetition, destination strides not negative, loops
    /// ordered by destination stride, dense loops merged into each other and into the run.
    ///
    /// An empty nest comes back with no loops and `run` 0.
    ///
    /// ```
    /// use restage_nest::{Loop, Nest};
    /// // Rows of 4 units, dense on both sides: one run of 12.
    /// let rows = Nest { src: 8, dst: 0, run: 4, loops: vec![Loop { count: 3, src: 4, dst: 4 }] };
    /// assert_eq!(rows.canonical(), Nest::contiguous(8, 0, 12));
    /// ```
    pub fn canonical(mut self) -> Self {
        if self.is_empty() {
            return Nest { src: self.src, dst: self.dst, run: 0, loops: Vec::new() };
        }
        self.loops.retain(|l| l.count != 1);
        for l in &mut self.loops {
            if l.dst < 0 {
                let last = l.count - 1;
                self.src = self.src.wrapping_add_signed(l.src.wrapping_mul(last as i64));
                self.dst = self.dst.wrapping_add_signed(l.dst.wrapping_mul(last as i64));
                (l.src, l.dst) = (-l.src, -l.dst);
            }
        }
        // Outermost first; the source stride decides where destination strides tie.
        self.loops.sort_by_key(|l| (std::cmp::Reverse(l.dst), std::cmp::Reverse(l.src.unsigned_abs())));
        // Inner loops first: absorb dense ones into the run, then merge neighbours. What is kept gathers at the end.
        let mut kept = self.loops.len();
        for at in (0..self.loops.len()).rev() {
            let l = self.loops[at];
            let inner = self.loops.get(kept).copied();
            match inner {
                None if l.src == self.run as i64 && l.dst == self.run as i64 => self.run *= l.count,
                Some(inner)
                    if Some(l.src) == inner.src.checked_mul(inner.count as i64)
                        && Some(l.dst) == inner.dst.checked_mul(inner.count as i64) =>
                {
                    self.loops[kept].count *= l.count;
                }
                _ => {
                    kept -= 1;
                    self.loops[kept] = l;
                }
            }
        }
        self.loops.drain(..kept);
        self
    }

    /// The nest with every unit replaced by `bytes / block` units: elements to bytes, where `block`
    /// elements are stored in `bytes` bytes. `src_base` is added to the source after scaling.
    ///
    /// # Errors
    /// [`NestError::OffBlock`] when a position, run or stride cuts a block, [`NestError::Overflow`] when a
    /// result does not fit.
    pub fn scaled(&self, block: u64, bytes: u64, src_base: u64) -> Result<Self, NestError> {
        self.clone().into_scaled(block, bytes, src_base)
    }

    /// As [`scaled`](Self::scaled), of a nest that is not needed any more.
    ///
    /// # Errors
    /// Those of [`scaled`](Self::scaled).
    pub fn into_scaled(mut self, block: u64, bytes: u64, src_base: u64) -> Result<Self, NestError> {
        let unsigned = |what, value: u64| {
            if !value.is_multiple_of(block) {
                return Err(NestError::OffBlock { what, value: value as i64, block });
            }
            (value / block).checked_mul(bytes).ok_or(NestError::Overflow)
        };
        let signed = |what, value: i64| {
            if !value.unsigned_abs().is_multiple_of(block) {
                return Err(NestError::OffBlock { what, value, block });
            }
            (value / block as i64).checked_mul(bytes as i64).ok_or(NestError::Overflow)
        };
        self.src = unsigned("source position", self.src)?.checked_add(src_base).ok_or(NestError::Overflow)?;
        self.dst = unsigned("destination position", self.dst)?;
        self.run = unsigned("run", self.run)?;
        for l in &mut self.loops {
            l.src = signed("source stride", l.src)?;
            l.dst = signed("destination stride", l.dst)?;
        }
        Ok(self)
    }

    /// Lowest position that is read, and one past the highest; equal when nothing is copied.
    ///
    /// # Errors
    /// [`NestError::Overflow`] when a position leaves `0..2^64`.
    pub fn src_hull(&self) -> Result<(u64, u64), NestError> {
        if self.is_empty() {
            return Ok((self.src, self.src));
        }
        let (mut low, mut high) = (self.src, self.src.checked_add(self.run).ok_or(NestError::Overflow)?);
        for l in self.loops.iter().filter(|l| l.count > 1) {
            let reach = l.src.unsigned_abs().checked_mul(l.count - 1).ok_or(NestError::Overflow)?;
            if l.src < 0 {
                low = low.checked_sub(reach).ok_or(NestError::Overflow)?;
            } else {
                high = high.checked_add(reach).ok_or(NestError::Overflow)?;
            }
        }
        Ok((low, high))
    }

    /// The flat form: every contiguous run, the innermost loop fastest.
    pub fn runs(&self) -> Runs<'_> {
        Runs {
            nest: self,
            index: vec![0; self.loops.len()],
            next: (!self.is_empty()).then_some((self.src, self.dst)),
        }
    }

    /// The positions that are written.
    ///
    /// # Errors
    /// [`NestError::Overflow`] when a position leaves `0..2^64`.
    pub fn dst_side(&self) -> Result<Strided, NestError> {
        self.side(self.dst, |l| l.dst)
    }

    /// The positions that are read.
    ///
    /// # Errors
    /// [`NestError::Overflow`] when a position leaves `0..2^64`.
    pub fn src_side(&self) -> Result<Strided, NestError> {
        self.side(self.src, |l| l.src)
    }

    fn side(&self, start: u64, stride: impl Fn(&Loop) -> i64) -> Result<Strided, NestError> {
        if self.is_empty() {
            return Ok(Strided { start, run: 0, loops: Vec::new() });
        }
        let mut side = Strided { start, run: self.run, loops: Vec::with_capacity(self.loops.len()) };
        for l in self.loops.iter().filter(|l| l.count > 1) {
            let s = stride(l);
            if s < 0 {
                let back = s.unsigned_abs().checked_mul(l.count - 1).ok_or(NestError::Overflow)?;
                side.start = side.start.checked_sub(back).ok_or(NestError::Overflow)?;
            }
            side.loops.push((l.count, s.unsigned_abs()));
        }
        side.loops.sort_by_key(|&(_, s)| std::cmp::Reverse(s));
        side.end()?;
        Ok(side)
    }
}

impl Strided {
    /// One past the highest position.
    ///
    /// # Errors
    /// [`NestError::Overflow`] when it does not fit in 64 bits.
    pub fn end(&self) -> Result<u64, NestError> {
        let mut end = self.start.checked_add(self.run).ok_or(NestError::Overflow)?;
        for &(count, stride) in &self.loops {
            let reach = stride.checked_mul(count - 1).ok_or(NestError::Overflow)?;
            end = end.checked_add(reach).ok_or(NestError::Overflow)?;
        }
        Ok(end)
    }

    /// The positions with every unit replaced by `bytes / block` units: elements to bytes, where `block` elements
    /// are stored in `bytes` bytes.
    ///
    /// # Errors
    /// [`NestError::OffBlock`] when a position, run or stride cuts a block, [`NestError::Overflow`] when a result
    /// does not fit.
    pub fn scaled(mut self, block: u64, bytes: u64) -> Result<Self, NestError> {
        let scale = |what, value: u64| match value.is_multiple_of(block) {
            true => (value / block).checked_mul(bytes).ok_or(NestError::Overflow),
            false => Err(NestError::OffBlock { what, value: value as i64, block }),
        };
        self.start = scale("position", self.start)?;
        self.run = scale("run", self.run)?;
        for (_, stride) in &mut self.loops {
            *stride = scale("stride", *stride)?;
        }
        self.end()?;
        Ok(self)
    }

    /// Number of runs.
    pub fn run_count(&self) -> u64 {
        if self.run == 0 { 0 } else { self.loops.iter().map(|l| l.0).product() }
    }
}

/// Iterator over the runs of a [`Nest`]; see [`Nest::runs`].
#[derive(Debug, Clone)]
pub struct Runs<'a> {
    nest: &'a Nest,
    index: Vec<u64>,
    next: Option<(u64, u64)>,
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let (src, dst) = self.next?;
        let (mut s, mut d) = (src, dst);
        self.next = None;
        for (i, l) in self.nest.loops.iter().enumerate().rev() {
            if self.index[i] + 1 < l.count {
                self.index[i] += 1;
                self.next = Some((s.wrapping_add_signed(l.src), d.wrapping_add_signed(l.dst)));
                break;
            }
            let back = self.index[i] as i64;
            s = s.wrapping_add_signed(l.src.wrapping_mul(-back));
            d = d.wrapping_add_signed(l.dst.wrapping_mul(-back));
            self.index[i] = 0;
        }
        Some(Run { src, dst, len: self.nest.run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn l(count: u64, src: i64, dst: i64) -> Loop {
        Loop { count, src, dst }
    }

    #[test]
    fn runs_walk_the_innermost_loop_fastest() {
        let nest = Nest { src: 100, dst: 0, run: 2, loops: vec![l(2, 10, 4), l(2, 3, 2)] };
        let runs: Vec<_> = nest.runs().map(|r| (r.src, r.dst, r.len)).collect();
        assert_eq!(runs, [(100, 0, 2), (103, 2, 2), (110, 4, 2), (113, 6, 2)]);
    }

    #[test]
    fn canonical_keeps_the_pairs_of_positions() {
        let nest = Nest { src: 7, dst: 30, run: 1, loops: vec![l(3, 1, 1), l(1, 9, 9), l(4, -2, -5)] };
        let pairs = |n: &Nest| {
            let mut v: Vec<_> =
                n.runs().flat_map(|r| (0..r.len).map(move |i| (r.src + i, r.dst + i))).collect();
            v.sort_unstable();
            v
        };
        assert_eq!(pairs(&nest), pairs(&nest.clone().canonical()));
        assert!(nest.canonical().loops.iter().all(|l| l.dst > 0 && l.count > 1));
    }

    #[test]
    fn an_empty_loop_empties_the_nest() {
        let nest = Nest { src: 0, dst: 0, run: 4, loops: vec![l(0, 1, 1)] };
        assert_eq!((nest.run_count(), nest.total(), nest.runs().count()), (Ok(0), Ok(0), 0));
        assert_eq!(nest.canonical().run, 0);
    }

    #[test]
    fn scaling_refuses_a_cut_block() {
        let nest = Nest { src: 32, dst: 0, run: 48, loops: vec![] };
        assert_eq!(nest.scaled(32, 20, 0), Err(NestError::OffBlock { what: "run", value: 48, block: 32 }));
        let nest = Nest { src: 32, dst: 64, run: 96, loops: vec![l(2, 320, 96)] };
        let bytes = Nest { src: 1020, dst: 40, run: 60, loops: vec![l(2, 200, 60)] };
        assert_eq!(nest.scaled(32, 20, 1000), Ok(bytes));
    }

    #[test]
    fn sides_past_64_bits_are_refused() {
        let nest = Nest::contiguous(u64::MAX - 3, 0, 8);
        assert_eq!(nest.src_side(), Err(NestError::Overflow));
        let nest = Nest { src: 4, dst: 0, run: 1, loops: vec![l(3, -3, 1)] };
        assert_eq!(nest.src_side(), Err(NestError::Overflow));
    }
}
