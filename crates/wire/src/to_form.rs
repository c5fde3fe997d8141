//! The way back: from what was captured or published to the forms that are written.

use restage_geometry::{Copy, Fill, Index, Op, Param, Scalar, SplitAt, ValueOp};
use restage_plan::{Shard, Source};
use thiserror::Error;

use crate::element::{Digest, ElementBytes};
use crate::ops::{DtypeForm, IndexForm, Number, OneOrMany, OpForm, True};
use crate::tables::{CopyForm, FillForm, ParamForm, ShardForm, SourceForm};

/// A capture that no file can say.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// An operation that files have no name for.
    #[error("copy {copy} of {source_name}: operation {at} ({op}) has no written form")]
    Op {
        /// Position of the copy in the capture.
        copy: usize,
        /// Its source.
        source_name: String,
        /// Position of the operation in the chain.
        at: usize,
        /// Name of the operation.
        op: String,
    },
    /// A parameter index past the end of the list of parameters.
    #[error("{what} {at} goes to parameter {param} of {params}")]
    Param {
        /// A copy, a fill, or an unsupported source.
        what: &'static str,
        /// Its position in the capture.
        at: usize,
        /// The index.
        param: usize,
        /// Number of parameters.
        params: usize,
    },
    /// A fill out of order: before the fill that precedes it, or past all copies.
    #[error("fill {at} stands after {after} copies, and there are {least} to {most}")]
    Order {
        /// Position of the fill in the capture.
        at: usize,
        /// Copies that it says were made before it.
        after: usize,
        /// Copies made before the previous fill.
        least: usize,
        /// Number of copies.
        most: usize,
    },
    /// Two parameters of one name.
    #[error("two parameters are called {0:?}")]
    Twice(String),
}

impl From<&Source> for SourceForm {
    fn from(source: &Source) -> Self {
        SourceForm {
            dtype: source.dtype.name().to_owned(),
            shape: source.shape.clone(),
            elsize: None,
            shards: source.shards.iter().map(ShardForm::from).collect(),
        }
    }
}

/// A digest that files have no form for is left out.
impl From<&Shard> for ShardForm {
    fn from(shard: &Shard) -> Self {
        ShardForm {
            offset: shard.region.start().to_vec(),
            shape: shard.region.shape(),
            session: shard.session.to_string(),
            addr: shard.addr,
            digest: shard.digest.as_ref().and_then(|d| Digest::try_from(d.to_string()).ok()),
        }
    }
}

impl From<&Param> for ParamForm {
    fn from(param: &Param) -> Self {
        ParamForm { dtype: param.dtype.name().to_owned(), shape: param.shape.clone() }
    }
}

impl CopyForm {
    /// The form of a copy into the parameter of this name, or the position of the operation that has none.
    pub(crate) fn of(copy: &Copy, param: &str) -> Result<Self, usize> {
        let ops = copy.ops.iter().enumerate().map(|(at, op)| OpForm::of(op).ok_or(at));
        Ok(CopyForm {
            source: copy.source.to_string(),
            ops: ops.collect::<Result<_, _>>()?,
            param: param.to_owned(),
            dest_offset: copy.dest.offset,
            dest_shape: copy.dest.shape.clone(),
            dest_stride: copy.dest.strides.clone(),
            dest_dtype: None,
        })
    }
}

impl FillForm {
    /// The form of a fill of the parameter of this name.
    pub(crate) fn of(fill: &Fill, param: &str) -> Self {
        let zero = fill.element.iter().all(|&byte| byte == 0);
        FillForm {
            param: param.to_owned(),
            dest_offset: fill.dest.offset,
            dest_shape: fill.dest.shape.clone(),
            dest_stride: fill.dest.strides.clone(),
            element: (!zero).then(|| ElementBytes(fill.element.clone())),
            after: fill.after,
        }
    }
}

impl OpForm {
    /// The form that reads back as this operation; `None` for those that files have no name for.
    pub fn of(op: &Op) -> Option<OpForm> {
        form_of(op.clone())
    }
}

