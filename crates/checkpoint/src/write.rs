//! One safetensors file, written by position.
//!
//! The law: the file is byte for byte what the safetensors crate's `serialize` makes of the same tensors. Its
//! order is by dtype, widest alignment first, then by name; its header is compact JSON padded with spaces to a
//! multiple of eight bytes. Where `serialize` leaves the order of `__metadata__` to chance, keys are sorted;
//! where it makes a header that is no JSON (no tensors, an empty `__metadata__`; version 0.8.0), this is one.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use restage_geometry::{Dtype, Region};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::ser::{Serialize, SerializeMap, Serializer};
use tempfile::{NamedTempFile, TempPath};

use crate::dtype::to_safetensors;
use crate::error::{WriteError, WriteProblem};
use crate::header::{LENGTH_BYTES, MAX_HEADER_BYTES, METADATA_KEY};

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
}

/// A safetensors file on its way: written under a temporary name beside the target, and given its name by
/// [`TensorFile::finish`]. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct TensorFile {
    target: PathBuf,
    file: File,
    temporary: TempPath,
    overwrite: bool,
    slots: HashMap<String, Slot>,
    bytes: u64,
}

/// Where a tensor goes, and whether it came.
#[derive(Debug)]
struct Slot {
    addr: u64,
    length: u64,
    state: AtomicU8,
}

const WAITING: u8 = 0;
const CLAIMED: u8 = 1;
const WRITTEN: u8 = 2;

impl TensorFile {
    /// Starts a file of these tensors, in any order, and writes its header. `metadata` is the free text of
    /// `__metadata__`. With `overwrite` an existing file is replaced at the end; without, it is refused now and
    /// at the end, and never touched.
    ///
    /// # Errors
    /// [`WriteError`]: the target exists or its directory does not; a name twice; a shape or dtype that the
    /// format cannot hold; a header that readers would refuse.
    pub fn create(
        path: impl AsRef<Path>,
        tensors: &[TensorSpec],
        metadata: Option<&BTreeMap<String, String>>,
        overwrite: bool,
    ) -> Result<TensorFile, WriteError> {
        let path = path.as_ref();
        create(path, tensors, metadata, overwrite)
            .map_err(|problem| WriteError { file: path.to_owned(), problem })
    }

    /// Writes a whole tensor, as row-major little-endian bytes. Threads may write at once.
    ///
    /// # Errors
    /// [`WriteError`]: a tensor that was not declared, of another length, or that was written already; the
    /// system's own. After the system's, the tensor may be written again.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), WriteError> {
        self.put(name, bytes).map_err(|problem| WriteError { file: self.target.clone(), problem })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), WriteProblem> {
        let tensor = || name.to_owned();
        let Some(slot) = self.slots.get(name) else {
            return Err(WriteProblem::Unknown { tensor: tensor() });
        };
        let found = bytes.len() as u64;
        if found != slot.length {
            return Err(WriteProblem::Length { tensor: tensor(), expected: slot.length, found });
        }
        let claim = slot.state.compare_exchange(WAITING, CLAIMED, Ordering::AcqRel, Ordering::Acquire);
        if claim.is_err() {
            return Err(WriteProblem::Repeated { tensor: tensor() });
        }
        let written = self.file.write_all_at(bytes, slot.addr);
        slot.state.store(if written.is_ok() { WRITTEN } else { WAITING }, Ordering::Release);
        Ok(written?)
    }

    /// Length of the finished file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the file its name, in one step. With `sync`, its bytes and its directory are on the disk before
    /// this returns.
    ///
    /// # Errors
    /// [`WriteError`]: a tensor never came; the target has come to exist and is not to be overwritten; the
    /// system's own. Nothing is left behind then.
    pub fn finish(self, sync: bool) -> Result<(), WriteError> {
        let target = self.target.clone();
        self.place(sync).map_err(|problem| WriteError { file: target, problem })
    }

    fn place(self, sync: bool) -> Result<(), WriteProblem> {
        let waiting = || {
            let slots = self.slots.iter();
            slots.filter(|(_, slot)| slot.state.load(Ordering::Acquire) != WRITTEN).map(|(name, _)| name)
        };
        if let Some(first) = waiting().min() {
            let (missing, declared) = (waiting().count(), self.slots.len());
            return Err(WriteProblem::Missing { tensor: first.clone(), missing, declared });
        }
        if sync {
            self.file.sync_all()?;
        }
        if self.overwrite {
            self.temporary.persist(&self.target).map_err(|e| e.error)?;
        } else {
            // A rename that cannot replace, so that a file that came meanwhile is safe.
            self.temporary.persist_noclobber(&self.target).map_err(|e| match e.error.kind() {
                io::ErrorKind::AlreadyExists => WriteProblem::Exists,
                _ => WriteProblem::Io(e.error),
            })?;
        }
        if sync {
            File::open(directory_of(&self.target))?.sync_all()?;
        }
        Ok(())
    }
}

