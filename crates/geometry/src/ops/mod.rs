//! One rule a file: what each operation does to a [`View`].

mod diagonal;
mod index;
mod order;
mod parts;
mod pick;
mod regroup;
mod repeat;
mod resize;
mod reverse;
mod unfold;

use crate::op::{Op, OpProblem};
use crate::values::ValueOp;
use crate::view::View;

impl View {
    /// The view after one operation.
    ///
    /// # Errors
    /// [`OpProblem`] where torch would raise. [`Op::Opaque`] has no view and is refused; [`crate::replay`]
    /// gives it its own answer. [`Op::Value`] leaves every element in its place.
    pub fn apply(&self, op: &Op) -> Result<View, OpProblem> {
        let mut view = self.clone();
        match op {
            Op::Narrow { dim, start, length } => view.narrow(*dim, *start, *length)?,
            Op::Select { dim, index } => view.select(*dim, *index)?,
            Op::GetItem(items) => view.get_item(items)?,
            Op::View(shape) => view.reshape(shape, false)?,
            Op::Reshape(shape) => view.reshape(shape, true)?,
            Op::Unsqueeze(dim) => view.unsqueeze(*dim)?,
            Op::Squeeze(dims) => view.squeeze(dims.as_deref())?,
            Op::Transpose(a, b) => view.transpose(*a, *b)?,
            Op::T => view.t()?,
            Op::Permute(dims) => view.permute(dims)?,
            Op::Flatten { start_dim, end_dim } => view.flatten(*start_dim, *end_dim)?,
            Op::Unflatten { dim, sizes } => view.unflatten(*dim, sizes)?,
            Op::Chunk { chunks, dim, index } => view.chunk(*chunks, *dim, *index)?,
            Op::Split { size, dim, index } => view.split(*size, *dim, *index)?,
            Op::SplitSizes { sizes, dim, index } => view.split_sizes(sizes, *dim, *index)?,
            Op::Unbind { dim, index } => view.unbind(*dim, *index)?,
            Op::Contiguous => view.make_contiguous(),
            Op::Expand(shape) | Op::BroadcastTo(shape) => view.expand(shape)?,
            Op::MoveDim { source, destination } => view.move_dim(source, destination)?,
            Op::SwapAxes(a, b) | Op::SwapDims(a, b) => view.transpose(*a, *b)?,
            Op::Flip(dims) => view.flip(dims)?,
            Op::Roll { shifts, dims } => view.roll(shifts, dims)?,
            Op::Repeat(repeats) => view.repeat(repeats)?,
            Op::RepeatInterleave { repeats, dim } => view.repeat_interleave(*repeats, *dim)?,
            Op::Tile(dims) => view.tile(dims)?,
            Op::TensorSplit { at, dim, index } => view.tensor_split(at, *dim, *index)?,
            Op::HSplit { at, index } => view.hsplit(at, *index)?,
            Op::VSplit { at, index } => view.vsplit(at, *index)?,
            Op::DSplit { at, index } => view.dsplit(at, *index)?,
            Op::Diagonal { offset, dim1, dim2 } => view.diagonal(*offset, *dim1, *dim2)?,
            Op::Unfold { dimension, size, step } => view.unfold(*dimension, *size, *step)?,
            Op::IndexSelect { dim, index } => view.index_select(*dim, index)?,
            Op::Take(index) => view.take(index)?,
            // Element by element into new storage; what the elements become is not the view's business.
            Op::Value(ValueOp::Mul(_) | ValueOp::Add(_)) => view.copy_ordered(),
            Op::Value(ValueOp::Neg) if view.is_contiguous() => view.copy_row_major(),
            Op::Value(ValueOp::To(_) | ValueOp::Neg) => view.copy_preserving(),
            Op::Opaque(_) => return Err(OpProblem::NeedsValues),
        }
        Ok(view)
    }

    /// Wraps a dimension; a tensor of no dimensions has none.
    pub(crate) fn dim(&self, dim: i64) -> Result<usize, OpProblem> {
        wrap(dim, self.ndim())
    }

    /// Wraps a dimension where torch lets a tensor of no dimensions pass as one of one dimension.
    pub(crate) fn dim_or_scalar(&self, dim: i64) -> Result<usize, OpProblem> {
        wrap(dim, self.ndim().max(1)).map_err(|_| OpProblem::Dim { dim, ndim: self.ndim() })
    }
}

fn wrap(dim: i64, ndim: usize) -> Result<usize, OpProblem> {
    let n = ndim as i64;
    if (-n..n).contains(&dim) {
        Ok(if dim < 0 { dim + n } else { dim } as usize)
    } else {
        Err(OpProblem::Dim { dim, ndim })
    }
}
