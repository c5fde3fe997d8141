//! Where a checkpoint is read from: what an argument names, opened.
//!
//! A path is read as files, `tcp://` from publishers. Any other URL is read as objects, in builds with the cargo feature
//! `object`.

pub mod files;
pub mod mirror;
#[cfg(feature = "object")]
mod objects;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use restage_checkpoint::Checkpoint;
use restage_model::ModelConfig;
use restage_remote::{ReadOptions, Token};
use restage_transport::{Metered, Transport};
use tempfile::TempDir;

use crate::failure::Failure;
use crate::remote::{self, SCHEME};

/// How publishers are reached.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Access {
    /// With tcp://HOST:PORT for a path: the file with the token that its publishers were started with.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Seconds after which a publisher that does not answer has failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub deadline: u64,
}

/// The token of a file.
pub fn token(path: &Path) -> Result<Token, Failure> {
    Token::read(path).with_context(|| path.display().to_string()).map_err(Failure::Input)
}

/// Reads the bytes of a checkpoint, and counts them.
pub type Reader = Metered<Box<dyn Transport>>;

/// A checkpoint, and what reads its bytes: sessions are named as in its catalog.
pub struct Source {
    pub checkpoint: Checkpoint,
    pub transport: Reader,
    /// Files that stand for what is elsewhere; they must live as long as the checkpoint is used.
    pub mirror: Option<TempDir>,
}

impl Source {
    /// Opens what an argument names, as whichever whole or sharded layout is asked for. Headers are read, and no
    /// tensor.
    pub fn open(argument: &Path, access: &Access, sharded: bool) -> Result<Self, Failure> {
        match argument.to_str().filter(|text| text.contains("://")) {
            Some(addresses) if addresses.starts_with(SCHEME) => open_remote(addresses, access, sharded),
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

fn open_remote(addresses: &str, access: &Access, sharded: bool) -> Result<Source, Failure> {
    let mut options = ReadOptions::default();
    options.token = access.token_file.as_deref().map(token).transpose()?;
    options.deadline = Duration::from_secs(access.deadline);
    let read = |path: &Path| files::checkpoint(path, sharded);
    let (checkpoint, remote) = remote::open(addresses, &options, read)?;
    let transport: Box<dyn Transport> = Box::new(remote.transport);
    Ok(Source { checkpoint, transport: Metered::new(transport), mirror: Some(remote.mirror) })
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
