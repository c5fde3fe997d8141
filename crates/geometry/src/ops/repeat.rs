//! `repeat`, `tile`, `repeat_interleave`: indices more than once. All copy.

use crate::op::OpProblem;
use crate::view::View;

impl View {
    pub(crate) fn repeat(&mut self, repeats: &[i64]) -> Result<(), OpProblem> {
        let refuse = || OpProblem::Repeats { repeats: repeats.to_vec() };
        if repeats.len() < self.ndim() {
            return Err(refuse());
        }
        while self.ndim() < repeats.len() {
            self.insert_dim(0)?;
        }
        // torch only looks at the sizes that come out: none is negative where there was nothing to repeat.
        if repeats.iter().zip(self.shape()).any(|(&n, &size)| n < 0 && size > 0) {
            return Err(refuse());
        }
        self.repeat_dims(repeats)?;
        self.copy_row_major();
        Ok(())
    }

    pub(crate) fn tile(&mut self, dims: &[i64]) -> Result<(), OpProblem> {
        let missing = self.ndim().saturating_sub(dims.len());
        let repeats = [&vec![1; missing], dims].concat();
        self.repeat(&repeats)
    }

    pub(crate) fn repeat_interleave(&mut self, repeats: i64, dim: Option<i64>) -> Result<(), OpProblem> {
        let d = match dim {
            Some(dim) => self.dim(dim)?,
            None => {
                self.regroup(&[self.numel()], true)?;
                0
            }
        };
        if repeats < 0 {
            return Err(OpProblem::Repeats { repeats: vec![repeats] });
        }
        self.interleave_dim(d, repeats)?;
        self.copy_row_major();
        Ok(())
    }
}
