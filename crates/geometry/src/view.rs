//! A view of a source: torch's physical strides beside the logical gather.
//!
//! The physical side (shape, strides, offset) decides what torch would accept and where it would copy. The
//! logical side says which source element each index of the result is, and stays exact through copies. It is
//! a list of [`Layout`]s: the last maps the result's indices to positions in the row-major order of the one
//! before, the first to positions in the source. One layout nearly always is enough; a cut that it cannot
//! hold starts another.

use crate::layout::{Layout, row_major_strides};
use crate::op::OpProblem;

/// Most dimensions that a view may have.
pub const MAX_DIMS: usize = 16;

/// A view of a source tensor, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    shape: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
    copied: bool,
    stages: Vec<Layout>,
}

impl View {
    /// A whole row-major tensor of this shape.
    ///
    /// # Errors
    /// When a size is negative, there are more than [`MAX_DIMS`] dimensions, or the number of elements does
    /// not fit in 63 bits.
    pub fn whole(shape: &[i64]) -> Result<Self, OpProblem> {
        check_shape(shape)?;
        Ok(View {
            shape: shape.to_vec(),
            strides: row_major_strides(shape),
            offset: 0,
            copied: false,
            stages: vec![Layout::row_major(shape)],
        })
    }

    /// Sizes, in elements.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Strides as torch has them, in elements of the storage that the view looks at.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Position of the first element in that storage, in elements.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Number of dimensions.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// True when torch would have copied on the way, so that the view no longer shares the source's storage.
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// torch's `is_contiguous`: row-major, where dimensions of size 1 do not count.
    pub fn is_contiguous(&self) -> bool {
        let mut expect = 1;
        for (&n, &s) in self.shape.iter().zip(&self.strides).rev() {
            if n == 0 {
                return true;
            }
            if n != 1 && s != expect {
                return self.numel() == 0;
            }
            expect *= n;
        }
        true
    }

    /// The layouts that map the result's row-major order to the source's, source side first.
    pub(crate) fn stages(&self) -> &[Layout] {
        &self.stages
    }

    /// How many layouts the gather needs; 1 unless a cut fell across factors.
    pub fn stage_count(&self) -> usize {
        self.stages.len()
    }

    fn layout(&mut self) -> &mut Layout {
        // There is a first stage from `whole` on.
        let last = self.stages.len() - 1;
        &mut self.stages[last]
    }

    fn next_stage(&mut self) {
        let layout = Layout::row_major(&self.shape);
        self.stages.push(layout);
    }

    /// Keeps `len` indices from `start`, `step` apart; the caller has checked that they exist.
    pub(crate) fn slice_dim(&mut self, dim: usize, start: i64, len: i64, step: i64) {
        if !self.layout().slice(dim, start, len, step) {
            self.next_stage();
            self.layout().slice(dim, start, len, step);
        }
        self.offset += start * self.strides[dim];
        self.strides[dim] *= step;
        self.shape[dim] = len;
    }

    /// Drops a dimension of size 1.
    pub(crate) fn drop_dim(&mut self, dim: usize) {
        self.layout().remove(dim);
        self.shape.remove(dim);
        self.strides.remove(dim);
    }

    /// Inserts a dimension of size 1 with torch's stride.
    pub(crate) fn insert_dim(&mut self, dim: usize) -> Result<(), OpProblem> {
        if self.ndim() >= MAX_DIMS {
            return Err(OpProblem::TooManyDims { ndim: self.ndim() + 1 });
        }
        let stride = if dim < self.ndim() { self.shape[dim] * self.strides[dim] } else { 1 };
        self.layout().insert(dim);
        self.shape.insert(dim, 1);
        self.strides.insert(dim, stride);
        Ok(())
    }

    /// Reorders the dimensions; `order` is a permutation.
    pub(crate) fn reorder(&mut self, order: &[usize]) {
        self.layout().permute(order);
        self.shape = order.iter().map(|&d| self.shape[d]).collect();
        self.strides = order.iter().map(|&d| self.strides[d]).collect();
    }

    /// Repeats the single index of a dimension; the caller has checked that its size is 1.
    pub(crate) fn repeat_dim(&mut self, dim: usize, size: i64) -> Result<(), OpProblem> {
        let mut shape = self.shape.clone();
        shape[dim] = size;
        check_shape(&shape)?;
        self.layout().expand(dim, size);
        self.shape = shape;
        self.strides[dim] = 0;
        Ok(())
    }

    /// Regroups into a shape of as many elements. Without `may_copy` it must be a view of the storage;
    /// with it, torch copies where it cannot be.
    pub(crate) fn regroup(&mut self, shape: &[i64], may_copy: bool) -> Result<(), OpProblem> {
        check_shape(shape)?;
        match view_strides(&self.shape, &self.strides, shape) {
            Some(strides) => self.strides = strides,
            None if may_copy => {
                self.mark_copied();
                self.strides = row_major_strides(shape);
            }
            None => return Err(OpProblem::NotAView { shape: shape.to_vec() }),
        }
        if !self.layout().regroup(shape) {
            self.next_stage();
            self.layout().regroup(shape);
        }
        self.shape = shape.to_vec();
        Ok(())
    }

    /// torch's `contiguous`: new storage unless it already is.
    pub(crate) fn make_contiguous(&mut self) {
        if !self.is_contiguous() {
            self.mark_copied();
            self.strides = row_major_strides(&self.shape);
        }
    }

    fn mark_copied(&mut self) {
        self.copied = true;
        self.offset = 0;
    }
}

pub(crate) fn check_shape(shape: &[i64]) -> Result<(), OpProblem> {
    if shape.len() > MAX_DIMS {
        return Err(OpProblem::TooManyDims { ndim: shape.len() });
    }
    // Sizes of 0 do not hide an overflow of the others: strides are computed from those.
    let fits = shape.iter().try_fold(1i64, |n, &s| if s < 0 { None } else { n.checked_mul(s.max(1)) });
    if fits.is_none() {
        return Err(OpProblem::Shape { shape: shape.to_vec() });
    }
    Ok(())
}

/// Strides of `new` as a view of the same storage, or `None` where torch would refuse (`computeStride` of
/// ATen/TensorUtils): each chunk of old dimensions that is dense must be a product of new ones.
fn view_strides(old: &[i64], old_strides: &[i64], new: &[i64]) -> Option<Vec<i64>> {
    if old.is_empty() {
        return Some(vec![1; new.len()]);
    }
    if old.contains(&0) {
        return Some(if old == new { old_strides.to_vec() } else { row_major_strides(new) });
    }
    let mut strides = vec![0; new.len()];
    let mut view_d = new.len();
    let mut base = old_strides[old.len() - 1];
    let mut chunk = 1;
    let mut taken = 1;
    for d in (0..old.len()).rev() {
        chunk *= old[d];
        let ends = d == 0 || (old[d - 1] != 1 && old_strides[d - 1] != chunk * base);
        if !ends {
            continue;
        }
        while view_d > 0 && (taken < chunk || new[view_d - 1] == 1) {
            view_d -= 1;
            strides[view_d] = taken * base;
            taken *= new[view_d];
        }
        if taken != chunk {
            return None;
        }
        if d > 0 {
            base = old_strides[d - 1];
            chunk = 1;
            taken = 1;
        }
    }
    (view_d == 0).then_some(strides)
}
