//! The life of an update at one receiver: prepare once, pull, replay, hand over.
//!
//! - [`Receiver`]: prepared from a capture and a catalog; holds the plan.
//! - [`Receiver::pull_into`]: everything at once, into buffers of the caller.
//! - [`Receiver::pull_each`]: in waves of bounded memory, each parameter handed to a [`Sink`] when it is whole.
//! - [`same_bytes`]: whether two parameters are one.
//! - [`Report`]: what was moved, what was refused.
//!
//! Sizes are in bytes. This crate knows neither how an intersection is computed nor what a socket is.

mod convert;
mod receiver;
mod report;
mod wave;

pub use receiver::{Receiver, Sink, SinkError, same_bytes};
pub use report::{PullError, Report};
