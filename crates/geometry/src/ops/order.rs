//! `transpose`, `t`, `permute`, `movedim`: the order of the dimensions.

use crate::op::OpProblem;
use crate::view::View;

impl View {
    pub(crate) fn transpose(&mut self, a: i64, b: i64) -> Result<(), OpProblem> {
        let (a, b) = (self.dim_or_scalar(a)?, self.dim_or_scalar(b)?);
        if self.ndim() > 0 {
            let mut order: Vec<usize> = (0..self.ndim()).collect();
            order.swap(a, b);
            self.reorder(&order);
        }
        Ok(())
    }

    pub(crate) fn t(&mut self) -> Result<(), OpProblem> {
        match self.ndim() {
            0 | 1 => Ok(()),
            2 => self.transpose(0, 1),
            ndim => Err(OpProblem::Ndim { ndim }),
        }
    }

    pub(crate) fn permute(&mut self, dims: &[i64]) -> Result<(), OpProblem> {
        let ndim = self.ndim();
        let refuse = || OpProblem::Permutation { dims: dims.to_vec(), ndim };
        if dims.len() != ndim {
            return Err(refuse());
        }
        let order = self.distinct(dims)?.ok_or_else(refuse)?;
        self.reorder(&order);
        Ok(())
    }

    pub(crate) fn move_dim(&mut self, source: &[i64], destination: &[i64]) -> Result<(), OpProblem> {
        let ndim = self.ndim();
        let refuse = |dims: &[i64]| OpProblem::Permutation { dims: dims.to_vec(), ndim };
        if source.len() != destination.len() {
            return Err(refuse(destination));
        }
        let from = self.distinct(source)?.ok_or_else(|| refuse(source))?;
        let to = self.distinct(destination)?.ok_or_else(|| refuse(destination))?;
        if ndim == 0 {
            return Ok(());
        }
        let mut order = vec![usize::MAX; ndim];
        for (&f, &t) in from.iter().zip(&to) {
            order[t] = f;
        }
        let mut rest = (0..ndim).filter(|d| !from.contains(d));
        for slot in order.iter_mut().filter(|slot| **slot == usize::MAX) {
            if let Some(d) = rest.next() {
                *slot = d;
            }
        }
        self.reorder(&order);
        Ok(())
    }

    /// The wrapped dimensions, or `None` when one is named twice.
    pub(crate) fn distinct(&self, dims: &[i64]) -> Result<Option<Vec<usize>>, OpProblem> {
        let mut out: Vec<usize> = Vec::with_capacity(dims.len());
        for &dim in dims {
            let d = self.dim_or_scalar(dim)?;
            if out.contains(&d) {
                return Ok(None);
            }
            out.push(d);
        }
        Ok(Some(out))
    }
}
