//! GGUF files: typed metadata and tensors, of which only the header is read.
//!
//! Format (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>), versions 2 and 3, little-endian: the bytes
//! `GGUF`, a `u32` version, a `u64` number of tensors, a `u64` number of metadata entries; the entries (key, `u32` type,
//! value); per tensor its name, a `u32` number of dimensions, that many `u64` sizes with the innermost first, a `u32`
//! type and a `u64` offset; zeros up to a multiple of `general.alignment` (32 unless said otherwise); the tensors' bytes,
//! which the offsets count from. A string is a `u64` length and that many bytes of UTF-8.
//!
//! Nothing is believed before it is checked: counts and lengths against the bytes that are left, offsets against the
//! file's length and against each other.

mod cursor;
mod error;
mod value;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use restage_geometry::Dtype;

use crate::header::HeaderTensor;
use cursor::Cursor;
pub use error::{GgufError, GgufProblem};
pub use value::{Array, Strings, Value};

/// Longest header that is read, in bytes: metadata and the list of tensors. The vocabularies of today's models take some
/// tens of MiB.
pub const MAX_GGUF_HEADER_BYTES: u64 = 512 << 20;

/// Most dimensions of a tensor: those of ggml.
const MAX_DIMS: u32 = 4;

/// The alignment of a file that does not say.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The header of a GGUF file: every tensor lies inside of the file, and no two overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    path: PathBuf,
    version: u32,
    file_bytes: u64,
    metadata: BTreeMap<String, Value>,
    tensors: Vec<HeaderTensor>,
}

