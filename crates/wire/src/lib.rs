//! JSON forms of op chains, copies and source tables, so that other programs and files can hand them in.
//!
//! The vocabulary is torch's: one object an operation, `{"op": "narrow", "dim": 0, "start": 2, "length": 4}`.
//! Reading is strict: an unknown operation or field is an error of serde that names it. Shapes, offsets and
//! strides are in elements, addresses in bytes. The core types stay free of serde; this crate converts.

mod ops;
mod tables;

pub use ops::{DtypeForm, IndexForm, Number, OneOrMany, OpForm, True};
pub use tables::{CopyForm, FillForm, ParamForm, ShardForm, SourceForm, TableError};
