//! What the fuzz targets do with their bytes. `docs/fuzzing.md` says how to run them; the same functions run over
//! random bytes as ordinary tests in `crates/wire/tests/fuzz_bodies.rs` and `crates/engine/tests/suite/any_bytes.rs`.

pub mod capture_file;
pub mod gguf;
pub mod op_chain;
