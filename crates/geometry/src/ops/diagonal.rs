//! `diagonal`: two dimensions become the one along which both advance.

use crate::op::OpProblem;
use crate::view::View;

impl View {
    pub(crate) fn diagonal(&mut self, offset: i64, dim1: i64, dim2: i64) -> Result<(), OpProblem> {
        let (a, b) = (self.dim_or_scalar(dim1)?, self.dim_or_scalar(dim2)?);
        if a == b {
            return Err(OpProblem::SameDim { dim1, dim2 });
        }
        // Above the main diagonal the second dimension starts later, below it the first does.
        let (start1, start2) = if offset >= 0 { (0, offset) } else { (offset.saturating_neg(), 0) };
        let rest = |start: i64, d: usize| (self.shape()[d] - start).max(0);
        let len = rest(start1, a).min(rest(start2, b));
        // An empty diagonal starts where the tensor does.
        let (start1, start2) = if len > 0 { (start1, start2) } else { (0, 0) };
        self.slice_dim(a, start1, len, 1);
        self.slice_dim(b, start2, len, 1);
        self.join_diagonal(a, b);
        Ok(())
    }
}
