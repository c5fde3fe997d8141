//! Where a checkpoint comes from: a path, or publishers.

use std::path::{Path, PathBuf};

use anyhow::Context;
use restage_checkpoint::Checkpoint;
use restage_remote::{ReadOptions, Token};
use restage_transport::{FileTransport, Metered, Transport};

use crate::failure::Failure;
use crate::remote::{self, Remote};
use crate::{job, remote::SCHEME};

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

/// Where the bytes of an opened checkpoint are.
pub enum Source {
    /// In its files.
    Files,
    /// At publishers.
    Remote(Box<Remote>),
}

/// The token of a file.
pub fn token(path: &Path) -> Result<Token, Failure> {
    Token::read(path).with_context(|| path.display().to_string()).map_err(Failure::Input)
}

/// Opens a checkpoint as whichever whole or sharded layout is asked for.
pub fn open(path: &Path, access: &Access, sharded: bool) -> Result<(Checkpoint, Source), Failure> {
    let Some(addresses) = path.to_str().filter(|p| p.starts_with(SCHEME)) else {
        return Ok((job::open(path, sharded)?, Source::Files));
    };
    let mut options = ReadOptions::default();
    options.token = access.token_file.as_deref().map(token).transpose()?;
    options.deadline = std::time::Duration::from_secs(access.deadline);
    let (checkpoint, remote) = remote::open(addresses, &options, |path| job::open(path, sharded))?;
    Ok((checkpoint, Source::Remote(Box::new(remote))))
}

impl Source {
    /// A transport over the checkpoint's files, metered.
    pub fn transport(&self, checkpoint: &Checkpoint) -> Result<Metered<Box<dyn Transport + '_>>, Failure> {
        Ok(Metered::new(match self {
            Source::Remote(remote) => Box::new(&remote.transport),
            Source::Files => {
                let mut files = FileTransport::new();
                for (session, path) in checkpoint.sessions() {
                    files.register(session, path).map_err(Failure::input)?;
                }
                Box::new(files)
            }
        }))
    }
}