impl Gguf {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// [`GgufError`] with the file and what is wrong with it.
    pub fn read(path: impl AsRef<Path>) -> Result<Gguf, GgufError> {
        let path = path.as_ref();
        read(path).map_err(|problem| GgufError { file: path.to_owned(), problem })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Length of the file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The metadata, by key.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// The tensors in the order of the file, with the outermost dimension first.
    pub fn tensors(&self) -> &[HeaderTensor] {
        &self.tensors
    }
}

fn read(path: &Path) -> Result<Gguf, GgufProblem> {
    let mut cursor = Cursor::open(path, MAX_GGUF_HEADER_BYTES)?;
    match &cursor.bytes::<4>("the magic")? {
        b"GGUF" => {}
        found => return Err(GgufProblem::Magic { found: String::from_utf8_lossy(found).into_owned() }),
    }
    let version = cursor.u32("the version")?;
    if !(2..=3).contains(&version) {
        return Err(GgufProblem::Version { found: version });
    }
    // A tensor takes at least a name's length, a number of dimensions, one of them, a type and an offset.
    let tensors = cursor.count("the number of tensors", 8 + 4 + 8 + 4 + 8)?;
    let entries = cursor.count("the number of metadata entries", 8 + 4 + 1)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..entries {
        let key = cursor.string("a metadata key")?;
        let value = value::read(&mut cursor, &key)?;
        match metadata.entry(key) {
            Entry::Vacant(slot) => drop(slot.insert(value)),
            Entry::Occupied(slot) => return Err(GgufProblem::KeyTwice { key: slot.key().clone() }),
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::U32(n)) if *n > 0 && n.is_multiple_of(8) => u64::from(*n),
        Some(found) => return Err(GgufProblem::Alignment { found: found.to_string() }),
    };
    let mut list = Vec::new();
    for _ in 0..tensors {
        list.push(tensor(&mut cursor)?);
    }
    let header = cursor.at();
    let start = header
        .checked_next_multiple_of(alignment)
        .ok_or(GgufProblem::Overflow { tensor: String::new(), what: "the start of the data" })?;
    let tensors = place(list, start, alignment, cursor.file_bytes())?;
    Ok(Gguf { path: path.to_owned(), version, file_bytes: cursor.file_bytes(), metadata, tensors })
}

/// One entry of the list of tensors; its address is still an offset into the data.
fn tensor(cursor: &mut Cursor) -> Result<HeaderTensor, GgufProblem> {
    let name = cursor.string("a tensor's name")?;
    let ndims = cursor.u32(&name)?;
    if !(1..=MAX_DIMS).contains(&ndims) {
        return Err(GgufProblem::Dims { tensor: name, found: ndims });
    }
    let overflow = |what| GgufProblem::Overflow { tensor: name.clone(), what };
    let mut shape = Vec::with_capacity(ndims as usize);
    let mut elements = 1u64;
    for _ in 0..ndims {
        let size = cursor.u64(&name)?;
        if size == 0 {
            return Err(GgufProblem::EmptyDim { tensor: name });
        }
        shape.push(i64::try_from(size).map_err(|_| overflow("a dimension"))?);
        elements = elements.checked_mul(size).ok_or_else(|| overflow("the number of elements"))?;
    }
    let id = cursor.u32(&name)?;
    let dtype = dtype(id).map_err(|found| GgufProblem::Type { tensor: name.clone(), id, found })?;
    let row = shape[0] as u64;
    shape.reverse();
    if i64::try_from(elements).is_err() {
        return Err(overflow("the number of elements"));
    }
    if !row.is_multiple_of(dtype.packing().elements) {
        let block = dtype.packing().elements;
        return Err(GgufProblem::CutBlock { tensor: name, dtype, row, block });
    }
    let length = dtype.bytes(elements).ok_or_else(|| overflow("the number of bytes"))?;
    let addr = cursor.u64(&name)?;
    Ok(HeaderTensor { name, dtype, shape, addr, length })
}

/// Turns offsets into addresses, and refuses what is misaligned, outside of the file, named twice or overlapping.
fn place(
    mut tensors: Vec<HeaderTensor>,
    start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<HeaderTensor>, GgufProblem> {
    for t in &mut tensors {
        if !t.addr.is_multiple_of(alignment) {
            return Err(GgufProblem::Misaligned { tensor: t.name.clone(), offset: t.addr, alignment });
        }
        let end = start.checked_add(t.addr).and_then(|at| at.checked_add(t.length));
        match end {
            Some(end) if end <= file_bytes => t.addr += start,
            _ => {
                let (tensor, offset, length) = (t.name.clone(), t.addr, t.length);
                return Err(GgufProblem::PastEnd { tensor, offset, length, start, file_bytes });
            }
        }
    }
    let mut order: Vec<&HeaderTensor> = tensors.iter().collect();
    order.sort_by_key(|t| t.addr);
    for pair in order.windows(2) {
        if pair[0].addr + pair[0].length > pair[1].addr {
            let (first, second) = (pair[0].name.clone(), pair[1].name.clone());
            return Err(GgufProblem::Overlap { first, second });
        }
    }
    order.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(GgufProblem::TensorTwice { tensor: pair[0].name.clone() });
    }
    Ok(tensors)
}

/// The dtype of a ggml type, or the name of one that is not read.
fn dtype(id: u32) -> Result<Dtype, &'static str> {
    Ok(match id {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        8 => Dtype::Q8_0,
        12 => Dtype::Q4K,
        14 => Dtype::Q6K,
        24 => Dtype::I8,
        25 => Dtype::I16,
        26 => Dtype::I32,
        27 => Dtype::I64,
        28 => Dtype::F64,
        30 => Dtype::BF16,
        6 => return Err("Q5_0"),
        7 => return Err("Q5_1"),
        9 => return Err("Q8_1"),
        10 => return Err("Q2_K"),
        11 => return Err("Q3_K"),
        13 => return Err("Q5_K"),
        15 => return Err("Q8_K"),
        16 => return Err("IQ2_XXS"),
        17 => return Err("IQ2_XS"),
        18 => return Err("IQ3_XXS"),
        19 => return Err("IQ1_S"),
        20 => return Err("IQ4_NL"),
        21 => return Err("IQ3_S"),
        22 => return Err("IQ2_S"),
        23 => return Err("IQ4_XS"),
        29 => return Err("IQ1_M"),
        34 => return Err("TQ1_0"),
        35 => return Err("TQ2_0"),
        39 => return Err("MXFP4"),
        _ => return Err("unknown"),
    })
}
