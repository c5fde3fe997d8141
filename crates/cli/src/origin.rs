//! `restage.json`, beside a sharded state: what the state alone does not tell of where it came from.

use std::path::Path;

use anyhow::Context;
use restage_checkpoint::names::REPORT_FILE;
use restage_model::{Original, TensorTable};
use serde::{Deserialize, Serialize};

use crate::args::Wanted;

/// Version of the form.
const VERSION: u32 = 1;

/// Where a sharded state came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Version of this form.
    pub version: u32,
    /// Engine whose names and buffers the state has, as in `vllm:0.33`.
    pub engine: String,
    /// Number of tensor-parallel ranks.
    pub tp: u32,
    /// True when the checkpoint had an `lm_head.weight`. In a tied model whose head equals the embedding the
    /// state holds one of the two, and only this tells that there were two.
    pub head_in_checkpoint: bool,
    /// True when whole experts are spread over the ranks. The shapes tell it too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub expert_parallel: bool,
    /// True when the checkpoint had all experts of a layer in one tensor.
    #[serde(default, skip_serializing_if = "is_false")]
    pub experts_stacked: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Origin {
    /// An origin of today's form, for a checkpoint of these tensors.
    pub fn new(wanted: &Wanted, tp: u32, checkpoint: &TensorTable) -> Self {
        Origin {
            version: VERSION,
            engine: wanted.engine.to_string(),
            tp,
            head_in_checkpoint: checkpoint.contains_key("lm_head.weight"),
            expert_parallel: wanted.expert_parallel,
            experts_stacked: checkpoint.keys().any(|name| name.ends_with(".mlp.experts.gate_up_proj")),
        }
    }

    /// What the way back needs to be told.
    pub fn original(&self) -> Original {
        Original { head: self.head_in_checkpoint, stacked_experts: self.experts_stacked }
    }

    /// The file's contents.
    pub fn json(&self) -> Vec<u8> {
        // A struct of plain fields always serializes.
        let mut json = serde_json::to_vec_pretty(self).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// Reads the file beside a sharded state; `None` when there is none, as beside states that others wrote.
    pub fn read(dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = dir.join(REPORT_FILE);
        let json = match std::fs::read(&path) {
            Ok(json) => json,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
        };
        let origin: Origin = serde_json::from_slice(&json).with_context(|| path.display().to_string())?;
        anyhow::ensure!(
            origin.version == VERSION,
            "{}: expected version {VERSION}, found {}",
            path.display(),
            origin.version
        );
        Ok(Some(origin))
    }
}
