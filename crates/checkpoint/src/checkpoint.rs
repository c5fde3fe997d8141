//! Opening a checkpoint: its files, its tensors, its catalog.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use restage_geometry::{Dtype, Region};
use restage_plan::{Catalog, CatalogError, CatalogProblem, Shard, Source};

use crate::error::CheckpointError;
use crate::gguf::Gguf;
use crate::header::{Header, HeaderTensor};
use crate::index::Index;
use crate::layout::{Layout, Listing};
use crate::names::{
    GGUF_END, INDEX_FILE, RankName, SINGLE_FILE, WEIGHTS_END, is_companion, rank_file, rank_name,
};

/// A checkpoint on disk, known by its headers; no tensor byte is read to open it.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    dir: PathBuf,
    layout: Layout,
    files: Vec<CheckpointFile>,
    tensors: Vec<CheckpointTensor>,
    notices: Vec<Notice>,
    companions: Vec<PathBuf>,
    gguf: Option<Gguf>,
}

/// A weights file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFile {
    /// Its name in the directory, which is also its session.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// The free text under `__metadata__` in its header, if there is any.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Its rank, in sharded state.
    pub rank: Option<u32>,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointTensor {
    /// Its name in the file.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
    /// Position of its file in [`Checkpoint::files`].
    pub file: usize,
    /// Where it starts, in bytes from the start of the file.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The rank that it is a shard of, in sharded state.
    pub rank: Option<u32>,
}

impl CheckpointTensor {
    /// A tensor of a file's header.
    fn of(tensor: &HeaderTensor, file: usize, rank: Option<u32>) -> Self {
        CheckpointTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            file,
            addr: tensor.addr,
            length: tensor.length,
            rank,
        }
    }

    /// The name of its source in the catalog: its own, or [`rank_source`] in sharded state.
    pub fn source(&self) -> String {
        match self.rank {
            Some(rank) => rank_source(rank, &self.name),
            None => self.name.clone(),
        }
    }
}

/// Something that is odd and does no harm.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A weights file beside the checkpoint that is no part of it.
    Ignored {
        /// The file's name.
        file: String,
    },
    /// The index says another sum of bytes than the files hold.
    TotalSize {
        /// `metadata.total_size`, in bytes.
        declared: u64,
        /// Sum over the tensors, in bytes.
        found: u64,
    },
    /// A link that leads nowhere: a file that should have come along does not.
    BrokenLink {
        /// The link's name.
        file: String,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Ignored { file } => write!(f, "{file:?} is no part of the checkpoint: ignored"),
            Notice::TotalSize { declared, found } => {
                write!(f, "{INDEX_FILE}: total_size is {declared} bytes, the tensors have {found}")
            }
            Notice::BrokenLink { file } => write!(f, "{file:?} is a link that leads nowhere: ignored"),
        }
    }
}

/// The name of a rank's tensor in the catalog of sharded state.
///
/// ```
/// assert_eq!(restage_checkpoint::rank_source(3, "lm_head.weight"), "rank3/lm_head.weight");
/// ```
pub fn rank_source(rank: u32, name: &str) -> String {
    format!("rank{rank}/{name}")
}

