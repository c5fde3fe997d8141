//! `narrow`, `select` and subscripts: which indices of a dimension stay.

use crate::op::{Index, OpProblem};
use crate::view::View;

impl View {
    pub(crate) fn narrow(&mut self, dim: i64, start: i64, length: i64) -> Result<(), OpProblem> {
        let d = self.dim(dim)?;
        let size = self.shape()[d];
        let refuse = OpProblem::Range { start, length, size };
        if length < 0 || start < -size || start > size {
            return Err(refuse);
        }
        let from = if start < 0 { start + size } else { start };
        if length > size - from {
            return Err(refuse);
        }
        self.slice_dim(d, from, length, 1);
        Ok(())
    }

    pub(crate) fn select(&mut self, dim: i64, index: i64) -> Result<(), OpProblem> {
        let d = self.dim(dim)?;
        let size = self.shape()[d];
        if !(-size..size).contains(&index) {
            return Err(OpProblem::Index { index, size });
        }
        let at = if index < 0 { index + size } else { index };
        self.slice_dim(d, at, 1, 1);
        self.drop_dim(d);
        Ok(())
    }

    pub(crate) fn get_item(&mut self, items: &[Index]) -> Result<(), OpProblem> {
        let ndim = self.ndim();
        let named = items.iter().filter(|i| matches!(i, Index::Int(_) | Index::Slice(..))).count();
        if named > ndim {
            return Err(OpProblem::Subscripts { items: named, ndim });
        }
        let mut d = 0;
        for item in items {
            match *item {
                Index::Int(index) => self.select(d as i64, index)?,
                Index::Slice(start, stop, step) => {
                    let step = step.unwrap_or(1);
                    if step <= 0 {
                        return Err(OpProblem::Step { step });
                    }
                    let size = *self.shape().get(d).ok_or(OpProblem::Dim { dim: d as i64, ndim })?;
                    let clamp = |i: i64| if i < 0 { i.saturating_add(size).max(0) } else { i.min(size) };
                    let from = clamp(start.unwrap_or(0));
                    let to = clamp(stop.unwrap_or(size)).max(from);
                    let len = (to - from) / step + i64::from((to - from) % step != 0);
                    self.slice_dim(d, from, len, step);
                    d += 1;
                }
                Index::Ellipsis => d += ndim - named,
                Index::NewAxis => {
                    if d > self.ndim() {
                        return Err(OpProblem::Dim { dim: d as i64, ndim });
                    }
                    self.insert_dim(d)?;
                    d += 1;
                }
            }
        }
        Ok(())
    }
}
