//! What can go wrong: opening and comparing checkpoints, writing one file, placing a directory.

use std::io;
use std::path::PathBuf;

use restage_geometry::Dtype;
use restage_plan::CatalogError;
use safetensors::SafeTensorError;
use thiserror::Error;

use crate::gguf::GgufError;
use crate::header::{HeaderError, MAX_HEADER_BYTES};
use crate::index::MAX_INDEX_BYTES;
use crate::layout::Layout;

/// A path that cannot be opened as a checkpoint, or read as one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or directory could not be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A weights file is malformed.
    #[error("{0}")]
    Header(Box<HeaderError>),
    /// A GGUF file is malformed.
    #[error("{0}")]
    Gguf(Box<GgufError>),
    /// Nothing there to open.
    #[error("{}: {found}; looked for {looked_for}", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        found: String,
        /// The names that would have been taken.
        looked_for: String,
    },
    /// A file of another kind.
    #[error("{}: expected a directory, a .safetensors or a .gguf file", path.display())]
    NotACheckpoint {
        /// The path.
        path: PathBuf,
    },
    /// Two layouts in one directory.
    #[error("{}: holds {first:?} and {second:?}: two checkpoints; ask for one of the layouts", dir.display())]
    Ambiguous {
        /// The directory.
        dir: PathBuf,
        /// A file of one layout.
        first: String,
        /// A file of the other.
        second: String,
    },
    /// A file that others refer to is not there.
    #[error("{}: {file:?} is missing: {because}", dir.display())]
    MissingFile {
        /// The directory.
        dir: PathBuf,
        /// The file.
        file: String,
        /// Why it is expected.
        because: String,
    },
    /// A name that is nearly, and not, that of a part of a rank.
    #[error("{}: {file:?}: expected a name like \"model-rank-0-part-0.safetensors\"", dir.display())]
    RankName {
        /// The directory.
        dir: PathBuf,
        /// The file.
        file: String,
    },
    /// More ranks than the caller asked for.
    #[error("{}: expected {expected} ranks, found {found}", dir.display())]
    RankCount {
        /// The directory.
        dir: PathBuf,
        /// Ranks that the caller asked for.
        expected: u32,
        /// Ranks that are there.
        found: u32,
    },
    /// The index is larger than any real one.
    #[error("{}: expected at most {MAX_INDEX_BYTES} bytes, found {found}", index.display())]
    IndexTooLarge {
        /// The index.
        index: PathBuf,
        /// Its length, in bytes.
        found: u64,
    },
    /// The index is no JSON of the expected form, or gives a key twice.
    #[error("{}: {problem}", index.display())]
    Index {
        /// The index.
        index: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The index names a file by more than a plain name.
    #[error("{}: tensor {tensor:?}: expected a file name in the same directory, found {file:?}", index.display())]
    UnsafeName {
        /// The index.
        index: PathBuf,
        /// A tensor that is said to be in it.
        tensor: String,
        /// The name.
        file: String,
    },
    /// The index puts a tensor in a file that does not hold it.
    #[error("{}: tensor {tensor:?}: expected in {file:?}, not found there", index.display())]
    NotInFile {
        /// The index.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A file of the index holds a tensor that the index does not list.
    #[error("{}: tensor {tensor:?}: found in {file:?}, not listed in the index", index.display())]
    NotInIndex {
        /// The index.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// Two files of one checkpoint (or of one rank) hold the same tensor.
    #[error("{}: tensor {tensor:?}: expected in one file, found in {first:?} and {second:?}", dir.display())]
    TensorTwice {
        /// The directory.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// The catalog refuses a tensor.
    #[error("{}: {error}", dir.display())]
    Catalog {
        /// The directory.
        dir: PathBuf,
        /// Why.
        error: Box<CatalogError>,
    },
    /// Whole tensors on one side and ranks' shards on the other.
    #[error(
        "cannot compare {} ({a_layout}) with {} ({b_layout}): shards of ranks are no full tensors; reshard one first",
        a.display(), b.display()
    )]
    LayoutsDiffer {
        /// One checkpoint's directory.
        a: PathBuf,
        /// Its layout.
        a_layout: Layout,
        /// The other checkpoint's directory.
        b: PathBuf,
        /// Its layout.
        b_layout: Layout,
    },
}

impl From<HeaderError> for CheckpointError {
    fn from(error: HeaderError) -> Self {
        CheckpointError::Header(Box::new(error))
    }
}

impl From<GgufError> for CheckpointError {
    fn from(error: GgufError) -> Self {
        CheckpointError::Gguf(Box::new(error))
    }
}

/// A safetensors file that could not be written. The target is as it was before.
#[derive(Debug, Error)]
#[error("{}: {problem}", file.display())]
pub struct WriteError {
    /// The target.
    pub file: PathBuf,
    /// What went wrong.
    pub problem: WriteProblem,
}

/// What can go wrong while a safetensors file is written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteProblem {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The target is there and was not to be replaced.
    #[error("exists already")]
    Exists,
    /// The target is a directory or has no file name.
    #[error("not a file name")]
    NotAFile,
    /// Two tensors of one name.
    #[error("tensor {tensor:?} is declared twice")]
    Twice {
        /// The tensor.
        tensor: String,
    },
    /// The name of the header's own entry.
    #[error("tensor {tensor:?}: the format keeps this name for itself")]
    Reserved {
        /// The tensor.
        tensor: String,
    },
    /// A dtype that the safetensors format does not have.
    #[error("tensor {tensor:?}: safetensors has no dtype {dtype}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
    },
    /// A negative size, more bytes than 63 bits count, or no whole number of bytes.
    #[error("tensor {tensor:?}: shape {shape:?} of {dtype} cannot be stored")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape, in elements.
        shape: Vec<i64>,
    },
    /// The header is longer than readers accept.
    #[error("header of {found} bytes, expected at most {MAX_HEADER_BYTES}")]
    HeaderTooLong {
        /// Its length, in bytes.
        found: usize,
    },
    /// The safetensors crate refuses the header.
    #[error("header: {0}")]
    Header(#[from] SafeTensorError),
    /// A tensor that was not declared.
    #[error("tensor {tensor:?} was not declared")]
    Unknown {
        /// The tensor.
        tensor: String,
    },
    /// The wrong number of bytes.
    #[error("tensor {tensor:?}: expected {expected} bytes, found {found}")]
    Length {
        /// The tensor.
        tensor: String,
        /// Bytes of its shape.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// A tensor came a second time.
    #[error("tensor {tensor:?} was written already")]
    Repeated {
        /// The tensor.
        tensor: String,
    },
    /// Tensors that never came.
    #[error("tensor {tensor:?} was not written ({missing} of {declared} missing)")]
    Missing {
        /// The first of them, by name.
        tensor: String,
        /// How many are missing.
        missing: usize,
        /// How many were declared.
        declared: usize,
    },
}

/// An output directory or a companion file that could not be put in place.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct OutputError {
    /// The file or directory.
    pub path: PathBuf,
    /// What went wrong.
    pub problem: OutputProblem,
}

/// What can go wrong while output is put in place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OutputProblem {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The path is a file.
    #[error("expected a directory, found a file")]
    IsAFile,
    /// The path names no directory that could be made.
    #[error("not a directory name")]
    NoName,
    /// The directory holds something, and was not to be replaced.
    #[error("exists already and is not empty")]
    NotEmpty,
    /// The directory holds something that no checkpoint does, so that it is not replaced.
    #[error("holds {entry:?}, which is no checkpoint file: not replaced")]
    Foreign {
        /// The entry.
        entry: String,
    },
    /// The directory holds no weights, so that nothing says it is a checkpoint.
    #[error("is not empty and holds no checkpoint: not replaced")]
    NoCheckpoint,
    /// A file in the new directory is still being written.
    #[error("{entry:?} is not finished")]
    Unfinished {
        /// Its temporary name.
        entry: String,
    },
    /// A companion file of other content is in the way.
    #[error("differs from {}: not replaced", source_file.display())]
    Differs {
        /// The file that was to be copied.
        source_file: PathBuf,
    },
    /// The new directory is in place, and the one it replaced could not be removed.
    #[error("was replaced, but its old content is left in {}: {error}", left.display())]
    Left {
        /// Where the old content is.
        left: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}