fn form_of(op: Op) -> Option<OpForm> {
    Some(match op {
        Op::Narrow { dim, start, length } => OpForm::Narrow { dim, start, length },
        Op::Select { dim, index } => OpForm::Select { dim, index },
        Op::GetItem(items) => OpForm::Getitem { index: items.into_iter().map(index_form).collect() },
        Op::View(shape) => OpForm::View { shape },
        Op::Reshape(shape) => OpForm::Reshape { shape },
        Op::Unsqueeze(dim) => OpForm::Unsqueeze { dim },
        Op::Squeeze(dims) => OpForm::Squeeze { dim: dims.map(OneOrMany::Many) },
        Op::Transpose(dim0, dim1) => OpForm::Transpose { dim0, dim1 },
        Op::T => OpForm::T {},
        Op::Permute(dims) => OpForm::Permute { dims },
        Op::Flatten { start_dim, end_dim } => OpForm::Flatten { start_dim, end_dim },
        Op::Unflatten { dim, sizes } => OpForm::Unflatten { dim, sizes },
        Op::Chunk { chunks, dim, index } => OpForm::Chunk { chunks, dim, index },
        Op::Split { size, dim, index } => OpForm::Split { size: OneOrMany::One(size), dim, index },
        Op::SplitSizes { sizes, dim, index } => OpForm::Split { size: OneOrMany::Many(sizes), dim, index },
        Op::Unbind { dim, index } => OpForm::Unbind { dim, index },
        Op::Contiguous => OpForm::Contiguous {},
        Op::Expand(shape) => OpForm::Expand { shape },
        Op::BroadcastTo(shape) => OpForm::BroadcastTo { shape },
        Op::MoveDim { source, destination } => {
            OpForm::Movedim { source: OneOrMany::Many(source), destination: OneOrMany::Many(destination) }
        }
        Op::SwapAxes(axis0, axis1) => OpForm::Swapaxes { axis0, axis1 },
        Op::SwapDims(dim0, dim1) => OpForm::Swapdims { dim0, dim1 },
        Op::Flip(dims) => OpForm::Flip { dims: OneOrMany::Many(dims) },
        Op::Roll { shifts, dims } => OpForm::Roll {
            shifts: OneOrMany::Many(shifts),
            dims: (!dims.is_empty()).then_some(OneOrMany::Many(dims)),
        },
        Op::Repeat(repeats) => OpForm::Repeat { repeats },
        Op::RepeatInterleave { repeats, dim } => OpForm::RepeatInterleave { repeats, dim },
        Op::Tile(dims) => OpForm::Tile { dims },
        Op::TensorSplit { at, dim, index } => {
            OpForm::TensorSplit { indices_or_sections: split_at(at), dim, index }
        }
        Op::HSplit { at, index } => OpForm::Hsplit { indices_or_sections: split_at(at), index },
        Op::VSplit { at, index } => OpForm::Vsplit { indices_or_sections: split_at(at), index },
        Op::DSplit { at, index } => OpForm::Dsplit { indices_or_sections: split_at(at), index },
        Op::Diagonal { offset, dim1, dim2 } => OpForm::Diagonal { offset, dim1, dim2 },
        Op::Unfold { dimension, size, step } => OpForm::Unfold { dimension, size, step },
        Op::IndexSelect { dim, index } => OpForm::IndexSelect { dim, index },
        Op::Take(index) => OpForm::Take { index },
        Op::Value(ValueOp::To(dtype)) => OpForm::To { dtype: DtypeForm(dtype) },
        Op::Value(ValueOp::Mul(value)) => OpForm::Mul { value: number(value) },
        Op::Value(ValueOp::Add(value)) => OpForm::Add { value: number(value) },
        Op::Value(ValueOp::Neg) => OpForm::Neg {},
        // Opaque, and whatever a later version of the vocabulary has that files cannot say yet.
        _ => return None,
    })
}

fn split_at(at: SplitAt) -> OneOrMany {
    match at {
        SplitAt::Sections(n) => OneOrMany::One(n),
        SplitAt::Indices(list) => OneOrMany::Many(list),
    }
}

fn number(value: Scalar) -> Number {
    match value {
        Scalar::Int(i) => Number::Int(i),
        Scalar::Float(f) => Number::Float(f),
    }
}

fn index_form(index: Index) -> IndexForm {
    match index {
        Index::Int(i) => IndexForm::Int(i),
        Index::Slice(start, stop, step) => IndexForm::Slice([start, stop, step]),
        Index::Ellipsis => IndexForm::Ellipsis(True),
        Index::NewAxis => IndexForm::NewAxis(True),
    }
}
