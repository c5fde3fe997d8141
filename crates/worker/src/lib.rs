//! The staged worker: one process per pipeline stage, which answers one JSON line per request.
//!
//! `docs/worker-protocol.md` says what travels over stdin and stdout; this crate is that page in code.
//!
//! - [`Stage`], [`Role`] and [`Split`]: which stage this is, what it may be asked, which blocks it owns.
//! - [`Engine`]: what a model must offer. [`Stub`] is an engine without a model, for drivers' own tests.
//! - [`Worker`]: a line in, a line out; roles, fields, sequences and faults. It knows no threads and no files.
//! - [`serve`]: the reader, the compute and the writer thread around it, with bounded queues between them.
//! - [`watch`]: signals, the parent's death, a closed stdout. [`Events`]: what happened, on a side channel.
//!
//! Lengths are in bytes where they say so and in positions (tokens) elsewhere. What the crate does not know: where
//! weights come from, how a model is computed, and what a process does when it ends.

mod answer;
mod ascii;
mod counters;
mod engine;
mod events;
mod fault;
mod hidden;
mod inbox;
mod inherited;
mod json;
mod lines;
mod outbox;
mod raw;
mod ready;
mod request;
mod sampling;
mod sequences;
mod serve;
mod split;
mod stage;
mod status;
mod stub;
mod watch;

pub use answer::Worker;
pub use counters::Counters;
pub use engine::{Description, Engine, EngineError, Model, Partial, Positions};
pub use events::Events;
pub use fault::Kind;
pub use inherited::events_channel;
pub use json::MAX_DEPTH;
pub use ready::PROTOCOL;
pub use request::Limits;
pub use sampling::{GreedyError, Sampling, greedy};
pub use sequences::SequenceId;
pub use serve::{Control, End, Options, Serving, serve};
pub use split::{Split, SplitError};
pub use stage::{Role, Stage, StageError};
pub use stub::{STUB_HIDDEN_DIM, STUB_VOCAB, Stub, is_space};
pub use watch::{Signals, watch};
