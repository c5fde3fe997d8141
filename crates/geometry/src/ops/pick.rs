//! `index_select` and `take` with a constant list of indices. Both copy.

use crate::op::OpProblem;
use crate::pick::runs_of;
use crate::view::View;

impl View {
    pub(crate) fn index_select(&mut self, dim: i64, index: &[i64]) -> Result<(), OpProblem> {
        let d = self.dim_or_scalar(dim)?;
        let size = self.shape().get(d).copied().unwrap_or(1);
        if let Some(&index) = index.iter().find(|i| !(0..size).contains(i)) {
            return Err(OpProblem::Index { index, size });
        }
        if self.ndim() > 0 {
            self.pick_dim(d, runs_of(index))?;
        } else if index.len() != 1 {
            // The result of a scalar stays one.
            return Err(OpProblem::Ndim { ndim: 0 });
        }
        self.copy_row_major();
        Ok(())
    }

    pub(crate) fn take(&mut self, index: &[i64]) -> Result<(), OpProblem> {
        let size = self.numel();
        if let Some(&index) = index.iter().find(|i| !(-size..size).contains(i)) {
            return Err(OpProblem::Index { index, size });
        }
        let wrapped: Vec<i64> = index.iter().map(|&i| if i < 0 { i + size } else { i }).collect();
        self.regroup(&[size], true)?;
        self.pick_dim(0, runs_of(&wrapped))?;
        self.copy_row_major();
        Ok(())
    }
}
