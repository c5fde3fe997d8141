//! What can be wrong with a GGUF file.

use std::io;
use std::path::PathBuf;

use restage_geometry::Dtype;
use thiserror::Error;

/// A GGUF file that cannot be believed.
#[derive(Debug, Error)]
#[error("{}: {problem}", file.display())]
pub struct GgufError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: GgufProblem,
}

/// What can be wrong with a GGUF file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// The file could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A directory, pipe or device.
    #[error("not a regular file")]
    NotAFile,
    /// The first bytes are others.
    #[error("expected the magic \"GGUF\", found {found:?}")]
    Magic {
        /// What is there.
        found: String,
    },
    /// A version that is not read; a byte-swapped one is a big-endian file's.
    #[error(
        "expected GGUF version 2 or 3, found {found}{}",
        if (2..=3).contains(&found.swap_bytes()) { " (a big-endian file)" } else { "" }
    )]
    Version {
        /// The version, read as little-endian.
        found: u32,
    },
    /// The file, or the part of it that may be the header, ends too early.
    #[error("{what}: {needed} bytes are needed at byte {at} of the header, {left} are left")]
    Truncated {
        /// What was being read: a metadata key, a tensor, a part of the header.
        what: String,
        /// Where, in bytes from the start of the file.
        at: u64,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A count that the bytes that follow cannot hold.
    #[error("{what}: {count} of at least {each} bytes each, and {left} bytes are left")]
    Count {
        /// What is counted.
        what: String,
        /// The count.
        count: u64,
        /// Least bytes that each takes.
        each: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A string that is longer than any that makes sense.
    #[error("{what}: a string of {length} bytes, expected at most {most}")]
    StringTooLong {
        /// What it is.
        what: String,
        /// Its length, in bytes.
        length: u64,
        /// The limit, in bytes.
        most: u64,
    },
    /// A string that is not text.
    #[error("{what}: a string is not UTF-8 at its byte {at}")]
    NotUtf8 {
        /// What it is.
        what: String,
        /// First bad byte.
        at: usize,
    },
    /// A type of value that the format does not have.
    #[error("metadata {key:?}: unknown type {found}")]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        found: u32,
    },
    /// A truth value that is neither 0 nor 1.
    #[error("metadata {key:?}: expected 0 or 1 for a bool, found {found}")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// Arrays in arrays in arrays.
    #[error("metadata {key:?}: arrays lie more than {most} deep")]
    Depth {
        /// The key.
        key: String,
        /// The limit.
        most: u32,
    },
    /// A metadata key is given twice.
    #[error("metadata {key:?} appears twice")]
    KeyTwice {
        /// The key.
        key: String,
    },
    /// An alignment that is none.
    #[error("general.alignment: expected a u32 that is a multiple of 8 and not 0, found {found}")]
    Alignment {
        /// What is there.
        found: String,
    },
    /// A tensor is listed twice.
    #[error("tensor {tensor:?} appears twice")]
    TensorTwice {
        /// The tensor.
        tensor: String,
    },
    /// A number of dimensions that ggml does not have.
    #[error("tensor {tensor:?}: expected 1 to 4 dimensions, found {found}")]
    Dims {
        /// The tensor.
        tensor: String,
        /// Its number of dimensions.
        found: u32,
    },
    /// A dimension of size 0.
    #[error("tensor {tensor:?}: a dimension has size 0")]
    EmptyDim {
        /// The tensor.
        tensor: String,
    },
    /// Sizes that do not fit in 63 bits.
    #[error("tensor {tensor:?}: {what} does not fit in 63 bits")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// What does not fit.
        what: &'static str,
    },
    /// A type of element that is not read.
    #[error("tensor {tensor:?}: ggml type {id} ({found}) is not supported")]
    Type {
        /// The tensor.
        tensor: String,
        /// The type's number.
        id: u32,
        /// Its name, where it is known.
        found: &'static str,
    },
    /// Rows that end inside of a block.
    #[error("tensor {tensor:?}: rows of {row} elements are no whole number of {dtype} blocks of {block}")]
    CutBlock {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Elements of a row.
        row: u64,
        /// Elements of a block.
        block: u64,
    },
    /// An offset that is no multiple of the alignment.
    #[error("tensor {tensor:?}: offset {offset} is no multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its offset into the data, in bytes.
        offset: u64,
        /// The file's alignment, in bytes.
        alignment: u64,
    },
    /// A tensor that ends past the end of the file.
    #[error(
        "tensor {tensor:?}: {length} bytes at offset {offset} of the data, which starts at byte {start}, end past a \
         file of {file_bytes} bytes"
    )]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// Its offset into the data, in bytes.
        offset: u64,
        /// Its length, in bytes.
        length: u64,
        /// Where the data starts, in bytes from the start of the file.
        start: u64,
        /// Length of the file, in bytes.
        file_bytes: u64,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
}
