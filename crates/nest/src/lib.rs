//! Strided copy nests: what a planner emits and a transport moves.
//!
//! A [`Nest`] says "copy `run` units from `src` to `dst`, and repeat that with these strides". Its flat
//! form, one contiguous [`Run`] at a time, is an iterator ([`Nest::runs`]); nothing here ever has to build
//! the list. [`coalesce`] merges neighbours, [`cover`] proves that destinations are disjoint and finds what
//! they leave out.
//!
//! Units are the caller's: elements while a view is being resolved, bytes once it is lowered. This crate
//! knows of neither tensors, dtypes and shapes nor sessions, files and sockets.

mod coalesce;
pub mod cover;
mod nest;

pub use coalesce::{coalesce, merged_runs};
pub use nest::{Loop, Nest, NestError, Run, Runs, Strided};
