//! A view of a source: torch's physical strides beside the logical gather.
//!
//! The physical side (shape, strides, offset) decides what torch would accept and where it would copy. The
//! logical side says which source element each index of the result is, and stays exact through copies. It is
//! a list of stages: the last maps the result's indices to positions in the row-major order of the one
//! before, the first to positions in the source. One stage, a [`Layout`], nearly always is enough; a cut that
//! it cannot hold starts another, and indices in an irregular order are a [`Pick`].

use crate::layout::{Layout, row_major_strides};
use crate::op::OpProblem;
use crate::pick::{Indices, Pick, factors_of};
use crate::strides::{joined_strides, ordered_strides, preserved_strides, view_strides};

/// Most dimensions that a view may have.
pub const MAX_DIMS: usize = 16;

/// A view of a source tensor, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    shape: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
    copied: bool,
    stages: Vec<Stage>,
}

/// One step of the logical side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    Layout(Layout),
    Pick(Pick),
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
            stages: vec![Stage::Layout(Layout::row_major(shape))],
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

    /// The stages that map the result's row-major order to the source's, source side first.
    pub(crate) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// How many stages the gather needs; 1 unless a cut fell across factors or indices were reordered
    /// irregularly.
    pub fn stage_count(&self) -> usize {
        self.stages.len()
    }

    /// Applies `f` to the last layout. Where that says no, or the last stage is no layout, to a new one over
    /// the row-major order of what there is, which has one factor a dimension and never says no.
    fn on_layout(&mut self, f: impl Fn(&mut Layout) -> bool) {
        if let Some(Stage::Layout(last)) = self.stages.last_mut()
            && f(last)
        {
            return;
        }
        let mut layout = Layout::row_major(&self.shape);
        f(&mut layout);
        self.stages.push(Stage::Layout(layout));
    }

    /// Keeps `len` indices from `start`, `step` apart; the caller has checked that they exist.
    pub(crate) fn slice_dim(&mut self, dim: usize, start: i64, len: i64, step: i64) {
        self.on_layout(|l| l.slice(dim, start, len, step));
        // The stride of a single index may be anything, and wraps as in torch; nothing is reached by it.
        self.offset = self.offset.wrapping_add(start.wrapping_mul(self.strides[dim]));
        self.strides[dim] = self.strides[dim].wrapping_mul(step);
        self.shape[dim] = len;
    }

    /// Drops a dimension of size 1.
    pub(crate) fn drop_dim(&mut self, dim: usize) {
        self.on_layout(|l| {
            l.remove(dim);
            true
        });
        self.shape.remove(dim);
        self.strides.remove(dim);
    }

    /// Inserts a dimension of size 1 with torch's stride.
    pub(crate) fn insert_dim(&mut self, dim: usize) -> Result<(), OpProblem> {
        if self.ndim() >= MAX_DIMS {
            return Err(OpProblem::TooManyDims { ndim: self.ndim() + 1 });
        }
        let stride = if dim < self.ndim() { self.shape[dim].wrapping_mul(self.strides[dim]) } else { 1 };
        self.on_layout(|l| {
            l.insert(dim);
            true
        });
        self.shape.insert(dim, 1);
        self.strides.insert(dim, stride);
        Ok(())
    }

    /// Reorders the dimensions; `order` is a permutation.
    pub(crate) fn reorder(&mut self, order: &[usize]) {
        self.on_layout(|l| {
            l.permute(order);
            true
        });
        self.shape = order.iter().map(|&d| self.shape[d]).collect();
        self.strides = order.iter().map(|&d| self.strides[d]).collect();
    }

    /// Repeats the single index of a dimension; the caller has checked that its size is 1.
    pub(crate) fn repeat_dim(&mut self, dim: usize, size: i64) -> Result<(), OpProblem> {
        let mut shape = self.shape.clone();
        shape[dim] = size;
        check_shape(&shape)?;
        self.on_layout(|l| {
            l.expand(dim, size);
            true
        });
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
        self.on_layout(|l| l.regroup(shape));
        self.shape = shape.to_vec();
        Ok(())
    }

    /// torch's `contiguous`: new storage unless it already is.
    pub(crate) fn make_contiguous(&mut self) {
        if !self.is_contiguous() {
            self.copy_row_major();
        }
    }

    /// New storage in row-major order.
    pub(crate) fn copy_row_major(&mut self) {
        self.mark_copied();
        self.strides = row_major_strides(&self.shape);
    }

    /// New storage that keeps the order of the dimensions in memory.
    pub(crate) fn copy_preserving(&mut self) {
        self.mark_copied();
        self.strides = preserved_strides(&self.shape, &self.strides);
    }

    /// New storage that is dense in the memory order of the dimensions, as torch's operations with a scalar
    /// make it: they do not keep the strides of single indices.
    pub(crate) fn copy_ordered(&mut self) {
        self.mark_copied();
        self.strides = ordered_strides(&self.shape, &self.strides);
    }

    /// New storage as torch's `cat` lays out parts of these shapes, all with the same strides.
    pub(crate) fn copy_joined(&mut self, parts: &[Vec<i64>], strides: &[i64]) {
        self.mark_copied();
        self.strides = joined_strides(&self.shape, parts, strides);
    }

    /// Reverses dimensions; the caller copies.
    pub(crate) fn flip_dims(&mut self, dims: &[usize]) {
        self.on_layout(|l| {
            dims.iter().for_each(|&d| l.flip(d));
            true
        });
    }

    /// Repeats whole dimensions, as many times each; the caller copies.
    pub(crate) fn repeat_dims(&mut self, times: &[i64]) -> Result<(), OpProblem> {
        let shape = scaled_shape(&self.shape, times)?;
        self.on_layout(|l| {
            times.iter().enumerate().for_each(|(d, &n)| l.repeat(d, n));
            true
        });
        self.shape = shape;
        Ok(())
    }

    /// Repeats each index of a dimension; the caller copies.
    pub(crate) fn interleave_dim(&mut self, dim: usize, times: i64) -> Result<(), OpProblem> {
        let mut all = vec![1; self.ndim()];
        all[dim] = times;
        let shape = scaled_shape(&self.shape, &all)?;
        self.on_layout(|l| {
            l.interleave(dim, times);
            true
        });
        self.shape = shape;
        Ok(())
    }

    /// Replaces two dimensions, already cut to one size, by their diagonal as a new last one.
    pub(crate) fn join_diagonal(&mut self, dim1: usize, dim2: usize) {
        self.on_layout(|l| l.diagonal(dim1, dim2));
        let (low, high) = (dim1.min(dim2), dim1.max(dim2));
        self.shape.remove(high);
        let size = self.shape.remove(low);
        let stride = self.strides.remove(high).wrapping_add(self.strides.remove(low));
        self.shape.push(size);
        self.strides.push(stride);
    }

    /// Replaces a dimension by windows; the caller has checked that they lie in it.
    pub(crate) fn unfold_dim(&mut self, dim: usize, size: i64, step: i64) -> Result<(), OpProblem> {
        if self.ndim() >= MAX_DIMS {
            return Err(OpProblem::TooManyDims { ndim: self.ndim() + 1 });
        }
        let count = (self.shape[dim] - size) / step + 1;
        let shape = [&self.shape[..dim], &[count], &self.shape[dim + 1..], &[size]].concat();
        check_shape(&shape)?;
        self.on_layout(|l| l.unfold(dim, count, size, step));
        self.shape = shape;
        self.strides.push(self.strides[dim]);
        self.strides[dim] = self.strides[dim].wrapping_mul(step);
        Ok(())
    }

    /// Takes these indices of a dimension, which exist; the caller copies.
    pub(crate) fn pick_dim(&mut self, dim: usize, runs: Vec<Indices>) -> Result<(), OpProblem> {
        let size = runs.iter().map(|r| r.len).sum();
        let mut shape = self.shape.clone();
        shape[dim] = size;
        check_shape(&shape)?;
        if shape.contains(&0) {
            self.on_layout(|l| l.slice(dim, 0, 0, 1) && l.regroup(&shape));
        } else if let Some((start, factors)) = factors_of(&runs) {
            self.on_layout(|l| l.pick(dim, size, start, &factors));
        } else {
            let outer = self.shape[..dim].iter().product();
            let inner = self.shape[dim + 1..].iter().product();
            self.stages.push(Stage::Pick(Pick { outer, size: self.shape[dim], inner, runs }));
        }
        self.shape = shape;
        Ok(())
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

/// The shape with each size taken as many times.
fn scaled_shape(shape: &[i64], times: &[i64]) -> Result<Vec<i64>, OpProblem> {
    let scaled: Option<Vec<i64>> = shape.iter().zip(times).map(|(&n, &t)| n.checked_mul(t)).collect();
    let scaled = scaled.ok_or_else(|| OpProblem::Shape { shape: shape.to_vec() })?;
    check_shape(&scaled)?;
    Ok(scaled)
}
