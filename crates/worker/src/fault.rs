//! What can be wrong with a request, as its reply says it.

use crate::engine::EngineError;

/// The kinds of error replies. The list is closed: `docs/worker-protocol.md` has each with its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The line is longer than `--max-line-bytes`; it was skipped.
    LineTooLong,
    /// The line is not UTF-8.
    InvalidUtf8,
    /// The line is not JSON.
    InvalidJson,
    /// The line is nested deeper than 128.
    TooDeep,
    /// The line is JSON, but no object.
    NotAnObject,
    /// There is no `op`.
    MissingOp,
    /// `op` is not one of the ops.
    UnknownOp,
    /// Another stage has this op.
    WrongRole,
    /// A field is missing, or not what it must be.
    InvalidField,
    /// `hidden_b64` is not base64.
    InvalidBase64,
    /// `hidden_b64` is not `seq_len * hidden_dim` elements long.
    HiddenLength,
    /// A token id is not in the vocabulary.
    UnknownToken,
    /// `position` does not continue the sequence.
    Position,
    /// The sequence would outgrow the model's context.
    Context,
    /// A sequence cannot be truncated to more than it has.
    Length,
    /// One op, or all sequences together, ask for more than the worker takes.
    Limit,
    /// A NaN or an infinity in a hidden state or in the logits.
    NotFinite,
    /// The model has no memory left for it.
    Memory,
    /// The model could not do it.
    Engine,
    /// A fault of the worker's own; the sequence was dropped.
    Internal,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 20] = [
        Kind::LineTooLong,
        Kind::InvalidUtf8,
        Kind::InvalidJson,
        Kind::TooDeep,
        Kind::NotAnObject,
        Kind::MissingOp,
        Kind::UnknownOp,
        Kind::WrongRole,
        Kind::InvalidField,
        Kind::InvalidBase64,
        Kind::HiddenLength,
        Kind::UnknownToken,
        Kind::Position,
        Kind::Context,
        Kind::Length,
        Kind::Limit,
        Kind::NotFinite,
        Kind::Memory,
        Kind::Engine,
        Kind::Internal,
    ];

    /// The kind's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Kind::LineTooLong => "line_too_long",
            Kind::InvalidUtf8 => "invalid_utf8",
            Kind::InvalidJson => "invalid_json",
            Kind::TooDeep => "too_deep",
            Kind::NotAnObject => "not_an_object",
            Kind::MissingOp => "missing_op",
            Kind::UnknownOp => "unknown_op",
            Kind::WrongRole => "wrong_role",
            Kind::InvalidField => "invalid_field",
            Kind::InvalidBase64 => "invalid_base64",
            Kind::HiddenLength => "hidden_length",
            Kind::UnknownToken => "unknown_token",
            Kind::Position => "position",
            Kind::Context => "context",
            Kind::Length => "length",
            Kind::Limit => "limit",
            Kind::NotFinite => "not_finite",
            Kind::Memory => "memory",
            Kind::Engine => "engine",
            Kind::Internal => "internal",
        }
    }
}

/// An error reply in the making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub kind: Kind,
    pub message: String,
}

impl Fault {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Fault { kind, message: message.into() }
    }

    pub fn field(message: impl Into<String>) -> Self {
        Fault::new(Kind::InvalidField, message)
    }

    /// What an engine says, with the stage that says it.
    pub fn engine(stage: u64, error: &EngineError) -> Self {
        let kind = match error {
            EngineError::NotFinite { .. } => Kind::NotFinite,
            EngineError::OutOfMemory { .. } => Kind::Memory,
            EngineError::Failed(_) => Kind::Engine,
        };
        Fault::new(kind, format!("stage {stage}: {error}"))
    }
}