impl Checkpoint {
    /// Opens a directory or a single `.safetensors` or `.gguf` file. A directory is, in this order, indexed
    /// (`model.safetensors.index.json`), a single file (`model.safetensors`) or sharded state
    /// (`model-rank-{rank}-part-{part}.safetensors`).
    ///
    /// # Errors
    /// [`CheckpointError`]: nothing to open, two layouts in one directory, a missing file or tensor, a tensor
    /// in two files, a malformed header or index.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let path = path.as_ref();
        let listing = match found(path)? {
            Found::Directory(listing) => listing,
            Found::Safetensors => return open_file(path),
            Found::Gguf => return open_gguf(path),
        };
        let whole = [INDEX_FILE, SINGLE_FILE].into_iter().find(|name| listing.has(name));
        match (whole, listing.has_ranks()) {
            (Some(first), true) => Err(CheckpointError::Ambiguous {
                first: first.to_owned(),
                second: listing
                    .files
                    .iter()
                    .find(|f| rank_name(f) != RankName::Other)
                    .cloned()
                    .unwrap_or_default(),
                dir: listing.dir,
            }),
            (Some(INDEX_FILE), false) => open_indexed(listing),
            (Some(_), false) => open_single(listing),
            (None, true) => open_sharded(listing, None),
            (None, false) => Err(not_found(&listing, &[INDEX_FILE, SINGLE_FILE, &rank_file(0, 0)])),
        }
    }

    /// Opens a path in one layout, whatever else is there. Of sharded state, exactly `ranks` ranks must be
    /// there; [`Checkpoint::layouts`] tells how many are.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_as(path: impl AsRef<Path>, layout: Layout) -> Result<Checkpoint, CheckpointError> {
        let path = path.as_ref();
        let listing = match (found(path)?, layout) {
            (Found::Directory(listing), _) => listing,
            (Found::Safetensors, Layout::Single) => return open_file(path),
            (Found::Gguf, Layout::Gguf) => return open_gguf(path),
            (Found::Safetensors | Found::Gguf, _) => {
                return Err(CheckpointError::NotFound {
                    path: path.to_owned(),
                    found: "is a file".to_owned(),
                    looked_for: format!("a directory of {layout}"),
                });
            }
        };
        match layout {
            Layout::Indexed if listing.has(INDEX_FILE) => open_indexed(listing),
            Layout::Indexed => Err(not_found(&listing, &[INDEX_FILE])),
            Layout::Single if listing.has(SINGLE_FILE) => open_single(listing),
            Layout::Single => Err(not_found(&listing, &[SINGLE_FILE])),
            Layout::ShardedState { ranks } if listing.has_ranks() => open_sharded(listing, Some(ranks)),
            Layout::ShardedState { .. } => Err(not_found(&listing, &[&rank_file(0, 0)])),
            Layout::Gguf => Err(not_found(&listing, &["a .gguf file by its own path"])),
        }
    }

    /// The layouts that the file names at a path spell, for choosing one for [`Checkpoint::open_as`]. No file
    /// is opened.
    ///
    /// # Errors
    /// [`CheckpointError`] when the path is neither a directory nor a `.safetensors` file, or when a rank or
    /// part of sharded state is missing.
    pub fn layouts(path: impl AsRef<Path>) -> Result<Vec<Layout>, CheckpointError> {
        match found(path.as_ref())? {
            Found::Directory(listing) => listing.layouts(),
            Found::Safetensors => Ok(vec![Layout::Single]),
            Found::Gguf => Ok(vec![Layout::Gguf]),
        }
    }

    /// How its files divide its tensors.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The directory that its files are in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its weights files, by name, or by rank and part.
    pub fn files(&self) -> &[CheckpointFile] {
        &self.files
    }

    /// Its tensors, by name, then by rank.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &CheckpointTensor> {
        self.tensors.iter()
    }

    /// A tensor by name, and by rank in sharded state.
    pub fn tensor(&self, name: &str, rank: Option<u32>) -> Option<&CheckpointTensor> {
        let at = self.tensors.binary_search_by(|t| (t.name.as_str(), t.rank).cmp(&(name, rank))).ok()?;
        self.tensors.get(at)
    }

    /// What is odd about it.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Other files in its directory that belong with the weights wherever they go, by name
    /// ([`is_companion`]).
    pub fn companions(&self) -> &[PathBuf] {
        &self.companions
    }

    /// The header of a GGUF file, where it is one: metadata is in there.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.gguf.as_ref()
    }

    /// The sources that a planner can read from: one a tensor, of one shard that is the whole of it. The
    /// session is the name of the file and the address is in bytes from its start. Sources of sharded state
    /// are named by [`rank_source`].
    ///
    /// # Errors
    /// [`CheckpointError::Catalog`] when the catalog cannot hold a tensor: one of a packed dtype whose rows
    /// end inside of a block.
    pub fn catalog(&self) -> Result<Catalog, CheckpointError> {
        let sessions: Vec<Arc<str>> = self.files.iter().map(|f| f.name.as_str().into()).collect();
        let mut catalog = Catalog::new();
        for tensor in &self.tensors {
            let name = tensor.source();
            let refused = |error| CheckpointError::Catalog { dir: self.dir.clone(), error: Box::new(error) };
            let region = Region::whole(&tensor.shape).map_err(|e| {
                refused(CatalogError { source_name: name.clone(), problem: CatalogProblem::Region(e) })
            })?;
            let shards = vec![Shard {
                region,
                session: sessions[tensor.file].clone(),
                addr: tensor.addr,
                digest: None,
            }];
            let source = Source { dtype: tensor.dtype, shape: tensor.shape.clone(), shards };
            catalog.insert(name, source).map_err(refused)?;
        }
        Ok(catalog)
    }

    /// The sessions of the catalog and the files behind them.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = (&str, &Path)> {
        self.files.iter().map(|f| (f.name.as_str(), f.path.as_path()))
    }
}

