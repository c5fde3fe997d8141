//! Sessions that another process publishes over TCP, read as a transport.
//!
//! A [`Publisher`] serves a [`Shelf`]: a catalog of its owner's making, which is opaque here, and sessions that
//! lie in memory or in files. A [`TcpTransport`] connects to one or several of them. Strided copies are
//! gathered by the publisher, small ones travel many to a request, and bytes go from where they are published to
//! where they are wanted without a copy in between on either side, except in short runs.
//!
//! The protocol is laid down in `docs/remote-protocol.md`, and its limits in [`limits`]: what a peer sends never
//! makes this side hold more, and a peer that breaks the protocol is an error of the entries that wait for it.
//!
//! Addresses and lengths are in **bytes**. This crate knows nothing of tensors.
//!
//! | module | holds |
//! |---|---|
//! | [`Publisher`], [`Shelf`] | what is offered, and to whom |
//! | [`TcpTransport`] | the reading side |
//! | [`Token`] | the secret that both prove to have |
//! | [`frame`], [`ask`], [`fault`], [`table`] | the messages |

mod answer;
pub mod ask;
mod client;
mod cursor;
mod error;
pub mod fault;
pub mod frame;
mod hello;
pub mod limits;
mod link;
mod peer;
mod publisher;
mod pull;
mod shelf;
pub mod table;
mod voice;
mod want;

pub use client::{ReadOptions, TcpTransport};
pub use error::RemoteError;
pub use hello::{HelloError, Token};
pub use publisher::{PublishError, PublishOptions, Publisher};
pub use shelf::Shelf;
