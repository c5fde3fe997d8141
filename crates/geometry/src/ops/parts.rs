//! `chunk`, `split`, `unbind`: one part of a dimension cut in several.

use crate::op::OpProblem;
use crate::view::View;

impl View {
    /// Start and length of every part of torch's `chunk`, which may give fewer than asked for.
    pub(crate) fn chunk_parts(&self, chunks: i64, dim: i64) -> Result<Vec<(i64, i64)>, OpProblem> {
        let size = self.shape()[self.dim(dim)?];
        if chunks <= 0 {
            return Err(OpProblem::Parts { sizes: vec![chunks], size });
        }
        if size == 0 {
            return Ok(vec![(0, 0); chunks as usize]);
        }
        Ok(even_parts(size, size / chunks + i64::from(size % chunks != 0)))
    }

    /// Start and length of every part of torch's `split` by one size.
    pub(crate) fn split_parts(&self, part: i64, dim: i64) -> Result<Vec<(i64, i64)>, OpProblem> {
        let size = self.shape()[self.dim(dim)?];
        if part < 0 || (part == 0 && size != 0) {
            return Err(OpProblem::Parts { sizes: vec![part], size });
        }
        Ok(if size == 0 { vec![(0, 0)] } else { even_parts(size, part) })
    }

    /// Start and length of every part of torch's `split` by a list of sizes.
    pub(crate) fn size_parts(&self, sizes: &[i64], dim: i64) -> Result<Vec<(i64, i64)>, OpProblem> {
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
        if start == size { Ok(parts) } else { Err(refuse()) }
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

    fn take_part(&mut self, parts: &[(i64, i64)], dim: i64, index: i64) -> Result<(), OpProblem> {
        let count = parts.len() as i64;
        let at = if index < 0 { index + count } else { index };
        let refuse = OpProblem::Index { index, size: count };
        let &(start, length) = usize::try_from(at).ok().and_then(|i| parts.get(i)).ok_or(refuse)?;
        self.narrow(dim, start, length)
    }
}

fn even_parts(size: i64, part: i64) -> Vec<(i64, i64)> {
    let part = part.min(size);
    (0..size).step_by(part as usize).map(|start| (start, part.min(size - start))).collect()
}
