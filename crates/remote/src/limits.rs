//! What one side accepts of the other. Nothing that a peer sends makes this one hold more.

/// Version of the protocol, in the hello.
pub const VERSION: u32 = 2;

/// Bytes of a frame's payload from the publisher.
pub const REPLY_BYTES: usize = 256 << 10;

/// Bytes of a frame's payload from the client.
pub const REQUEST_BYTES: usize = 64 << 10;

/// Bytes that one read request may ask for.
pub const READ_BYTES: u64 = 1 << 20;

/// Runs that one read request may ask for.
pub const READ_RUNS: u64 = 16 << 10;

/// Loops of one piece of a read request.
pub const LOOPS: usize = 16;

/// Requests of one connection that are unanswered at once. With [`READ_BYTES`] this bounds what is in flight:
/// 4 MiB a connection.
pub const WINDOW: usize = 4;

/// Bytes that one digest is asked of: a publisher hashes them in less than any sensible deadline.
pub const DIGEST_BYTES: u64 = 256 << 20;

/// Bytes of a catalog, and of the table of sessions.
pub const BLOB_BYTES: u64 = 64 << 20;

/// Bytes of a session's name.
pub const NAME_BYTES: usize = 4096;

/// Bytes of the text of a fault.
pub const TEXT_BYTES: usize = 1024;

/// Bytes of a token: fewer are too easily guessed, more are no token.
pub const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;
