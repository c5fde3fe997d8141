//! The operations, with torch's names and arguments.

use thiserror::Error;

use crate::values::{ValueError, ValueOp};

/// One item of a subscript, as in `tensor[1, ::2, ..., None]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Index {
    /// An integer; the dimension goes away.
    Int(i64),
    /// `start:stop:step`, each optional, with Python's clamping.
    Slice(Option<i64>, Option<i64>, Option<i64>),
    /// `...`
    Ellipsis,
    /// `None`, a new dimension of size 1.
    NewAxis,
}

/// One view operation. Dimensions and indices may be negative, as in torch; the fields carry torch's names.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// `narrow(dim, start, length)`
    Narrow { dim: i64, start: i64, length: i64 },
    /// `select(dim, index)`
    Select { dim: i64, index: i64 },
    /// `tensor[items]`
    GetItem(Vec<Index>),
    /// `view(shape)`, one size may be -1
    View(Vec<i64>),
    /// `reshape(shape)`, one size may be -1
    Reshape(Vec<i64>),
    /// `unsqueeze(dim)`
    Unsqueeze(i64),
    /// `squeeze()` or `squeeze(dims)`
    Squeeze(Option<Vec<i64>>),
    /// `transpose(dim0, dim1)`
    Transpose(i64, i64),
    /// `t()`
    T,
    /// `permute(dims)`
    Permute(Vec<i64>),
    /// `flatten(start_dim, end_dim)`
    Flatten { start_dim: i64, end_dim: i64 },
    /// `unflatten(dim, sizes)`, one size may be -1
    Unflatten { dim: i64, sizes: Vec<i64> },
    /// `chunk(chunks, dim)[index]`
    Chunk { chunks: i64, dim: i64, index: i64 },
    /// `split(size, dim)[index]`
    Split { size: i64, dim: i64, index: i64 },
    /// `split(sizes, dim)[index]`
    SplitSizes { sizes: Vec<i64>, dim: i64, index: i64 },
    /// `unbind(dim)[index]`
    Unbind { dim: i64, index: i64 },
    /// `contiguous()`
    Contiguous,
    /// `expand(shape)`, -1 keeps a size
    Expand(Vec<i64>),
    /// `broadcast_to(shape)`
    BroadcastTo(Vec<i64>),
    /// `movedim(source, destination)`
    MoveDim { source: Vec<i64>, destination: Vec<i64> },
    /// `swapaxes(axis0, axis1)`
    SwapAxes(i64, i64),
    /// `swapdims(dim0, dim1)`
    SwapDims(i64, i64),
    /// `flip(dims)`
    Flip(Vec<i64>),
    /// `roll(shifts, dims)`; without dims the flattened tensor is rolled
    Roll { shifts: Vec<i64>, dims: Vec<i64> },
    /// `repeat(repeats)`
    Repeat(Vec<i64>),
    /// `repeat_interleave(repeats, dim)`; without a dim the flattened tensor is repeated
    RepeatInterleave { repeats: i64, dim: Option<i64> },
    /// `tile(dims)`
    Tile(Vec<i64>),
    /// `tensor_split(indices_or_sections, dim)[index]`
    TensorSplit { at: SplitAt, dim: i64, index: i64 },
    /// `hsplit(indices_or_sections)[index]`
    HSplit { at: SplitAt, index: i64 },
    /// `vsplit(indices_or_sections)[index]`
    VSplit { at: SplitAt, index: i64 },
    /// `dsplit(indices_or_sections)[index]`
    DSplit { at: SplitAt, index: i64 },
    /// `diagonal(offset, dim1, dim2)`
    Diagonal { offset: i64, dim1: i64, dim2: i64 },
    /// `unfold(dimension, size, step)`
    Unfold { dimension: i64, size: i64, step: i64 },
    /// `index_select(dim, index)` with a constant list
    IndexSelect { dim: i64, index: Vec<i64> },
    /// `take(index)` with a constant list: of the flattened tensor
    Take(Vec<i64>),
    /// An operation on values that is known: [`crate::replay_typed`] says how to compute it.
    Value(ValueOp),
    /// An operation that needs the values, or that is not known; it makes the chain opaque.
    Opaque(String),
}

/// Where `tensor_split` and its kin cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SplitAt {
    /// Into so many parts, the first ones larger by one where it does not come out even.
    Sections(i64),
    /// Before these indices, as slices are cut: negative ones count from the end.
    Indices(Vec<i64>),
}

