//! The header of a safetensors file.
//!
//! Format (<https://github.com/huggingface/safetensors>): eight bytes of little-endian header length, that many
//! bytes of JSON, and the data section. Tensors follow one another in it without a hole or an overlap, and it
//! ends with the last of them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use restage_geometry::Dtype;
use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use thiserror::Error;

use crate::dtype::{from_safetensors, stored_by_name};
use crate::json::{self, JsonProblem};

/// Longest header that is read, in bytes: the limit of the safetensors format.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes before the JSON, which hold its length.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// The key of a header that is not a tensor.
pub(crate) const METADATA_KEY: &str = "__metadata__";

/// A checked header: every tensor lies inside of the file, and they cover its data section exactly.
#[derive(Debug, Clone)]
pub struct Header {
    file_bytes: u64,
    data_start: u64,
    metadata: Metadata,
    tensors: Vec<HeaderTensor>,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
    /// Where it starts, in bytes from the start of the file.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// A file whose header cannot be believed.
#[derive(Debug, Error)]
#[error("{}: {problem}", file.display())]
pub struct HeaderError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: HeaderProblem,
}

/// What can be wrong with a safetensors file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HeaderProblem {
    /// The file could not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A directory, pipe or device.
    #[error("not a regular file")]
    NotAFile,
    /// No room for the length of the header.
    #[error("expected at least 8 bytes, found {found}")]
    TooShort {
        /// Length of the file, in bytes.
        found: u64,
    },
    /// The header is longer than the format allows.
    #[error("header of {found} bytes, expected at most {MAX_HEADER_BYTES}")]
    HeaderTooLong {
        /// Its declared length, in bytes.
        found: u64,
    },
    /// The header ends past the end of the file.
    #[error("header of {header} bytes needs a file of at least {expected} bytes, found {found}")]
    HeaderPastEnd {
        /// Declared length of the header, in bytes.
        header: u64,
        /// Shortest file that holds it, in bytes.
        expected: u64,
        /// Length of the file, in bytes.
        found: u64,
    },
    /// The header is not text.
    #[error("header is not UTF-8 at its byte {at}")]
    NotUtf8 {
        /// First bad byte, counted from the start of the JSON.
        at: usize,
    },
    /// The header is not JSON, or not of the format's form.
    #[error("header: {0}")]
    NotJson(String),
    /// A tensor is listed twice.
    #[error("tensor {tensor:?} appears twice in the header")]
    TensorTwice {
        /// The tensor.
        tensor: String,
    },
    /// A key other than a tensor's name is given twice.
    #[error("header: {0}")]
    KeyTwice(String),
    /// A dtype that the format does not have.
    #[error("tensor {tensor:?}: unknown dtype {found:?}")]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        found: String,
    },
    /// A shape of more than 2^63 elements or bytes.
    #[error("tensor {tensor:?}: shape {shape:?} of {dtype} does not fit in 63 bits")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape, in elements.
        shape: Vec<u64>,
    },
    /// A tensor of a sub-byte dtype that ends inside of a byte.
    #[error("tensor {tensor:?}: shape {shape:?} of {dtype} is no whole number of bytes")]
    CutByte {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape, in elements.
        shape: Vec<u64>,
    },
    /// Shape and dtype ask for another number of bytes than the offsets span.
    #[error(
        "tensor {tensor:?}: shape {shape:?} of {dtype} expected {expected} bytes, found offsets {begin}..{end}"
    )]
    Size {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape, in elements.
        shape: Vec<u64>,
        /// Bytes of that shape.
        expected: u64,
        /// First byte, counted from the start of the data section.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A tensor starts inside of the one before it.
    #[error("tensor {tensor:?}: overlaps {before:?}: expected to start at {expected}, found {found}")]
    Overlap {
        /// The tensor.
        tensor: String,
        /// The one before it.
        before: String,
        /// Where that one ends, in bytes from the start of the data section.
        expected: u64,
        /// Where the tensor starts.
        found: u64,
    },
    /// Bytes before a tensor belong to none.
    #[error("tensor {tensor:?}: leaves a hole: expected to start at {expected}, found {found}")]
    Hole {
        /// The tensor.
        tensor: String,
        /// Where the tensors before it end, in bytes from the start of the data section.
        expected: u64,
        /// Where it starts.
        found: u64,
    },
    /// Tensors reach past the end of the file.
    #[error("tensor {tensor:?}: ends past the end of the file: expected {expected} bytes, found {found}")]
    Truncated {
        /// The first tensor that does.
        tensor: String,
        /// Length of the file that the header describes, in bytes.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// The file goes on after the last tensor.
    #[error("bytes after the last tensor: expected {expected} bytes, found {found}")]
    Trailing {
        /// Length of the file that the header describes, in bytes.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
    /// The safetensors crate refuses what passed every check above.
    #[error("header: {0}")]
    Refused(#[from] SafeTensorError),
}

impl Header {
    /// Reads and checks the header of a file; no tensor byte is read.
    ///
    /// # Errors
    /// [`HeaderError`] with the file, the tensor, and what was expected and found.
    pub fn read(path: &Path) -> Result<Header, HeaderError> {
        read(path).map_err(|problem| HeaderError { file: path.to_owned(), problem })
    }

    /// Length of the file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Where the data section starts, in bytes from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// The header as the safetensors crate holds it.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The free text under `__metadata__`, by key, if the header has it.
    pub fn text(&self) -> Option<BTreeMap<String, String>> {
        let text = self.metadata.metadata().as_ref()?;
        Some(text.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> &[HeaderTensor] {
        &self.tensors
    }
}

fn read(path: &Path) -> Result<Header, HeaderProblem> {
    // Looked at before it is opened: opening a pipe would wait for its other end.
    if !fs::metadata(path)?.is_file() {
        return Err(HeaderProblem::NotAFile);
    }
    let mut file = File::open(path)?;
    let file_bytes = file.metadata()?.len();
    if file_bytes < LENGTH_BYTES {
        return Err(HeaderProblem::TooShort { found: file_bytes });
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length)?;
    let header = u64::from_le_bytes(length);
    if header > MAX_HEADER_BYTES {
        return Err(HeaderProblem::HeaderTooLong { found: header });
    }
    let data_start = LENGTH_BYTES + header;
    if data_start > file_bytes {
        return Err(HeaderProblem::HeaderPastEnd { header, expected: data_start, found: file_bytes });
    }
    let mut text = vec![0; header as usize];
    file.read_exact(&mut text)?;
    let text = str::from_utf8(&text).map_err(|e| HeaderProblem::NotUtf8 { at: e.valid_up_to() })?;
    let raw: RawHeader = json::parse(text).map_err(|problem| match problem {
        JsonProblem::Repeated(path) if path.len() == 1 && path[0] != METADATA_KEY => {
            HeaderProblem::TensorTwice { tensor: path.concat() }
        }
        JsonProblem::Repeated(_) => HeaderProblem::KeyTwice(problem.to_string()),
        JsonProblem::Malformed(_) => HeaderProblem::NotJson(problem.to_string()),
    })?;
    let metadata = check(raw, data_start, file_bytes)?;
    let tensors = listed(&metadata, data_start)?;
    Ok(Header { file_bytes, data_start, metadata, tensors })
}

/// A header before anything in it is believed.
struct RawHeader {
    text: Option<HashMap<String, String>>,
    tensors: Vec<(String, RawTensor)>,
}

#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader { text: None, tensors: Vec::new() };
                while let Some(key) = map.next_key::<String>()? {
                    // serde_json finds the position at the end of the wrapped message again.
                    if key == METADATA_KEY {
                        header.text =
                            map.next_value().map_err(|e| A::Error::custom(format!("{key}: {e}")))?;
                    } else {
                        let tensor =
                            map.next_value().map_err(|e| A::Error::custom(format!("tensor {key:?}: {e}")))?;
                        header.tensors.push((key, tensor));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Keeps the rules of [`Metadata`]'s own validation, which names neither bytes nor, mostly, the tensor; then
/// lets it validate once more.
fn check(raw: RawHeader, data_start: u64, file_bytes: u64) -> Result<Metadata, HeaderProblem> {
    let mut tensors = raw.tensors;
    tensors.sort_by(|(a, x), (b, y)| x.data_offsets.cmp(&y.data_offsets).then(a.cmp(b)));
    let data_bytes = file_bytes - data_start;
    let mut infos: Vec<(String, TensorInfo)> = Vec::with_capacity(tensors.len());
    let mut past_end = None;
    let mut stop = 0;
    for (tensor, RawTensor { dtype, shape, data_offsets: (begin, end) }) in tensors {
        let Some((stored, dtype)) = stored_by_name(&dtype) else {
            return Err(HeaderProblem::UnknownDtype { tensor, found: dtype });
        };
        let Some(elements) = elements(&shape) else {
            return Err(HeaderProblem::Overflow { tensor, dtype, shape });
        };
        let Some(expected) = dtype.bytes(elements) else {
            return Err(match dtype.is_packed() && elements % dtype.packing().elements != 0 {
                true => HeaderProblem::CutByte { tensor, dtype, shape },
                false => HeaderProblem::Overflow { tensor, dtype, shape },
            });
        };
        if end.checked_sub(begin) != Some(expected) {
            return Err(HeaderProblem::Size { tensor, dtype, shape, expected, begin, end });
        }
        if begin > stop {
            return Err(HeaderProblem::Hole { tensor, expected: stop, found: begin });
        }
        if begin < stop {
            let before = infos.last().map(|(name, _)| name.clone()).unwrap_or_default();
            return Err(HeaderProblem::Overlap { tensor, before, expected: stop, found: begin });
        }
        stop = end;
        if end > data_bytes && past_end.is_none() {
            past_end = Some(tensor.clone());
        }
        let narrow = |n: u64| usize::try_from(n).ok();
        let (Some(begin), Some(end), Some(shape)) =
            (narrow(begin), narrow(end), shape.iter().map(|&n| narrow(n)).collect())
        else {
            return Err(HeaderProblem::Overflow { tensor, dtype, shape });
        };
        infos.push((tensor, TensorInfo { dtype: stored, shape, data_offsets: (begin, end) }));
    }
    let expected = data_start.saturating_add(stop);
    if let Some(tensor) = past_end {
        return Err(HeaderProblem::Truncated { tensor, expected, found: file_bytes });
    }
    if expected != file_bytes {
        return Err(HeaderProblem::Trailing { expected, found: file_bytes });
    }
    Ok(Metadata::new(raw.text, infos)?)
}

/// Elements of a shape, or `None` past 63 bits. Sizes multiply from the left, as in the safetensors crate, so
/// that a later zero does not excuse an overflow.
fn elements(shape: &[u64]) -> Option<u64> {
    let fits = |n: u64| i64::try_from(n).is_ok().then_some(n);
    shape.iter().try_fold(1u64, |n, &size| fits(n.checked_mul(fits(size)?)?))
}

fn listed(metadata: &Metadata, data_start: u64) -> Result<Vec<HeaderTensor>, HeaderProblem> {
    let missing = |name: &str| HeaderProblem::NotJson(format!("tensor {name:?} was lost"));
    let describe = |name: String| {
        let info = metadata.info(&name).ok_or_else(|| missing(&name))?;
        let dtype = from_safetensors(info.dtype).ok_or_else(|| HeaderProblem::UnknownDtype {
            tensor: name.clone(),
            found: info.dtype.to_string(),
        })?;
        let (begin, end) = info.data_offsets;
        Ok(HeaderTensor {
            dtype,
            // Every size was checked to fit in 63 bits.
            shape: info.shape.iter().map(|&n| n as i64).collect(),
            addr: data_start + begin as u64,
            length: (end - begin) as u64,
            name,
        })
    };
    metadata.offset_keys().into_iter().map(describe).collect()
}
