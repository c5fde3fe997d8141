//! The engine from outside: on the real model, where it has been fetched, and on small ones that a test makes.

mod any_bytes;
#[path = "../../../cli/tests/support/gguf.rs"]
mod gguf;
#[path = "../../../../fuzz/src/gguf.rs"]
mod gguf_body;
mod real;
#[path = "../../../cli/tests/support/real.rs"]
mod real_model;
mod support;
mod tiny;
