//! JSON forms of op chains, copies, source tables and plans, so that other programs and files can hand them in.
//!
//! - [`OpForm`]: one operation. The vocabulary is torch's: `{"op": "narrow", "dim": 0, "start": 2, "length": 4}`.
//! - [`CopyForm`], [`FillForm`], [`ParamForm`], [`SourceForm`], [`ShardForm`]: what captures and tables are made of.
//! - [`CaptureFile`], [`write_capture`]: a whole capture as a versioned file; `docs/capture-file.md` is its
//!   description.
//! - [`SourcesFile`], [`write_sources`]: what is published, as a file.
//! - [`PlanFile`], [`Inputs`]: a plan in full with digests of what it was made from; `docs/plan-file.md`.
//! - [`WireError`], [`JsonPath`]: what is wrong with a file, and where.
//!
//! Reading is strict: an unknown operation or field is an error that names the path to it. Shapes, offsets and
//! strides are in elements, addresses in bytes. The core types stay free of serde; this crate converts. It knows
//! of no file system and no socket: files are byte slices.

mod capture_file;
mod element;
mod error;
mod json;
mod lines;
mod ops;
mod path;
mod plan_file;
mod sources_file;
mod tables;
mod to_form;

pub use capture_file::{CAPTURE_FORMAT, CAPTURE_VERSION, CaptureFile, write_capture};
pub use element::{Digest, ElementBytes, HexError};
pub use error::{WireError, WireProblem};
pub use json::{MAX_ELEMENTS, MAX_FILE_BYTES};
pub use ops::{DtypeForm, IndexForm, Number, OneOrMany, OpForm, True};
pub use path::JsonPath;
pub use plan_file::{
    CaptureDigests, Change, Inputs, MAX_PLAN_BYTES, PLAN_FORMAT, PLAN_VERSION, PlacementForm, PlanFile,
    Published, SourceChange,
};
pub use sources_file::{SOURCES_FORMAT, SOURCES_VERSION, SourcesFile, write_sources};
pub use tables::{CopyForm, FillForm, ParamForm, ShardForm, SourceForm, TableError};
pub use to_form::WriteError;
