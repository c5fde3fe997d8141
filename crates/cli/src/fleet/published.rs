//! What is taken for published where nobody has published anything yet.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use restage_model::{ModelConfig, tensors};
use restage_plan::Catalog;

use super::Origin;
use crate::failure::Failure;

/// As many sessions are written down at most; each holds a shard of every tensor.
const MOST_SESSIONS: u32 = 1 << 16;

/// As many shards are written down at most.
const MOST_SHARDS: u64 = 100_000_000;

/// Every tensor cut by rows over this many sessions, `trainer0000` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    sessions: u32,
}

impl FromStr for Published {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let sessions = s.strip_prefix("rows:").and_then(|n| n.parse().ok());
        match sessions.filter(|n| (1..=MOST_SESSIONS).contains(n)) {
            Some(sessions) => Ok(Published { sessions }),
            None => Err(format!("expected rows:N with N from 1 to {MOST_SESSIONS}, found {s:?}")),
        }
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows:{}", self.sessions)
    }
}

impl Published {
    /// The tensors that a config calls for; `path` is the config or a directory that holds it.
    pub(super) fn origin(self, path: &Path) -> Result<Origin, Failure> {
        let named = path.file_name().is_some_and(|n| n == "config.json") && path.is_file();
        let dir = if named {
            path.parent().filter(|p| p.as_os_str() != "").unwrap_or(Path::new("."))
        } else {
            path
        };
        let file = dir.join("config.json");
        let json = std::fs::read(&file)
            .with_context(|| format!("{}: the model's config is needed", file.display()))
            .map_err(Failure::Input)?;
        let context = || dir.display().to_string();
        let config = ModelConfig::from_json(&json).with_context(context).map_err(Failure::Input)?;
        let table = tensors(&config).with_context(context).map_err(Failure::Input)?;
        let shards = table.len() as u64 * u64::from(self.sessions);
        if shards > MOST_SHARDS {
            let (tensors, sessions) = (table.len(), self.sessions);
            let what = "are more shards than are written down";
            return Err(Failure::input(anyhow!(
                "{tensors} tensors over {sessions} sessions {what} ({MOST_SHARDS})"
            )));
        }
        let sessions: Vec<Arc<str>> = (0..self.sessions).map(|i| format!("trainer{i:04}").into()).collect();
        let sources = table.iter().map(|(name, (dtype, shape))| (name.as_str(), *dtype, &shape[..]));
        let catalog =
            Catalog::row_blocks(sources, &sessions).with_context(context).map_err(Failure::Input)?;
        let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let name = whole.file_name().map_or_else(|| ".".to_owned(), |n| n.to_string_lossy().into_owned());
        Ok(Origin { name, config, table, catalog })
    }
}

#[cfg(test)]
mod tests {
    use super::Published;

    #[test]
    fn only_row_blocks_of_a_sensible_number_are_known() {
        assert_eq!("rows:64".parse::<Published>().unwrap().to_string(), "rows:64");
        for text in ["", "64", "rows:", "rows:0", "rows:-1", "rows:65537", "cols:4", "rows:4x"] {
            assert!(text.parse::<Published>().is_err(), "{text}");
        }
    }
}
