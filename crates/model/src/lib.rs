//! Model families: a config to parameter names and shapes, and the loader of a rank as captured op chains.
//!
//! - [`ModelConfig`]: what of a Hugging Face `config.json` decides parameters.
//! - [`Engine`]: the serving engine and version whose names and buffers are wanted.
//! - [`load`]: Hugging Face tensors to the parameters of one tensor-parallel rank, experts cut or spread.
//! - [`unload`]: the parameters of all ranks back to Hugging Face tensors, with what must hold for that.
//!
//! Loaders are ordinary code over [`restage_geometry::LazyTensor`]: they narrow, reshape and copy. Shapes are
//! in elements. This crate never sees a byte of a tensor, nor where in a file it lies.

mod config;
mod decoder;
mod engine;
mod load;
mod unload;

pub use config::{Architecture, ConfigError, Experts, ModelConfig};
pub use decoder::{Placement, Problem, ProblemList, Rank};
pub use engine::{Engine, EngineError, ExpertNames};
pub use load::{LoadError, Loaded, Tie, load};
pub use unload::{Expectation, Original, Rows, Unloaded, unload};

use std::collections::BTreeMap;

use restage_geometry::Dtype;

/// Tensors that exist: name to dtype and shape in elements.
pub type TensorTable = BTreeMap<String, (Dtype, Vec<i64>)>;
