//! Views of tensors as exact gathers, and the capture of what a loader copies where.
//!
//! - [`Dtype`], [`Packing`], [`Region`]: element types and boxes.
//! - [`Layout`]: a factored map from a logical index to an element position.
//! - [`Op`], [`View`], [`replay`]: the operations of torch that move data, with its rules for shapes, strides and
//!   errors.
//! - [`ValueOp`], [`Recipe`]: the operations on values that are known, and how to compute them.
//! - [`gather`], [`GridNest`], [`copy_nests`]: a view as loop nests, loop nests cut to boxes and carried out.
//! - [`Capture`], [`LazyTensor`], [`DestView`], [`Captured`]: a recording stand-in for tensors, so that a loader
//!   is ordinary code that narrows, reshapes and copies; and the record.
//!
//! Everything is counted in **elements**; [`Dtype::bytes`] and [`restage_nest::Nest::scaled`] are where
//! elements become bytes. Sizes and offsets are `i64` with checked arithmetic, dimensions are at most
//! [`MAX_DIMS`]. This crate knows of no model, file, socket, JSON or thread.

mod capture;
mod captured;
mod dest_view;
mod dtype;
mod float8;
mod gather;
mod grid;
mod layout;
mod lazy;
mod mover;
mod number;
mod op;
mod ops;
mod pick;
mod region;
mod replay;
mod standin;
mod stream;
mod strides;
mod temporary;
mod values;
mod view;

pub use capture::{Capture, CaptureError};
pub use captured::{Captured, Copy, Fill, Param, Unsupported};
pub use dest_view::DestView;
pub use dtype::{Dtype, Packing, UnknownDtype};
pub use gather::{Dest, GatherError, gather};
pub use grid::{GridLoop, GridNest, MAX_PIECES, TooManyPieces, to_grid};
pub use layout::{Dim, Factor, Layout};
pub use lazy::LazyTensor;
pub use mover::{MoveError, copy_nests};
pub use op::{Index, Op, OpError, OpProblem, SplitAt};
pub use region::{Region, RegionError};
pub use replay::{Recipe, Replay, replay, replay_typed};
pub use values::{Scalar, ValueError, ValueOp};
pub use view::{MAX_DIMS, View};
