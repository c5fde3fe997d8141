//! A temporary folder in which a checkpoint that is elsewhere is opened as if it lay here.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A new folder, and the directory of the checkpoint in it. The directory's name is for messages and reports alone.
pub fn mirror(name: &str) -> Result<(TempDir, PathBuf)> {
    let mirror = tempfile::Builder::new().prefix("restage-").tempdir().context("a temporary folder")?;
    let dir = mirror.path().join(if is_plain(name) { name } else { "checkpoint" });
    std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
    Ok((mirror, dir))
}

/// A name that cannot lead out of a folder.
pub fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}
