//! What can be wrong with a file.

use restage_geometry::{Dtype, GatherError, OpProblem, ValueError};
use restage_nest::NestError;
use restage_plan::CatalogProblem;
use thiserror::Error;

use crate::{JsonPath, TableError};

/// A file that is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The file is larger than [`MAX_FILE_BYTES`](crate::MAX_FILE_BYTES), or a plan file than
    /// [`MAX_PLAN_BYTES`](crate::MAX_PLAN_BYTES).
    #[error("the file has more than {limit} bytes")]
    TooLarge {
        /// The most that is read, in bytes.
        limit: u64,
    },
    /// Something in the file.
    #[error("{path}: {problem}")]
    At {
        /// Where.
        path: JsonPath,
        /// What is wrong there.
        problem: WireProblem,
    },
}

/// What is wrong with a value of a file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireProblem {
    /// Not JSON, or not of the documented form: an unknown operation or field, another type, a key that appears
    /// twice. The text is the parser's.
    #[error("{0}")]
    Json(String),
    /// A file of another format.
    #[error("expected {expected:?}, found {found}")]
    Format {
        /// The format that was asked for.
        expected: &'static str,
        /// What the file says.
        found: String,
    },
    /// A version that is not known.
    #[error("version {found} is not known; this is version {expected}")]
    Version {
        /// The version that is read.
        expected: u64,
        /// What the file says.
        found: String,
    },
    /// A dtype, box, digest, element size or constant that cannot be.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A shape with a negative size, too many dimensions or elements.
    #[error("{0}")]
    Shape(#[from] OpProblem),
    /// A list of strides that is not as long as the shape.
    #[error("{strides} strides for {ndim} dimensions")]
    Strides {
        /// Dimensions of the shape.
        ndim: usize,
        /// Strides given.
        strides: usize,
    },
    /// A destination that leaves its parameter.
    #[error("{0}")]
    Dest(#[from] GatherError),
    /// A destination whose positions are negative, or do not fit in 63 bits.
    #[error(
        "offset {offset}, shape {shape:?} and strides {strides:?} give positions below 0 or past 63 bits"
    )]
    Positions {
        /// Offset of the destination, in elements.
        offset: i64,
        /// Its shape.
        shape: Vec<i64>,
        /// Its strides, in elements.
        strides: Vec<i64>,
    },
    /// A parameter that the file does not have.
    #[error("there is no parameter {0:?}")]
    NoParam(String),
    /// A copy in a bare list that does not say what its parameter holds.
    #[error("is missing, and nothing else says what {param} holds")]
    NoDtype {
        /// The parameter.
        param: String,
    },
    /// A destination of another dtype than its parameter.
    #[error("{param} holds {expected}, and this says {found}")]
    OtherDtype {
        /// The parameter.
        param: String,
        /// Its type.
        expected: Dtype,
        /// What the copy says.
        found: Dtype,
    },
    /// A fill that stands before the one that precedes it in the file, or after more copies than there are.
    #[error("{after} copies before this fill, where {least} to {most} can be")]
    Order {
        /// Copies that it says were made before it.
        after: usize,
        /// Copies made before the previous fill.
        least: usize,
        /// Number of copies in the file.
        most: usize,
    },
    /// More elements than [`MAX_ELEMENTS`](crate::MAX_ELEMENTS).
    #[error("with this, {what} have more than {limit} elements")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The most, in elements.
        limit: i64,
    },
    /// The source contradicts itself.
    #[error("{0}")]
    Catalog(#[from] CatalogProblem),
    /// A name that a plan file does not list.
    #[error("there is no {what} {name:?}")]
    Unlisted {
        /// What it should be the name of.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A staging that a plan file does not have.
    #[error("staging {found} does not exist; there are {stagings}")]
    NoStaging {
        /// The index given.
        found: usize,
        /// Number of stagings.
        stagings: usize,
    },
    /// A list of names that is not sorted, or has one twice.
    #[error("{0:?} is not greater than the name before it")]
    Unsorted(String),
    /// A nest whose positions or lengths leave 64 bits, or cut a block.
    #[error("{0}")]
    Nest(#[from] NestError),
    /// A nest that reads or writes past the end of what it reads or writes.
    #[error("{side} reaches {end} of {len} {unit}")]
    Past {
        /// Its source side or its destination side.
        side: &'static str,
        /// One past the last position.
        end: u64,
        /// What there is.
        len: u64,
        /// Unit of both.
        unit: &'static str,
    },
    /// Two writes of a plan that meet.
    #[error("writes byte {at} again")]
    Again {
        /// A byte near which they meet.
        at: u64,
    },
    /// A value operation that is not defined for its type.
    #[error("{0}")]
    Value(#[from] ValueError),
    /// An operation that moves elements where values are to be changed, or one without a name.
    #[error("is no operation on values")]
    NoValueOp,
    /// Value operations that do not lead from one type to the other.
    #[error("{from} becomes {found} by these operations, and not {to}")]
    Becomes {
        /// Type of the staged elements.
        from: Dtype,
        /// What they become.
        found: Dtype,
        /// Type of the parameter's elements.
        to: Dtype,
    },
    /// Something that follows from the rest of the file, and says otherwise.
    #[error("expected {expected}, found {found}")]
    Disagrees {
        /// What follows.
        expected: String,
        /// What the file says.
        found: String,
    },
}

impl WireError {
    pub(crate) fn at(path: JsonPath, problem: impl Into<WireProblem>) -> Self {
        WireError::At { path, problem: problem.into() }
    }
}
