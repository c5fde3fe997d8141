//! The object backend against stores of three kinds: in memory, HTTP ranges, S3.

mod answers;
mod conformance;
mod places;
