//! A checkpoint that is files of this machine.

use std::path::Path;

use anyhow::anyhow;
use restage_checkpoint::{Checkpoint, Layout};
use restage_transport::{FileTransport, Metered};

use super::{Reader, Source};
use crate::failure::Failure;

pub fn open(path: &Path, sharded: bool) -> Result<Source, Failure> {
    let checkpoint = checkpoint(path, sharded)?;
    let transport = transport(&checkpoint)?;
    Ok(Source { checkpoint, transport, mirror: None })
}

/// Reads a checkpoint's files.
pub fn transport(checkpoint: &Checkpoint) -> Result<Reader, Failure> {
    let mut files = FileTransport::new();
    for (session, path) in checkpoint.sessions() {
        files.register(session, path).map_err(Failure::input)?;
    }
    Ok(Metered::new(Box::new(files)))
}

/// Opens a checkpoint as whichever whole or sharded layout is asked for.
pub fn checkpoint(path: &Path, sharded: bool) -> Result<Checkpoint, Failure> {
    let layouts = Checkpoint::layouts(path).map_err(Failure::input)?;
    let fitting = layouts.iter().copied().find(|l| l.is_whole() != sharded);
    let checkpoint = match (fitting, &layouts[..]) {
        (Some(layout), _) => Checkpoint::open_as(path, layout),
        (None, [Layout::ShardedState { .. }, ..]) => {
            let what = "holds sharded state (one file set per rank); read it with --from sharded-state";
            return Err(Failure::input(anyhow!("{}: {what}", path.display())));
        }
        (None, [Layout::Gguf]) => {
            let what = "is a GGUF file: its tensors have names and an order of rows of llama.cpp's own, and only a worker loads it";
            return Err(Failure::input(anyhow!("{}: {what}", path.display())));
        }
        (None, [other, ..]) => {
            let what = "no model-rank-R-part-P.safetensors";
            return Err(Failure::input(anyhow!("{}: {other}; there is {what}", path.display())));
        }
        // The general opening says what it looked for.
        (None, []) => Checkpoint::open(path),
    };
    checkpoint.map_err(Failure::input)
}
