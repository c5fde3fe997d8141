//! Model families: a config to parameter names and shapes, and the loader of a rank as captured op chains.
//!
//! - [`ModelConfig`]: what of a Hugging Face `config.json` decides parameters.
//! - [`Engine`]: the serving engine and version whose names and buffers are wanted.
//! - [`Placement`]: where a rank is in a job: tensor-parallel rank, expert group, pipeline stage.
//! - [`tensors`]: the checkpoint tensors that a config calls for.
//! - [`load`]: Hugging Face tensors to the parameters of one rank, experts cut or spread.
//! - [`load_stage`]: tensors, of a GGUF file too, to the parameters of a pipeline stage that computes.
//! - [`unload`]: the parameters of all ranks back to Hugging Face tensors, with what must hold for that.
//!
//! Loaders are ordinary code over [`restage_geometry::LazyTensor`]: they narrow, reshape and copy. Shapes are
//! in elements. This crate never sees a byte of a tensor, nor where in a file it lies.

mod config;
mod decoder;
mod engine;
mod load;
mod placement;
mod stage;
mod tensors;
mod unload;

pub use config::{Architecture, ConfigError, Experts, Latent, ModelConfig};
pub use decoder::{Parts, Problem, ProblemList};
pub use engine::{Engine, EngineError, ExpertNames};
pub use load::{LoadError, Loaded, Tie, load};
pub use placement::{Placement, Rank, Stage};
pub use stage::{Naming, ROPE_FREQS, StagePart, load_stage};
pub use tensors::tensors;
pub use unload::{Expectation, Original, Rows, Unloaded, unload};

use std::collections::BTreeMap;

use restage_geometry::Dtype;

/// Tensors that exist: name to dtype and shape in elements.
pub type TensorTable = BTreeMap<String, (Dtype, Vec<i64>)>;
