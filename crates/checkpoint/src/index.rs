//! `model.safetensors.index.json`: which file holds which tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::CheckpointError;
use crate::json;

/// Longest index that is read, in bytes.
pub(crate) const MAX_INDEX_BYTES: u64 = 100_000_000;

/// What an index says.
#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    /// Tensor to file name.
    pub(crate) weight_map: BTreeMap<String, String>,
    /// Free text and numbers; only `total_size` is looked at, and nothing relies on it.
    #[serde(default)]
    metadata: Value,
}

impl Index {
    /// Reads an index, and checks that every file it names is a plain name.
    pub(crate) fn read(path: &Path) -> Result<Index, CheckpointError> {
        let io = |error| CheckpointError::Io { path: path.to_owned(), error };
        let mut file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        if found > MAX_INDEX_BYTES {
            return Err(CheckpointError::IndexTooLarge { index: path.to_owned(), found });
        }
        let mut bytes = Vec::with_capacity(found as usize);
        file.by_ref().take(MAX_INDEX_BYTES).read_to_end(&mut bytes).map_err(io)?;
        let bad = |problem: String| CheckpointError::Index { index: path.to_owned(), problem };
        let text =
            str::from_utf8(&bytes).map_err(|e| bad(format!("not UTF-8 at byte {}", e.valid_up_to())))?;
        let index: Index = json::parse(text).map_err(|e| bad(e.to_string()))?;
        match index.weight_map.iter().find(|(_, file)| !is_plain(file)) {
            Some((tensor, file)) => Err(CheckpointError::UnsafeName {
                index: path.to_owned(),
                tensor: tensor.clone(),
                file: file.clone(),
            }),
            None => Ok(index),
        }
    }

    /// `metadata.total_size`, in bytes; some writers make it a float.
    pub(crate) fn total_size(&self) -> Option<u64> {
        let size = self.metadata.get("total_size")?;
        size.as_u64().or_else(|| size.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64))
    }
}

/// A name that cannot lead out of the directory.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}
