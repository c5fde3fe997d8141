//! The catalog of a published checkpoint: its files, by name. Each is a session of that name.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use restage_checkpoint::names::{INDEX_FILE, is_companion};
use restage_checkpoint::{Header, MAX_HEADER_BYTES};
use serde::{Deserialize, Serialize};

use crate::source::mirror::is_plain;

/// Version of this form.
const VERSION: u32 = 1;
/// Bytes of a small file: a tokenizer's vocabulary is tens of megabytes, the largest of them.
const SMALL_BYTES: u64 = 256 << 20;
/// Ending of the weights files that are published.
const WEIGHTS_END: &str = ".safetensors";

/// A directory of weights files as it is published: all of a checkpoint, or some of its files.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    restage_offer: u32,
    /// Name of the directory.
    pub name: String,
    /// The one weights file, where a file and no directory is published.
    pub file: Option<String>,
    /// The files, by name.
    pub files: Vec<OfferedFile>,
}

/// A file of an offer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedFile {
    /// Its name, which is that of its session.
    pub name: String,
    /// Bytes of it.
    pub length: u64,
    /// Bytes from its start that say what is in it: all of a small file, the header of a weights file.
    pub head: u64,
}

impl OfferedFile {
    /// True for one whose bytes are not all in its head.
    pub fn is_weights(&self) -> bool {
        self.name.ends_with(WEIGHTS_END)
    }
}

impl Offer {
    /// What is to be published of a path: its weights files, their index, and the small files that go along.
    pub fn of(path: &Path) -> Result<Self> {
        let path = path.canonicalize().with_context(|| path.display().to_string())?;
        let named = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
        let (dir, file) = match path.is_dir() {
            true => (path.as_path(), None),
            false => (path.parent().unwrap_or(Path::new(".")), named(&path)),
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
            let path = entry.with_context(|| dir.display().to_string())?.path();
            let (Some(name), Ok(meta)) = (named(&path), fs::metadata(&path)) else { continue };
            let weights = name.ends_with(WEIGHTS_END) && file.as_ref().is_none_or(|f| *f == name);
            let index = name == INDEX_FILE && file.is_none();
            if name.starts_with('.') || !meta.is_file() || !(weights || index || is_companion(&name)) {
                continue;
            }
            let (length, head) = match weights {
                true => {
                    let header = Header::read(&path)?;
                    (header.file_bytes(), header.data_start())
                }
                false => (meta.len(), meta.len()),
            };
            files.push(OfferedFile { name, length, head });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        if !files.iter().any(OfferedFile::is_weights) {
            bail!("{}: no {WEIGHTS_END} file to publish", path.display());
        }
        let offer = Offer { restage_offer: VERSION, name: named(dir).unwrap_or_default(), file, files };
        offer.checked().with_context(|| path.display().to_string())
    }

    /// Reads an offer as it was sent.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let offer: Offer = serde_json::from_slice(bytes).context("not the offer of a checkpoint")?;
        offer.checked()
    }

    fn checked(self) -> Result<Self> {
        ensure!(self.restage_offer == VERSION, "an offer of version {}, not {VERSION}", self.restage_offer);
        for name in self.files.iter().map(|f| &f.name).chain(&self.file) {
            ensure!(may_be_published(name), "{name:?} is not the name of a file that may be published");
        }
        for f in &self.files {
            let most = if f.is_weights() { MAX_HEADER_BYTES + 8 } else { SMALL_BYTES };
            ensure!(
                f.head <= most.min(f.length) && (f.is_weights() || f.head == f.length),
                "{}: {} of {} bytes say what is in it, at most {most} can",
                f.name,
                f.head,
                f.length
            );
        }
        ensure!(
            self.file.as_ref().is_none_or(|f| self.files.iter().any(|o| o.name == *f && o.is_weights())),
            anyhow!("an offer of the file {:?} that lacks it", self.file)
        );
        Ok(self)
    }
}

/// True for names that stay in the directory they are put in, and that are of the kinds that are published.
fn may_be_published(name: &str) -> bool {
    let kind = name.ends_with(WEIGHTS_END) || name == INDEX_FILE || is_companion(name);
    kind && is_plain(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str, length: u64, head: u64) -> Result<Offer> {
        let files = format!(r#"[{{"name":{name:?},"length":{length},"head":{head}}}]"#);
        Offer::read(format!(r#"{{"restage_offer":1,"name":"m","file":null,"files":{files}}}"#).as_bytes())
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        offer("model.safetensors", 1000, 100).unwrap();
        for name in ["../config.json", "/etc/config.json", ".config.json", "a\\config.json", "passwd", ""] {
            let error = offer(name, 10, 10).unwrap_err().to_string();
            assert!(error.contains("is not the name"), "{name}: {error}");
        }
    }

    #[test]
    fn heads_are_bounded() {
        for (name, length, head) in [
            ("model.safetensors", 100, 101),
            ("model.safetensors", u64::MAX, MAX_HEADER_BYTES + 9),
            ("config.json", 10, 9),
            ("config.json", u64::MAX, u64::MAX),
        ] {
            let error = offer(name, length, head).unwrap_err().to_string();
            assert!(error.contains("at most"), "{error}");
        }
    }
}
