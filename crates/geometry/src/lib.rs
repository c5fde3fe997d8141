//! Views of tensors as exact gathers, and the capture of what a loader copies where.
//!
//! - [`Dtype`], [`Packing`], [`Region`]: element types and boxes.
//! - [`Layout`]: a factored map from a logical index to an element position.
//! - [`Op`], [`View`], [`replay`]: the view operations of torch, with its rules for shapes, strides and errors.
//! - [`gather`], [`GridNest`]: a view as loop nests, and loop nests cut to boxes.
//! - [`Capture`], [`LazyTensor`], [`DestView`]: a recording stand-in for tensors, so that a loader is ordinary
//!   code that narrows, reshapes and copies.
//!
//! Everything is counted in **elements**; [`Dtype::bytes`] and [`restage_nest::Nest::scaled`] are where
//! elements become bytes. Sizes and offsets are `i64` with checked arithmetic, dimensions are at most
//! [`MAX_DIMS`]. This crate knows of no model, file, socket, JSON or thread.

mod capture;
mod dtype;
mod float8;
mod gather;
mod grid;
mod layout;
mod mover;
mod number;
mod op;
mod ops;
mod pick;
mod region;
mod replay;
mod stream;
mod strides;
mod values;
mod view;

pub use capture::{Capture, CaptureError, Captured, Copy, DestView, Fill, LazyTensor, Param, Unsupported};
pub use dtype::{Dtype, Packing, UnknownDtype};
pub use gather::{Dest, GatherError, gather};
pub use grid::{GridLoop, GridNest, MAX_PIECES, TooManyPieces, to_grid};
pub use layout::{Dim, Factor, Layout};
pub use mover::{MoveError, copy_nests};
pub use op::{Index, Op, OpError, OpProblem, SplitAt};
pub use region::{Region, RegionError};
pub use replay::{Recipe, Replay, replay, replay_typed};
pub use values::{Scalar, ValueError, ValueOp};
pub use view::{MAX_DIMS, View};
