//! A checkpoint that is objects of a store.
//!
//! Its small files are fetched into a temporary folder, and each weights file stands there as its header and a hole
//! of the length of its tensors, so that all of it is opened and checked as any other checkpoint. Tensors are read
//! from the store alone: nothing but this module makes the transport of what it opens.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, anyhow};
use restage_checkpoint::MAX_HEADER_BYTES;
use restage_checkpoint::names::{INDEX_FILE, REPORT_FILE, SINGLE_FILE, is_companion};
use restage_object::{Limits, ObjectStoreAt, ObjectTransport};
use restage_transport::Metered;

use super::mirror::{is_plain, mirror};
use super::{Source, files};
use crate::failure::Failure;

/// Bytes of the first read of a weights file: most headers are shorter.
const START: u64 = 256 << 10;

/// Longest index that is fetched, in bytes: that of a checkpoint of files.
const MAX_INDEX_BYTES: u64 = 100_000_000;

/// Longest file that is fetched beside the weights, in bytes.
const MAX_COMPANION_BYTES: u64 = 64 << 20;

/// Files beside the weights that are asked for where a store lists none.
const COMPANIONS: [&str; 14] = [
    "config.json",
    "configuration.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

pub fn open(url: &str, sharded: bool) -> Result<Source, Failure> {
    let place = ObjectStoreAt::open(url).map_err(Failure::input)?;
    let transport = ObjectTransport::new(Limits::default()).map_err(Failure::input)?;
    let name = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let (mirror, dir) = mirror(name).map_err(Failure::Input)?;

    let mut objects = Objects { place, transport, dir: &dir };
    objects.mirror(sharded)?;
    let transport = Metered::new(Box::new(objects.transport) as Box<_>);
    // What is wrong is wrong with the object, not with what stands for it.
    let checkpoint = files::checkpoint(&dir, sharded).map_err(|failure| match failure {
        Failure::Input(error) => {
            let text = format!("{error:#}");
            Failure::Input(anyhow!(text.replace(&dir.display().to_string(), url.trim_end_matches('/'))))
        }
        other => other,
    })?;
    Ok(Source { checkpoint, transport, mirror: Some(mirror) })
}

struct Objects<'a> {
    place: ObjectStoreAt,
    transport: ObjectTransport,
    dir: &'a Path,
}

impl Objects<'_> {
    fn mirror(&mut self, sharded: bool) -> Result<(), Failure> {
        let listed = self.transport.names(&self.place).map_err(Failure::input)?;
        if sharded {
            let what = "sharded state is found by listing, which this store does not do";
            let Some(names) = &listed else {
                return Err(Failure::input(anyhow!("{}: {what}", self.place.name())));
            };
            let ranks = names.iter().filter(|n| n.starts_with("model-rank-") && n.ends_with(".safetensors"));
            ranks.cloned().collect::<Vec<_>>().iter().try_for_each(|name| self.weights(name))?;
            self.small(REPORT_FILE, MAX_COMPANION_BYTES)?;
        } else if let Some(index) = self.small(INDEX_FILE, MAX_INDEX_BYTES)? {
            for name in weights_of(&index) {
                self.weights(&name)?;
            }
        } else {
            self.weights(SINGLE_FILE)?;
        }
        match listed {
            Some(names) => {
                for name in names.iter().filter(|name| is_companion(name) && is_plain(name)) {
                    self.small(name, MAX_COMPANION_BYTES)?;
                }
            }
            None => {
                eprintln!(
                    "restage: note: {} is not listed: only files of usual names come along",
                    self.place.name()
                );
                for name in COMPANIONS {
                    self.small(name, MAX_COMPANION_BYTES)?;
                }
            }
        }
        Ok(())
    }

    /// Fetches a small file whole, if it is there.
    fn small(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, Failure> {
        let bytes = self.transport.whole(&self.place, name, limit).map_err(Failure::input)?;
        if let Some(bytes) = &bytes {
            self.put(name, |file| file.write_all(bytes))?;
        }
        Ok(bytes)
    }

    /// Registers a weights file, and makes the file that stands for it.
    fn weights(&mut self, name: &str) -> Result<(), Failure> {
        let size = self.transport.register(name, &self.place, name).map_err(Failure::input)?;
        let mut start = self.transport.start_of(name, START).map_err(Failure::input)?;
        if let Some(length) = start.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) {
            // A longer one is refused when it is opened.
            let header = length.min(MAX_HEADER_BYTES) + 8;
            if header > start.len() as u64 && size > start.len() as u64 {
                start = self.transport.start_of(name, header).map_err(Failure::input)?;
            }
            start.truncate(header as usize);
        }
        self.put(name, |file| {
            file.write_all(&start)?;
            file.set_len(size)
        })
    }

    fn put(&self, name: &str, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), Failure> {
        let path = self.dir.join(name);
        File::create(&path)
            .and_then(|mut file| fill(&mut file))
            .with_context(|| path.display().to_string())
            .map_err(Failure::Input)
    }
}

/// The files that an index names, as far as it can be read: what is wrong with it is said when it is opened.
fn weights_of(index: &[u8]) -> BTreeSet<String> {
    let index: serde_json::Value = serde_json::from_slice(index).unwrap_or_default();
    let map = index.get("weight_map").and_then(|map| map.as_object());
    let names = map.into_iter().flat_map(|map| map.values()).filter_map(|name| name.as_str());
    names.filter(|name| is_plain(name)).map(str::to_owned).collect()
}