impl Op {
    /// torch's name of the operation.
    pub fn name(&self) -> &str {
        match self {
            Op::Narrow { .. } => "narrow",
            Op::Select { .. } => "select",
            Op::GetItem(_) => "getitem",
            Op::View(_) => "view",
            Op::Reshape(_) => "reshape",
            Op::Unsqueeze(_) => "unsqueeze",
            Op::Squeeze(_) => "squeeze",
            Op::Transpose(..) => "transpose",
            Op::T => "t",
            Op::Permute(_) => "permute",
            Op::Flatten { .. } => "flatten",
            Op::Unflatten { .. } => "unflatten",
            Op::Chunk { .. } => "chunk",
            Op::Split { .. } | Op::SplitSizes { .. } => "split",
            Op::Unbind { .. } => "unbind",
            Op::Contiguous => "contiguous",
            Op::Expand(_) => "expand",
            Op::BroadcastTo(_) => "broadcast_to",
            Op::MoveDim { .. } => "movedim",
            Op::SwapAxes(..) => "swapaxes",
            Op::SwapDims(..) => "swapdims",
            Op::Flip(_) => "flip",
            Op::Roll { .. } => "roll",
            Op::Repeat(_) => "repeat",
            Op::RepeatInterleave { .. } => "repeat_interleave",
            Op::Tile(_) => "tile",
            Op::TensorSplit { .. } => "tensor_split",
            Op::HSplit { .. } => "hsplit",
            Op::VSplit { .. } => "vsplit",
            Op::DSplit { .. } => "dsplit",
            Op::Diagonal { .. } => "diagonal",
            Op::Unfold { .. } => "unfold",
            Op::IndexSelect { .. } => "index_select",
            Op::Take(_) => "take",
            Op::Value(op) => op.name(),
            Op::Opaque(name) => name,
        }
    }
}

/// An operation that torch rejects.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("op {at} ({op}) on shape {shape:?}: {problem}")]
pub struct OpError {
    /// Position in the chain, from 0.
    pub at: usize,
    /// Name of the operation.
    pub op: String,
    /// Shape that it was applied to, in elements.
    pub shape: Vec<i64>,
    /// Why it is rejected.
    pub problem: OpProblem,
}

/// Why an operation is rejected; sizes, indices and shapes are in elements.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpProblem {
    /// A dimension that the tensor does not have.
    #[error("dimension {dim} is out of range for {ndim} dimensions")]
    Dim { dim: i64, ndim: usize },
    /// An index past the end of a dimension or of a list of parts.
    #[error("index {index} is out of range for {size}")]
    Index { index: i64, size: i64 },
    /// A range that does not lie in its dimension.
    #[error("start {start} and length {length} do not fit a dimension of {size}")]
    Range { start: i64, length: i64, size: i64 },
    /// A slice step that is not positive.
    #[error("slice step {step} is not positive")]
    Step { step: i64 },
    /// More subscripts than dimensions.
    #[error("{items} subscripts for {ndim} dimensions")]
    Subscripts { items: usize, ndim: usize },
    /// A shape of another number of elements, or one whose -1 cannot be inferred.
    #[error("{numel} elements do not fit shape {shape:?}")]
    Numel { numel: i64, shape: Vec<i64> },
    /// A shape with a negative or too large size.
    #[error("shape {shape:?} is not valid")]
    Shape { shape: Vec<i64> },
    /// A view that would need a copy.
    #[error("shape {shape:?} cannot be a view of these strides")]
    NotAView { shape: Vec<i64> },
    /// Dimensions that are no permutation: repeated, or too few or too many.
    #[error("{dims:?} does not name each of {ndim} dimensions once")]
    Permutation { dims: Vec<i64>, ndim: usize },
    /// Parts that do not add up to the dimension, or a part size that is not possible.
    #[error("parts {sizes:?} do not cut a dimension of {size}")]
    Parts { sizes: Vec<i64>, size: i64 },
    /// An operation that is defined for other numbers of dimensions only.
    #[error("is not defined for {ndim} dimensions")]
    Ndim { ndim: usize },
    /// A shape that a tensor cannot be expanded to.
    #[error("cannot be expanded to {shape:?}")]
    Expand { shape: Vec<i64> },
    /// Numbers of repetitions that are negative or too few.
    #[error("cannot be repeated {repeats:?} times")]
    Repeats { repeats: Vec<i64> },
    /// Shifts and dimensions of a roll that do not pair up.
    #[error("{shifts} shifts for {dims} dimensions")]
    Shifts { shifts: usize, dims: usize },
    /// A diagonal of one dimension with itself.
    #[error("dimensions {dim1} and {dim2} are the same")]
    SameDim { dim1: i64, dim2: i64 },
    /// Windows that do not fit.
    #[error("windows of {size} every {step} do not fit a dimension of {available}")]
    Windows { size: i64, step: i64, available: i64 },
    /// An operation on values that torch does not define for the type.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// An operation that has no view.
    #[error("needs the values")]
    NeedsValues,
    /// More dimensions than are supported.
    #[error("{ndim} dimensions are more than {}", crate::MAX_DIMS)]
    TooManyDims { ndim: usize },
}
