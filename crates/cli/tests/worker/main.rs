//! `restage worker` as a driver meets it: the built command, over pipes. Every reply is read as ASCII on one line and
//! held against `docs/worker-protocol.schema.json`.

mod driver;
mod fuzz;
#[path = "../support/gguf.rs"]
mod gguf;
mod life;
mod lines;
mod model;
mod model_files;
mod model_life;
mod ops;
mod oracle;
mod refusals;
mod schema;
mod small;
mod small_gguf;
mod start;