/// What a path leads to.
enum Found {
    Directory(Listing),
    Safetensors,
    Gguf,
}

fn found(path: &Path) -> Result<Found, CheckpointError> {
    let named = |end: &str| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.ends_with(end));
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Listing::read(path).map(Found::Directory),
        Ok(_) if named(WEIGHTS_END) => Ok(Found::Safetensors),
        Ok(_) if named(GGUF_END) => Ok(Found::Gguf),
        Ok(_) => Err(CheckpointError::NotACheckpoint { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CheckpointError::NotFound {
            path: path.to_owned(),
            found: "does not exist".to_owned(),
            looked_for: "a .safetensors or .gguf file, or a directory with a checkpoint".to_owned(),
        }),
        Err(error) => Err(CheckpointError::Io { path: path.to_owned(), error }),
    }
}

fn not_found(listing: &Listing, looked_for: &[&str]) -> CheckpointError {
    let broken = listing.broken.iter().find(|name| looked_for.contains(&name.as_str()));
    let found = if let Some(name) = broken {
        format!("{name:?} is a link that leads nowhere")
    } else if let Some(first) = listing.weights().next() {
        let count = listing.weights().count();
        format!("holds no checkpoint ({count} other weights files, first {first:?})")
    } else if listing.files.is_empty() {
        "holds no file".to_owned()
    } else {
        "holds no checkpoint".to_owned()
    };
    CheckpointError::NotFound { path: listing.dir.clone(), found, looked_for: looked_for.join(", ") }
}

/// One file by its own path. What else is in its directory is no concern, except for companions.
fn open_file(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let (dir, name) = apart(path);
    let mut opened = Opened::new(Listing::read(dir)?);
    opened.add(name, path.to_owned(), None)?;
    Ok(opened.finish(Layout::Single, Vec::new()))
}

fn open_gguf(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let gguf = Gguf::read(path)?;
    let (dir, name) = apart(path);
    let session =
        CheckpointFile { name, path: path.to_owned(), length: gguf.file_bytes(), metadata: None, rank: None };
    let mut tensors: Vec<_> = gguf.tensors().iter().map(|t| CheckpointTensor::of(t, 0, None)).collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Checkpoint {
        dir: dir.to_owned(),
        layout: Layout::Gguf,
        files: vec![session],
        tensors,
        notices: Vec::new(),
        companions: Vec::new(),
        gguf: Some(gguf),
    })
}

/// The directory of a file, and its name there.
fn apart(path: &Path) -> (&Path, String) {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => (dir, name),
        _ => (Path::new("."), name),
    }
}

fn open_single(listing: Listing) -> Result<Checkpoint, CheckpointError> {
    let mut opened = Opened::new(listing);
    opened.add_named(SINGLE_FILE.to_owned(), None)?;
    let notices = opened.strays();
    Ok(opened.finish(Layout::Single, notices))
}

fn open_sharded(listing: Listing, expected: Option<u32>) -> Result<Checkpoint, CheckpointError> {
    let parts = listing.ranks(expected)?;
    let mut opened = Opened::new(listing);
    for (rank, &parts) in (0..).zip(&parts) {
        for part in 0..parts {
            opened.add_named(rank_file(rank, part), Some(rank))?;
        }
    }
    let notices = opened.strays();
    Ok(opened.finish(Layout::ShardedState { ranks: parts.len() as u32 }, notices))
}

