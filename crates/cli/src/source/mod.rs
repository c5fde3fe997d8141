//! Where a checkpoint is read from: what an argument names, opened.
//!
//! A path is read as files. A URL is read as objects, in builds with the cargo feature `object`.

mod files;
#[cfg(feature = "object")]
mod objects;

use std::path::Path;

use anyhow::{Context, anyhow};
use restage_checkpoint::Checkpoint;
use restage_model::ModelConfig;
use restage_transport::{Metered, Transport};

use crate::failure::Failure;

/// Reads the bytes of a checkpoint, and counts them.
pub type Reader = Metered<Box<dyn Transport>>;

/// A checkpoint, and what reads its bytes: sessions are named as in its catalog.
pub struct Source {
    pub checkpoint: Checkpoint,
    pub transport: Reader,
    pub kept: Kept,
}

/// What must live as long as the checkpoint is used.
#[derive(Default)]
pub struct Kept {
    /// Files that stand for objects.
    #[cfg(feature = "object")]
    _mirror: Option<tempfile::TempDir>,
}

impl Source {
    /// Opens what an argument names, as whichever whole or sharded layout is asked for. Headers are read, and no
    /// tensor.
    pub fn open(argument: &Path, sharded: bool) -> Result<Self, Failure> {
        match argument.to_str().filter(|text| text.contains("://")) {
            Some(url) => open_url(url, sharded),
            None => files::open(argument, sharded),
        }
    }

    /// The model's config beside the checkpoint.
    pub fn config(&self) -> Result<ModelConfig, Failure> {
        let dir = self.checkpoint.dir();
        let path = dir.join("config.json");
        let json = std::fs::read(&path)
            .with_context(|| format!("{}: the model's config is needed", path.display()))
            .map_err(Failure::Input)?;
        ModelConfig::from_json(&json).with_context(|| dir.display().to_string()).map_err(Failure::Input)
    }
}

#[cfg(feature = "object")]
fn open_url(url: &str, sharded: bool) -> Result<Source, Failure> {
    if !restage_object::ObjectStoreAt::is_url(url) {
        let what = "a source is a path, or a URL of s3, gs, az, http or https";
        return Err(Failure::Usage(anyhow!("{url}: {what}")));
    }
    objects::open(url, sharded)
}

#[cfg(not(feature = "object"))]
fn open_url(url: &str, _sharded: bool) -> Result<Source, Failure> {
    let what = "a URL is read only by a build with the cargo feature \"object\"";
    Err(Failure::Usage(anyhow!("{url}: {what}")))
}
