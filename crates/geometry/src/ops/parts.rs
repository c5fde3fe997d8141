//! `chunk`, `split`, `unbind`, `tensor_split` and its kin: one part of a dimension cut in several.

use crate::op::{OpProblem, SplitAt};
use crate::view::View;

/// How a dimension is cut; never a list as long as the number of equal parts.
pub(crate) enum Parts {
    /// `count` parts of `size` indices each; the first `larger` of them have one more, and none reaches past
    /// the end of the dimension.
    Even { count: i64, size: i64, larger: i64, end: i64 },
    /// Start and length of each.
    Listed(Vec<(i64, i64)>),
}

impl Parts {
    /// Number of parts.
    pub(crate) fn count(&self) -> i64 {
        match self {
            Parts::Even { count, .. } => *count,
            Parts::Listed(parts) => parts.len() as i64,
        }
    }

    /// Start and length of a part; negative indices count from the end.
    fn get(&self, index: i64) -> Option<(i64, i64)> {
        let at = if index < 0 { index.checked_add(self.count())? } else { index };
        if !(0..self.count()).contains(&at) {
            return None;
        }
        Some(match self {
            Parts::Even { size, larger, end, .. } => {
                let start = (at * size + at.min(*larger)).min(*end);
                (start, (size + i64::from(at < *larger)).min(end - start))
            }
            Parts::Listed(parts) => parts[at as usize],
        })
    }

    /// Parts of `part` indices each, and a shorter last one.
    fn of_size(part: i64, end: i64) -> Parts {
        Parts::Even { count: end / part + i64::from(end % part != 0), size: part, larger: 0, end }
    }
}

impl View {
    /// The parts of torch's `chunk`, which may give fewer than asked for.
    pub(crate) fn chunk_parts(&self, chunks: i64, dim: i64) -> Result<Parts, OpProblem> {
        let size = self.shape()[self.dim(dim)?];
        if chunks <= 0 {
            return Err(OpProblem::Parts { sizes: vec![chunks], size });
        }
        Ok(match size {
            0 => Parts::Even { count: chunks, size: 0, larger: 0, end: 0 },
            _ => Parts::of_size(size / chunks + i64::from(size % chunks != 0), size),
        })
    }

    /// The parts of torch's `split` by one size.
    pub(crate) fn split_parts(&self, part: i64, dim: i64) -> Result<Parts, OpProblem> {
        let size = self.shape()[self.dim(dim)?];
        if part < 0 || (part == 0 && size != 0) {
            return Err(OpProblem::Parts { sizes: vec![part], size });
        }
        Ok(if size == 0 { Parts::Listed(vec![(0, 0)]) } else { Parts::of_size(part.min(size), size) })
    }

    /// The parts of torch's `split` by a list of sizes.
    pub(crate) fn size_parts(&self, sizes: &[i64], dim: i64) -> Result<Parts, OpProblem> {
        let size = self.shape()[self.dim(dim)?];
        let refuse = || OpProblem::Parts { sizes: sizes.to_vec(), size };
        let mut parts = Vec::with_capacity(sizes.len());
        let mut start = 0i64;
        for &n in sizes {
            if n < 0 {
                return Err(refuse());
            }
            parts.push((start, n));
            start = start.checked_add(n).ok_or_else(refuse)?;
        }
        if start == size { Ok(Parts::Listed(parts)) } else { Err(refuse()) }
    }

    /// The parts of torch's `tensor_split`.
    pub(crate) fn tensor_split_parts(&self, at: &SplitAt, dim: i64) -> Result<Parts, OpProblem> {
        let end = self.shape()[self.dim(dim)?];
        match at {
            SplitAt::Sections(n) if *n <= 0 => Err(OpProblem::Parts { sizes: vec![*n], size: end }),
            SplitAt::Sections(n) => Ok(Parts::Even { count: *n, size: end / n, larger: end % n, end }),
            SplitAt::Indices(indices) => {
                let clamp = |&i: &i64| if i < 0 { i.saturating_add(end).max(0) } else { i.min(end) };
                let starts = std::iter::once(0).chain(indices.iter().map(clamp));
                let ends = indices.iter().map(clamp).chain(std::iter::once(end));
                Ok(Parts::Listed(starts.zip(ends).map(|(from, to)| (from, (to - from).max(0))).collect()))
            }
        }
    }

    pub(crate) fn chunk(&mut self, chunks: i64, dim: i64, index: i64) -> Result<(), OpProblem> {
        let parts = self.chunk_parts(chunks, dim)?;
        self.take_part(&parts, dim, index)
    }

    pub(crate) fn split(&mut self, size: i64, dim: i64, index: i64) -> Result<(), OpProblem> {
        let parts = self.split_parts(size, dim)?;
        self.take_part(&parts, dim, index)
    }

    pub(crate) fn split_sizes(&mut self, sizes: &[i64], dim: i64, index: i64) -> Result<(), OpProblem> {
        let parts = self.size_parts(sizes, dim)?;
        self.take_part(&parts, dim, index)
    }

    pub(crate) fn unbind(&mut self, dim: i64, index: i64) -> Result<(), OpProblem> {
        self.select(dim, index)
    }

    pub(crate) fn tensor_split(&mut self, at: &SplitAt, dim: i64, index: i64) -> Result<(), OpProblem> {
        let parts = self.tensor_split_parts(at, dim)?;
        self.take_part(&parts, dim, index)
    }

    pub(crate) fn hsplit(&mut self, at: &SplitAt, index: i64) -> Result<(), OpProblem> {
        self.split_evenly(at, if self.ndim() == 1 { 0 } else { 1 }, 1, index)
    }

    pub(crate) fn vsplit(&mut self, at: &SplitAt, index: i64) -> Result<(), OpProblem> {
        self.split_evenly(at, 0, 2, index)
    }

    pub(crate) fn dsplit(&mut self, at: &SplitAt, index: i64) -> Result<(), OpProblem> {
        self.split_evenly(at, 2, 3, index)
    }

    /// `tensor_split` along a fixed dimension, where a number of sections must come out even.
    fn split_evenly(&mut self, at: &SplitAt, dim: usize, least: usize, index: i64) -> Result<(), OpProblem> {
        if self.ndim() < least {
            return Err(OpProblem::Ndim { ndim: self.ndim() });
        }
        let size = self.shape()[dim];
        match at {
            SplitAt::Sections(n) if *n == 0 || size % n != 0 => {
                Err(OpProblem::Parts { sizes: vec![*n], size })
            }
            _ => self.tensor_split(at, dim as i64, index),
        }
    }

    fn take_part(&mut self, parts: &Parts, dim: i64, index: i64) -> Result<(), OpProblem> {
        let refuse = OpProblem::Index { index, size: parts.count() };
        let (start, length) = parts.get(index).ok_or(refuse)?;
        self.narrow(dim, start, length)
    }
}
