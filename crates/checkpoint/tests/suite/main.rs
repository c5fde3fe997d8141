//! The crate from outside: files are made of bytes in each test, and real ones lie in `tests/data`.

mod comparing;
mod gguf;
mod headers;
mod layouts;
mod made;
mod outputs;
mod writing;
