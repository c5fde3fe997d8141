//! `restage worker` as a driver meets it: the built command, over pipes. Every reply is read as ASCII on one line and
//! held against `docs/worker-protocol.schema.json`.

mod driver;
mod fuzz;
mod life;
mod lines;
mod model;
mod ops;
mod oracle;
mod refusals;
mod schema;
mod small;
mod start;
