//! `unfold`: a dimension becomes overlapping windows of it.

use crate::op::OpProblem;
use crate::view::View;

impl View {
    pub(crate) fn unfold(&mut self, dimension: i64, size: i64, step: i64) -> Result<(), OpProblem> {
        let d = self.dim_or_scalar(dimension)?;
        let available = self.shape().get(d).copied().unwrap_or(1);
        if size < 0 || size > available || step <= 0 {
            return Err(OpProblem::Windows { size, step, available });
        }
        if self.ndim() == 0 {
            self.insert_dim(0)?;
            self.slice_dim(0, 0, size, 1);
            return Ok(());
        }
        self.unfold_dim(d, size, step)
    }
}
