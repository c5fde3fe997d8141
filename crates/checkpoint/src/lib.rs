//! Checkpoints on disk: what lies where, and writing results back.
//!
//! - [`Header`]: the header of one safetensors file, checked before anything is allocated for it.
//! - [`Checkpoint`]: a single file, an indexed directory or vLLM's per-rank sharded state, opened by reading
//!   headers only, or a GGUF file, and its [`Catalog`](restage_plan::Catalog) of sources.
//! - [`gguf`]: the header of a GGUF file: metadata and tensors, which a [`Checkpoint`] can be too.
//! - [`TensorFile`]: one safetensors file written by position, in any order and from several threads.
//! - [`OutputDir`], [`copy_companions`]: a directory that becomes visible whole, and the configuration and
//!   tokenizer files that travel with weights.
//! - [`compare`]: two checkpoints, tensor by tensor and byte by byte.
//! - [`names`]: the file names of the layouts, and which files go along with weights.
//!
//! Offsets, addresses and lengths are in **bytes** of a file; shapes and indices are in **elements**. This
//! crate knows of no socket, transfer plan or model name: of the plan it uses only the catalog's types.

mod checkpoint;
mod companions;
mod compare;
mod dtype;
mod error;
pub mod gguf;
mod header;
mod index;
mod json;
mod layout;
pub mod names;
mod output;
mod write;

pub use checkpoint::{Checkpoint, CheckpointFile, CheckpointTensor, Notice, rank_source};
pub use companions::{CompanionCopy, copy_companions};
pub use compare::{Comparison, Described, TensorDifference, ValueDifference, compare};
pub use dtype::{from_safetensors, to_safetensors};
pub use error::{CheckpointError, OutputError, OutputProblem, WriteError, WriteProblem};
pub use header::{Header, HeaderError, HeaderProblem, HeaderTensor, MAX_HEADER_BYTES};
pub use layout::Layout;
pub use output::OutputDir;
pub use write::{TensorFile, TensorSpec};