fn open_indexed(listing: Listing) -> Result<Checkpoint, CheckpointError> {
    let path = listing.dir.join(INDEX_FILE);
    let index = Index::read(&path)?;
    let mut names = BTreeSet::new();
    for (tensor, file) in &index.weight_map {
        if !listing.has(file) {
            return Err(CheckpointError::MissingFile {
                dir: listing.dir,
                file: file.clone(),
                because: format!("{INDEX_FILE} says that it holds tensor {tensor:?}"),
            });
        }
        names.insert(file.as_str());
    }
    let mut opened = Opened::new(listing);
    for name in names {
        opened.add_named(name.to_owned(), None)?;
    }
    for ((tensor, _), &(file, _)) in &opened.tensors {
        let file = &opened.files[file].name;
        if !index.weight_map.contains_key(tensor) {
            let (tensor, file) = (tensor.clone(), file.clone());
            return Err(CheckpointError::NotInIndex { index: path, tensor, file });
        }
    }
    for (tensor, file) in &index.weight_map {
        let holder = opened.tensors.get(&(tensor.clone(), None)).map(|&(f, _)| &opened.files[f].name);
        if holder != Some(file) {
            let (tensor, file) = (tensor.clone(), file.clone());
            return Err(CheckpointError::NotInFile { index: path, tensor, file });
        }
    }
    let mut notices = opened.strays();
    let found = opened.headers.iter().flat_map(|h| h.tensors()).map(|t| t.length).sum();
    if let Some(declared) = index.total_size().filter(|&declared| declared != found) {
        notices.push(Notice::TotalSize { declared, found });
    }
    Ok(opened.finish(Layout::Indexed, notices))
}

/// A checkpoint while its headers are read.
struct Opened {
    listing: Listing,
    files: Vec<CheckpointFile>,
    headers: Vec<Header>,
    /// Name and rank to the file and the place in its header.
    tensors: BTreeMap<(String, Option<u32>), (usize, usize)>,
}

impl Opened {
    fn new(listing: Listing) -> Opened {
        Opened { listing, files: Vec::new(), headers: Vec::new(), tensors: BTreeMap::new() }
    }

    fn add_named(&mut self, name: String, rank: Option<u32>) -> Result<(), CheckpointError> {
        let path = self.listing.dir.join(&name);
        self.add(name, path, rank)
    }

    fn add(&mut self, name: String, path: PathBuf, rank: Option<u32>) -> Result<(), CheckpointError> {
        let header = Header::read(&path)?;
        for (at, tensor) in header.tensors().iter().enumerate() {
            let place = (self.files.len(), at);
            if let Some((first, _)) = self.tensors.insert((tensor.name.clone(), rank), place) {
                return Err(CheckpointError::TensorTwice {
                    dir: self.listing.dir.clone(),
                    tensor: tensor.name.clone(),
                    first: self.files[first].name.clone(),
                    second: name,
                });
            }
        }
        let (length, metadata) = (header.file_bytes(), header.text());
        self.files.push(CheckpointFile { name, path, length, metadata, rank });
        self.headers.push(header);
        Ok(())
    }

    /// Weights files in the directory that were not opened.
    fn strays(&self) -> Vec<Notice> {
        let opened: BTreeSet<&str> = self.files.iter().map(|f| f.name.as_str()).collect();
        let stray = self.listing.weights().filter(|name| !opened.contains(name));
        stray.map(|name| Notice::Ignored { file: name.to_owned() }).collect()
    }

    fn finish(self, layout: Layout, mut notices: Vec<Notice>) -> Checkpoint {
        let headers = self.headers;
        let describe = |((_, rank), (file, at)): (&(String, Option<u32>), &(usize, usize))| {
            CheckpointTensor::of(&headers[*file].tensors()[*at], *file, *rank)
        };
        let tensors = self.tensors.iter().map(describe).collect();
        let Listing { dir, files: names, broken } = self.listing;
        let lost = broken
            .into_iter()
            .filter(|name| is_companion(name) || name == INDEX_FILE || name.ends_with(WEIGHTS_END));
        notices.extend(lost.map(|file| Notice::BrokenLink { file }));
        let companions = names.iter().filter(|name| is_companion(name)).map(|name| dir.join(name)).collect();
        Checkpoint { dir, layout, files: self.files, tensors, notices, companions, gguf: None }
    }
}
