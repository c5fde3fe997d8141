//! The Python environment that tests start a server of S3 from.
//!
//! `moto` with what it needs, each package pinned, in a folder of the cache. It is made in a temporary folder and
//! renamed into place when it is whole.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use restage_object::testing::{PACKAGES, python_folder};

use crate::real_model::call;

/// The folder of the environment, made on the first call; that takes Python 3.11 or newer with `venv` and a
/// registry that pip is set up for. About 140 MB stay.
///
/// # Errors
///
/// A command that failed, with its output; a cache folder that cannot be made.
pub fn run() -> Result<PathBuf> {
    let folder = python_folder()
        .context("no place for the cache: none of RESTAGE_CACHE, XDG_CACHE_HOME and HOME is set")?;
    if folder.is_dir() {
        return Ok(folder);
    }
    let cache = folder.parent().context("the cache has no folder")?;
    fs::create_dir_all(cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let work = tempfile::Builder::new()
        .prefix(".s3-server-")
        .tempdir_in(cache)
        .with_context(|| format!("cannot make a temporary folder in {}", cache.display()))?;
    let made = work.path().join("venv");
    eprintln!("setting up Python with {} packages for a server of S3", PACKAGES.len());
    call(Command::new("python3").args(["-m", "venv"]).arg(&made))?;
    // No package is built: what it would take is nothing that this asks of a machine.
    let install =
        ["-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--only-binary", ":all:"];
    call(Command::new(made.join("bin/python")).args(install).args(PACKAGES))?;
    match fs::rename(&made, &folder) {
        // Another process was first, with the same.
        Err(_) if folder.is_dir() => {}
        renamed => renamed.with_context(|| format!("cannot rename to {}", folder.display()))?,
    }
    Ok(folder)
}
