//! What the fuzz targets do with their bytes. `docs/fuzzing.md` says how to run them; the same functions run over
//! seeded random bytes as ordinary tests in `crates/wire/tests/fuzz_bodies.rs`.

pub mod capture_file;
pub mod op_chain;
