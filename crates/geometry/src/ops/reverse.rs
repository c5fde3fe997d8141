//! `flip` and `roll`: the indices of a dimension in another order. Both copy.

use crate::op::OpProblem;
use crate::pick::Indices;
use crate::view::View;

impl View {
    pub(crate) fn flip(&mut self, dims: &[i64]) -> Result<(), OpProblem> {
        let refuse = || OpProblem::Permutation { dims: dims.to_vec(), ndim: self.ndim() };
        let mut which = self.distinct(dims)?.ok_or_else(refuse)?;
        which.retain(|&d| d < self.ndim());
        self.flip_dims(&which);
        self.copy_preserving();
        Ok(())
    }

    pub(crate) fn roll(&mut self, shifts: &[i64], dims: &[i64]) -> Result<(), OpProblem> {
        let refuse = OpProblem::Shifts { shifts: shifts.len(), dims: dims.len() };
        if let ([shift], []) = (shifts, dims) {
            let shape = self.shape().to_vec();
            self.regroup(&[self.numel()], true)?;
            self.roll_dim(0, *shift)?;
            self.copy_row_major();
            return self.regroup(&shape, false);
        }
        if shifts.is_empty() || shifts.len() != dims.len() {
            return Err(refuse);
        }
        // torch does not look at the dimensions of an empty tensor.
        if self.numel() == 0 {
            self.copy_preserving();
            return Ok(());
        }
        for (&shift, &dim) in shifts.iter().zip(dims) {
            let d = self.dim(dim)?;
            // torch joins the two halves again, which may keep the memory order of images.
            let (size, strides) = (self.shape()[d], self.strides().to_vec());
            let tail = shift.rem_euclid(size);
            let halves =
                [tail, size - tail].map(|n| [&self.shape()[..d], &[n], &self.shape()[d + 1..]].concat());
            self.roll_dim(d, shift)?;
            self.copy_joined(&halves, &strides);
        }
        Ok(())
    }

    fn roll_dim(&mut self, dim: usize, shift: i64) -> Result<(), OpProblem> {
        let size = self.shape()[dim];
        let shift = if size > 0 { shift.rem_euclid(size) } else { 0 };
        if shift == 0 {
            return Ok(());
        }
        let part = |start, len| Indices { start, len, step: 1 };
        self.pick_dim(dim, vec![part(size - shift, shift), part(0, size - shift)])
    }
}
