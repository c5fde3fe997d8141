//! Which layout a directory is in.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;
use crate::names::{INDEX_FILE, RankName, SINGLE_FILE, WEIGHTS_END, rank_file, rank_name};

/// How the files of a checkpoint divide its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Layout {
    /// One file holds every tensor: `model.safetensors`, or any one file that is opened by its own path.
    Single,
    /// `model.safetensors.index.json` says which file holds which tensor.
    Indexed,
    /// vLLM's sharded state: `model-rank-{rank}-part-{part}.safetensors`.
    ShardedState {
        /// Number of ranks.
        ranks: u32,
    },
    /// One GGUF file, which has its model's configuration and tokenizer in it and llama.cpp's names for tensors.
    Gguf,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Single => f.write_str("single file"),
            Layout::Indexed => f.write_str("indexed files"),
            Layout::ShardedState { ranks } => write!(f, "sharded state of {ranks} ranks"),
            Layout::Gguf => f.write_str("GGUF file"),
        }
    }
}

impl Layout {
    /// True when the tensors are the full ones under their Hugging Face names, in one or several files.
    pub fn is_whole(self) -> bool {
        matches!(self, Layout::Single | Layout::Indexed)
    }
}

/// The files of a directory, as far as a checkpoint cares.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) dir: PathBuf,
    /// Names of regular files (or links to such), sorted; hidden files and names that are not UTF-8 left out.
    pub(crate) files: Vec<String>,
    /// Names of links that lead nowhere.
    pub(crate) broken: Vec<String>,
}

impl Listing {
    pub(crate) fn read(dir: &Path) -> Result<Listing, CheckpointError> {
        let io = |error| CheckpointError::Io { path: dir.to_owned(), error };
        let (mut files, mut broken) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(dir).map_err(io)? {
            let entry = entry.map_err(io)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') {
                continue;
            }
            // Links are followed: download caches keep the files elsewhere. One that cannot be is no reason to
            // fail before it is known whether the file matters.
            match fs::metadata(entry.path()) {
                Ok(meta) if meta.is_file() => files.push(name),
                Ok(_) => {}
                Err(_) => broken.push(name),
            }
        }
        files.sort_unstable();
        broken.sort_unstable();
        Ok(Listing { dir: dir.to_owned(), files, broken })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.binary_search_by(|f| f.as_str().cmp(name)).is_ok()
    }

    /// True when any file calls itself a part of a rank, well or badly.
    pub(crate) fn has_ranks(&self) -> bool {
        self.files.iter().any(|name| rank_name(name) != RankName::Other)
    }

    /// Weights files of any name.
    pub(crate) fn weights(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str).filter(|name| name.ends_with(WEIGHTS_END))
    }

    /// Number of parts of each rank; with `expected`, exactly that many ranks.
    ///
    /// # Errors
    /// A rank or part that is missing below one that is there, or a name that only looks like one.
    pub(crate) fn ranks(&self, expected: Option<u32>) -> Result<Vec<u32>, CheckpointError> {
        // Number of parts that are there, and the highest part.
        let mut found: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for name in &self.files {
            match rank_name(name) {
                RankName::Part { rank, part } => {
                    let (count, highest) = found.entry(rank).or_default();
                    (*count, *highest) = (*count + 1, part.max(*highest));
                }
                RankName::Malformed => {
                    return Err(CheckpointError::RankName { dir: self.dir.clone(), file: name.clone() });
                }
                RankName::Other => {}
            }
        }
        let missing = |rank, part, because: String| CheckpointError::MissingFile {
            dir: self.dir.clone(),
            file: rank_file(rank, part),
            because,
        };
        for name in &self.broken {
            if let RankName::Part { rank, part } = rank_name(name) {
                return Err(missing(rank, part, "a link that leads nowhere".to_owned()));
            }
        }
        let mut parts = Vec::with_capacity(found.len());
        for (rank, (count, highest)) in found {
            // As many ranks came before as there should have, or one of them is missing.
            let next = parts.len() as u32;
            if rank != next {
                return Err(missing(next, 0, format!("rank {rank} is there")));
            }
            if count - 1 != highest {
                let hole = (0..highest).find(|&part| !self.has(&rank_file(rank, part))).unwrap_or(highest);
                return Err(missing(rank, hole, format!("part {highest} of rank {rank} is there")));
            }
            parts.push(count);
        }
        match (expected, parts.len() as u32) {
            (Some(expected), ranks) if ranks < expected => {
                Err(missing(ranks, 0, format!("expected {expected} ranks")))
            }
            (Some(expected), ranks) if ranks > expected => {
                Err(CheckpointError::RankCount { dir: self.dir.clone(), expected, found: ranks })
            }
            _ => Ok(parts),
        }
    }

    /// Every layout that the names in the directory spell.
    pub(crate) fn layouts(&self) -> Result<Vec<Layout>, CheckpointError> {
        let mut layouts = Vec::new();
        if self.has(INDEX_FILE) {
            layouts.push(Layout::Indexed);
        }
        if self.has(SINGLE_FILE) {
            layouts.push(Layout::Single);
        }
        if self.has_ranks() {
            layouts.push(Layout::ShardedState { ranks: self.ranks(None)?.len() as u32 });
        }
        Ok(layouts)
    }
}
