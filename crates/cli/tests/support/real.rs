//! Where the real checkpoint is, if it has been made.

use std::env;
use std::path::PathBuf;

/// The folder that `cargo xtask real-model` makes: named by `RESTAGE_REAL_MODEL`, or in that command's cache folder.
/// Where it is not there, says so on stderr.
pub fn model() -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = from("RESTAGE_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|d| d.join("restage")))
        .or_else(|| from("HOME").map(|d| d.join(".cache/restage")))
        .map(|d| d.join("smollm2-135m"));
    let dir = from("RESTAGE_REAL_MODEL").or(cache)?;
    let found = dir.join("complete").exists();
    if !found {
        eprintln!("skipped: {} is not there; `cargo xtask real-model` makes it", dir.display());
    }
    found.then_some(dir)
}
