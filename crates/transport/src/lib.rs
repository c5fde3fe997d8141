//! Moves bytes from sessions into destinations.
//!
//! A *session* is an endpoint that bytes can be read from, known by name and registered with its extents: a
//! file, a process's memory. A *destination* is a byte buffer of the caller. A [`Batch`] says which strided
//! copies go from where to where; [`Transport::read`] refuses it as a whole before a byte moves, or moves it
//! and says per entry what happened.
//!
//! Everything is in **bytes**: source addresses in the session's address space, destination offsets in the
//! buffer. This crate knows nothing of tensors, dtypes, shapes or versions, nor why a byte is wanted.
//!
//! | module | holds |
//! |---|---|
//! | [`Batch`], [`Receipt`], [`Transport`] | what is asked, what is answered, and the trait between them |
//! | [`Cancel`] | ends reads that are under way |
//! | [`check()`], [`Extents`], [`Checked`] | the proof, made before a byte moves, that a batch is safe to execute |
//! | [`Task`] | exclusive write access to a part of the destinations; the only unsafe code |
//! | [`MemoryTransport`], [`FileTransport`] | the backends that are always there |
//! | [`chunk`], [`sieve`] | jobs of one size, and few requests for scattered runs, for backends here and elsewhere |
//! | [`open_regular`], [`fill_at`] | regular files read by position, for backends and publishers |
//! | [`Metered`] | a wrapper that counts, and on request lists, what is read |
//! | [`testing`] | the conformance suite that every backend and wrapper passes |

mod batch;
mod cancel;
mod check;
pub mod chunk;
mod error;
mod extents;
mod file;
mod memory;
mod metered;
mod positioned;
mod scatter;
pub mod sieve;
pub mod testing;

pub use batch::{Abilities, Batch, Entry, Move, Receipt, Transport};
pub use cancel::{Cancel, Watch};
pub use check::{Checked, check};
pub use error::{EntryError, TransportError};
pub use extents::Extents;
pub use file::FileTransport;
pub use memory::{Bytes, Kept, MemoryTransport};
pub use metered::{Metered, Read, Snapshot, Traffic};
pub use positioned::{fill_at, open_regular};
pub use scatter::Task;
