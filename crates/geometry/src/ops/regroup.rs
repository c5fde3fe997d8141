//! `view`, `reshape`, `flatten`, `unflatten`: the same elements in another shape.

use crate::op::OpProblem;
use crate::view::View;

impl View {
    pub(crate) fn reshape(&mut self, shape: &[i64], may_copy: bool) -> Result<(), OpProblem> {
        let shape = infer(shape, self.numel())?;
        self.regroup(&shape, may_copy)
    }

    pub(crate) fn flatten(&mut self, start_dim: i64, end_dim: i64) -> Result<(), OpProblem> {
        let (start, end) = (self.dim_or_scalar(start_dim)?, self.dim_or_scalar(end_dim)?);
        if start > end {
            return Err(OpProblem::Range { start: start_dim, length: end_dim, size: self.ndim() as i64 });
        }
        if self.ndim() == 0 {
            return self.regroup(&[1], true);
        }
        if start == end {
            return Ok(());
        }
        let shape = self.shape();
        let joined = shape[start..=end].iter().product();
        let flat = [&shape[..start], &[joined], &shape[end + 1..]].concat();
        self.regroup(&flat, true)
    }

    pub(crate) fn unflatten(&mut self, dim: i64, sizes: &[i64]) -> Result<(), OpProblem> {
        let d = self.dim(dim)?;
        let size = self.shape()[d];
        if sizes.is_empty() {
            return Err(OpProblem::Numel { numel: size, shape: Vec::new() });
        }
        let sizes = infer(sizes, size)?;
        let shape = [&self.shape()[..d], &sizes, &self.shape()[d + 1..]].concat();
        self.regroup(&shape, false)
    }
}

/// Fills in a -1 and checks that the sizes make `numel` elements.
fn infer(shape: &[i64], numel: i64) -> Result<Vec<i64>, OpProblem> {
    let refuse = || OpProblem::Numel { numel, shape: shape.to_vec() };
    if shape.iter().any(|&n| n < -1) {
        return Err(OpProblem::Shape { shape: shape.to_vec() });
    }
    let mut known = shape.iter().filter(|&&n| n != -1).copied();
    let known = known.try_fold(1i64, |n, s| n.checked_mul(s)).ok_or_else(refuse)?;
    let open: Vec<usize> = (0..shape.len()).filter(|&i| shape[i] == -1).collect();
    match open[..] {
        [] if known == numel => Ok(shape.to_vec()),
        // With a size of 0 any value would do for the open one: torch refuses to guess.
        [at] if known != 0 && numel % known == 0 => {
            let mut shape = shape.to_vec();
            shape[at] = numel / known;
            Ok(shape)
        }
        _ => Err(refuse()),
    }
}
