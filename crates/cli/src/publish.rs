//! `restage publish`: serves a checkpoint's catalog and bytes until it is told to stop.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use restage_remote::{PublishError, PublishOptions, Publisher, Shelf};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::failure::Failure;
use crate::remote::{Offer, SCHEME};
use crate::source::token;

/// Arguments of `publish`.
#[derive(Debug, clap::Args)]
pub struct PublishArgs {
    /// A directory with weights files, which may be some of a checkpoint's, or one safetensors file.
    pub path: PathBuf,
    /// Where to listen: tcp://HOST:PORT. Port 0 chooses a free one.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: String,
    /// A file with a token of 16 to 4096 bytes, which clients must have too. Needed for addresses that other hosts can
    /// reach.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &PublishArgs) -> Result<(), Failure> {
    let address = args
        .listen
        .strip_prefix(SCHEME)
        .ok_or_else(|| Failure::Usage(anyhow!("{}: an address is {SCHEME}HOST:PORT", args.listen)))?;
    // Before anything is told to anybody.
    let mut stop = stopping().context("cannot catch signals").map_err(Failure::Transfer)?;
    let offer = Offer::of(&args.path).map_err(Failure::Input)?;
    let dir = if args.path.is_dir() { Some(args.path.as_path()) } else { args.path.parent() };
    let mut shelf = Shelf::new(serde_json::to_vec(&offer).map_err(Failure::input)?);
    for file in &offer.files {
        let path = dir.map_or_else(|| PathBuf::from(&file.name), |dir| dir.join(&file.name));
        shelf.file(file.name.as_str(), path).map_err(Failure::input)?;
    }
    let mut options = PublishOptions::default();
    options.token = args.token_file.as_deref().map(token).transpose()?;
    let publisher = Publisher::start(address, shelf, options).map_err(|e| match e {
        PublishError::Open { .. } => Failure::input(anyhow!("{e}; --token-file gives one")),
        e => Failure::transfer(e),
    })?;
    let said = writeln!(std::io::stdout(), "listening {SCHEME}{}", publisher.address())
        .and_then(|()| std::io::stdout().flush());
    said.context("cannot say where it listens").map_err(Failure::Transfer)?;
    stop.read_exact(&mut [0]).context("signals").map_err(Failure::Transfer)?;
    publisher.stop();
    Ok(())
}

/// Gives a byte for each signal to stop.
fn stopping() -> std::io::Result<UnixStream> {
    let (stop, write) = UnixStream::pair()?;
    pipe::register(SIGTERM, write.try_clone()?)?;
    pipe::register(SIGINT, write)?;
    Ok(stop)
}
