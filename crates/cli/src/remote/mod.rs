//! Checkpoints over the network: what a publisher tells of one, and how it is opened from there.

mod mirror;
mod offer;

pub use mirror::{Remote, open};
pub use offer::Offer;

/// What the address of a publisher starts with.
pub const SCHEME: &str = "tcp://";
