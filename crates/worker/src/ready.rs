//! The ready line: the first line on stdout, and the only one that answers nothing.

use serde::Serialize;

use crate::engine::Description;
use crate::stage::{Role, Stage};

/// The version of the protocol. It goes up when a driver of an older one would misread a reply.
pub const PROTOCOL: u32 = 1;

/// What a driver may know before its first request. Members of a model are there only where there is one.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Ready<'a> {
    status: &'static str,
    pid: u32,
    stage: u64,
    protocol: u32,
    role: Role,
    num_stages: u64,
    hidden_dim: u32,
    hidden_dtype: &'static str,
    vocab_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_blocks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer_range: Option<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eos_token_ids: Option<&'a [u64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_context: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_digest: Option<&'a str>,
}

impl<'a> Ready<'a> {
    /// The ready line of this process.
    pub fn new(stage: Stage, description: &'a Description) -> Self {
        let model = description.model.as_ref();
        Ready {
            status: "ready",
            pid: std::process::id(),
            stage: stage.index(),
            protocol: PROTOCOL,
            role: stage.role(),
            num_stages: stage.count(),
            hidden_dim: description.hidden_dim,
            hidden_dtype: description.hidden_dtype,
            vocab_size: description.vocab_size,
            total_blocks: model.map(|m| m.total_blocks),
            layer_range: model.map(|m| [m.layer_range.0, m.layer_range.1]),
            eos_token_ids: model.map(|m| &*m.eos_token_ids),
            max_context: model.map(|m| m.max_context),
            model_digest: model.map(|m| &*m.digest),
        }
    }
}
