//! Reads byte ranges of objects: S3, Google Cloud Storage, Azure and plain HTTP, through `object_store`.
//!
//! A session is one object; addresses are **bytes** from its start, and its one extent is the length that the
//! store said when it was registered. Ranges that lie near each other are fetched together, several requests are
//! in flight at once, and the bytes of all of them are bounded. Everything fails as an error: an answer that is
//! shorter, longer, of another range or of another version of the object than asked for.
//!
//! | module | holds |
//! |---|---|
//! | [`ObjectTransport`] | the [`Transport`](restage_transport::Transport) |
//! | [`ObjectStoreAt`] | a store and a prefix, from a URL |
//! | [`Limits`] | gap, largest request, bytes and requests in flight, deadline |
//! | [`ObjectError`] | why a URL or an object was refused |
//!
//! Cargo features: `s3`, `gs`, `az` and `http` build one store each, with TLS. Without any of them, stores that
//! the caller makes can still be read.

#[cfg(feature = "signing")]
mod crypto;
mod error;
mod fetch;
mod limits;
mod place;
mod spans;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;

pub use error::ObjectError;
pub use limits::Limits;
pub use place::ObjectStoreAt;
pub use transport::ObjectTransport;
