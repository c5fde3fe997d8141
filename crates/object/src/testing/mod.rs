//! Servers of objects for tests: one of HTTP ranges that can be told to misbehave, and a real one of S3.
//!
//! What is in here panics when it cannot do its work.

mod http;
mod s3;

pub use http::{Answers, HttpServer};
pub use s3::{PACKAGES, S3Server, python_folder};
