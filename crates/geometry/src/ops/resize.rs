//! `unsqueeze`, `squeeze`, `expand`: dimensions of size 1 come, go and repeat.

use crate::op::OpProblem;
use crate::view::{MAX_DIMS, View};

impl View {
    pub(crate) fn unsqueeze(&mut self, dim: i64) -> Result<(), OpProblem> {
        let n = self.ndim() as i64 + 1;
        if !(-n..n).contains(&dim) {
            return Err(OpProblem::Dim { dim, ndim: self.ndim() });
        }
        self.insert_dim(if dim < 0 { dim + n } else { dim } as usize)
    }

    pub(crate) fn squeeze(&mut self, dims: Option<&[i64]>) -> Result<(), OpProblem> {
        let mut which = match dims {
            None => (0..self.ndim()).collect(),
            Some(dims) => self
                .distinct(dims)?
                .ok_or_else(|| OpProblem::Permutation { dims: dims.to_vec(), ndim: self.ndim() })?,
        };
        which.sort_unstable();
        for d in which.into_iter().rev() {
            if self.shape().get(d) == Some(&1) {
                self.drop_dim(d);
            }
        }
        Ok(())
    }

    pub(crate) fn expand(&mut self, shape: &[i64]) -> Result<(), OpProblem> {
        let refuse = || OpProblem::Expand { shape: shape.to_vec() };
        if shape.len() > MAX_DIMS {
            return Err(OpProblem::TooManyDims { ndim: shape.len() });
        }
        let lead = shape.len().checked_sub(self.ndim()).ok_or_else(refuse)?;
        // Where a size stays as it is, -1 or equal; where it was 1 or was not there, any size of 0 or more.
        for (i, &want) in shape.iter().enumerate() {
            let have = i.checked_sub(lead).map(|d| self.shape()[d]);
            let fits = match have {
                None => want >= 0,
                Some(have) => want == -1 || want == have || (have == 1 && want >= 0),
            };
            if !fits {
                return Err(refuse());
            }
        }
        for (d, &want) in shape[lead..].iter().enumerate() {
            if want != -1 && want != self.shape()[d] {
                self.repeat_dim(d, want)?;
            }
        }
        // From the inside out: torch derives the stride of a new dimension from the expanded one after it.
        for &want in shape[..lead].iter().rev() {
            self.insert_dim(0)?;
            if want != 1 {
                self.repeat_dim(0, want)?;
            }
        }
        Ok(())
    }
}
