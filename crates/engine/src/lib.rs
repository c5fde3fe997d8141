//! The model engine of a staged worker: one block range of a decoder, computed on CPUs.
//!
//! - [`Source`]: a Hugging Face directory or a GGUF file, opened by its headers; [`Numerics`]: what of its configuration
//!   decides numbers.
//! - [`load`]: the weights of a stage, by capture, plan and pull: its own bytes and no others. [`Weights`] keep the types
//!   of their tensors, packed ones included ([`row_to_f32`]).
//! - [`Stage`]: the forward pass. [`Cache`]: keys and values of a sequence, within a [`Budget`].
//! - [`choose`]: the next token.
//! - [`StageEngine`]: all of it as a worker's engine.
//!
//! Activations are f32 in memory. Lengths are in elements or positions, and in bytes where they say so. What this crate
//! does not know: the protocol's lines, processes, and where bytes come from.

mod blocks;
mod cache;
mod forward;
mod matrix;
mod numerics;
mod rope;
mod sampler;
mod serve;
mod source;
mod weights;

pub use blocks::{KNOWN, row_to_f32};
pub use cache::{Budget, Cache, KvDtype, NoRoom};
pub use forward::Stage;
pub use matrix::Matrix;
pub use numerics::{Numerics, NumericsError};
pub use rope::Scaling;
pub use sampler::choose;
pub use serve::{HiddenDtype, Sequence, ServeError, ServeOptions, StageEngine};
pub use source::{Source, SourceError};
pub use weights::{Block, Linear, Weights, WeightsError, load};