fn create(
    path: &Path,
    tensors: &[TensorSpec],
    metadata: Option<&BTreeMap<String, String>>,
    overwrite: bool,
) -> Result<TensorFile, WriteProblem> {
    let Some(name) = path.file_name() else { return Err(WriteProblem::NotAFile) };
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => return Err(WriteProblem::NotAFile),
        Ok(_) if !overwrite => return Err(WriteProblem::Exists),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let (header, infos) = header(tensors, metadata)?;
    let slots: HashMap<String, Slot> = infos
        .into_iter()
        .map(|(name, info)| {
            let (begin, end) = info.data_offsets;
            let (addr, length) = (header.len() as u64 + begin as u64, (end - begin) as u64);
            (name, Slot { addr, length, state: AtomicU8::new(WAITING) })
        })
        .collect();
    let bytes = header.len() as u64 + slots.values().map(|slot| slot.length).sum::<u64>();
    let temporary = temporary_beside(directory_of(path), &name.to_string_lossy())?;
    let (file, temporary) = temporary.into_parts();
    file.write_all_at(&header, 0)?;
    Ok(TensorFile { target: path.to_owned(), file, temporary, overwrite, slots, bytes })
}

/// A temporary file beside `name`, `.{name}.partial-{pid}-{random}`, of the permissions that a new file of this
/// process has.
pub(crate) fn temporary_beside(dir: &Path, name: &str) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(&format!("{}{}-", partial_prefix(name), std::process::id()))
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir)
}

/// How the temporary names of a file or directory start.
pub(crate) fn partial_prefix(name: &str) -> String {
    format!(".{name}.partial-")
}

/// The directory that a path is in.
pub(crate) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

type Infos = Vec<(String, TensorInfo)>;

/// The bytes before the data section, and the tensors in the order of the file.
fn header(
    tensors: &[TensorSpec],
    metadata: Option<&BTreeMap<String, String>>,
) -> Result<(Vec<u8>, Infos), WriteProblem> {
    let mut infos = Vec::with_capacity(tensors.len());
    for TensorSpec { name, dtype, shape } in tensors {
        let (dtype, tensor) = (*dtype, || name.clone());
        if name == METADATA_KEY {
            return Err(WriteProblem::Reserved { tensor: tensor() });
        }
        let Some(stored) = to_safetensors(dtype) else {
            return Err(WriteProblem::Dtype { tensor: tensor(), dtype });
        };
        let unfit = || WriteProblem::Shape { tensor: tensor(), dtype, shape: shape.clone() };
        let elements = Region::whole(shape).ok().and_then(|r| r.numel()).ok_or_else(unfit)?;
        let length = dtype.bytes(elements as u64).and_then(|n| usize::try_from(n).ok()).ok_or_else(unfit)?;
        // Region::whole refused negative sizes.
        let shape = shape.iter().map(|&n| n as usize).collect();
        infos.push((tensor(), TensorInfo { dtype: stored, shape, data_offsets: (0, length) }));
    }
    infos.sort_by(|(a, x), (b, y)| y.dtype.cmp(&x.dtype).then_with(|| a.cmp(b)));
    let mut names: Vec<&str> = infos.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(WriteProblem::Twice { tensor: twice[0].to_owned() });
    }
    let mut stop = 0usize;
    for (name, info) in &mut infos {
        let end = stop.checked_add(info.data_offsets.1).filter(|&end| i64::try_from(end).is_ok());
        let Some(end) = end else {
            let spec = tensors.iter().find(|t| t.name == *name);
            let (dtype, shape) = spec.map(|t| (t.dtype, t.shape.clone())).unwrap_or((Dtype::U8, Vec::new()));
            return Err(WriteProblem::Shape { tensor: name.clone(), dtype, shape });
        };
        info.data_offsets = (stop, end);
        stop = end;
    }
    // What readers will check.
    Metadata::new(None, infos.clone())?;
    let mut text = serde_json::to_vec(&Entries { metadata, infos: &infos }).map_err(io::Error::from)?;
    text.resize(text.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    if text.len() as u64 > MAX_HEADER_BYTES {
        return Err(WriteProblem::HeaderTooLong { found: text.len() });
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    Ok((bytes, infos))
}

/// Serializes as [`Metadata`] does, but for the order of the free text.
struct Entries<'a> {
    metadata: Option<&'a BTreeMap<String, String>>,
    infos: &'a Infos,
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(metadata) = self.metadata {
            map.serialize_entry(METADATA_KEY, metadata)?;
        }
        for (name, info) in self.infos {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}
