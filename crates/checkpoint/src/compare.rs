//! Two checkpoints, tensor by tensor and byte by byte.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use half::f16;
use rayon::prelude::*;
use restage_geometry::Dtype;

use crate::checkpoint::{Checkpoint, CheckpointFile, CheckpointTensor};
use crate::error::CheckpointError;

/// Bytes of each of the two buffers of a thread.
const BUFFER_BYTES: usize = 256 << 10;

/// How two checkpoints differ. Names are those of the catalog: with their rank in sharded state. The free text
/// of headers, the division into files and companion files are not compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Tensors that only the first has, by name.
    pub only_a: Vec<String>,
    /// Tensors that only the second has, by name.
    pub only_b: Vec<String>,
    /// Tensors of different dtypes or shapes, whose bytes are not compared.
    pub described: Vec<TensorDifference>,
    /// Tensors of different bytes.
    pub values: Vec<ValueDifference>,
    /// Tensors whose bytes were compared.
    pub compared_tensors: u64,
    /// Bytes that were compared, counted once for both sides.
    pub compared_bytes: u64,
}

/// Dtype and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape, in elements.
    pub shape: Vec<i64>,
}

/// A tensor that is of another dtype or shape on each side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorDifference {
    /// The tensor.
    pub name: String,
    /// In the first checkpoint.
    pub a: Described,
    /// In the second.
    pub b: Described,
}

/// A tensor that holds other bytes on each side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueDifference {
    /// The tensor.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Row-major position of the first element that differs; of a packed dtype, of the first in its block.
    pub first: u64,
    /// The same as an index, in elements.
    pub index: Vec<i64>,
    /// That element (or block) in the first checkpoint, as stored: little-endian bytes.
    pub a: Vec<u8>,
    /// That element (or block) in the second.
    pub b: Vec<u8>,
    /// Elements (blocks of a packed dtype) that differ.
    pub differing: u64,
    /// Elements (blocks) of the tensor.
    pub of: u64,
    /// Bytes that differ.
    pub differing_bytes: u64,
}

impl Comparison {
    /// True when both hold the same tensors with the same bytes.
    pub fn equal(&self) -> bool {
        self.only_a.is_empty()
            && self.only_b.is_empty()
            && self.described.is_empty()
            && self.values.is_empty()
    }
}

/// Compares the tensors of two checkpoints, in a few megabytes of memory however large they are.
///
/// Single files and indexed ones compare with each other; sharded state compares with sharded state, rank by
/// rank.
///
/// # Errors
/// [`CheckpointError`]: one is whole and the other is sharded; a file that cannot be read, or is shorter than
/// when it was opened.
pub fn compare(a: &Checkpoint, b: &Checkpoint) -> Result<Comparison, CheckpointError> {
    if a.layout().is_whole() != b.layout().is_whole() {
        return Err(CheckpointError::LayoutsDiffer {
            a: a.dir().to_owned(),
            a_layout: a.layout(),
            b: b.dir().to_owned(),
            b_layout: b.layout(),
        });
    }
    let by_key = |c: &'_ Checkpoint| -> BTreeMap<_, CheckpointTensor> {
        c.tensors().map(|t| ((t.rank, t.name.clone()), t.clone())).collect()
    };
    let (in_a, mut in_b) = (by_key(a), by_key(b));
    let mut found = Comparison::default();
    let mut pairs = Vec::new();
    for (key, left) in in_a {
        match in_b.remove(&key) {
            None => found.only_a.push(left.source()),
            Some(right) if (left.dtype, &left.shape) != (right.dtype, &right.shape) => {
                found.described.push(TensorDifference {
                    name: left.source(),
                    a: Described { dtype: left.dtype, shape: left.shape },
                    b: Described { dtype: right.dtype, shape: right.shape },
                });
            }
            Some(right) => pairs.push((left, right)),
        }
    }
    found.only_b = in_b.into_values().map(|t| t.source()).collect();
    found.compared_tensors = pairs.len() as u64;
    found.compared_bytes = pairs.iter().map(|(left, _)| left.length).sum();
    let differences: Result<Vec<Option<ValueDifference>>, CheckpointError> = pairs
        .par_iter()
        .map_init(Buffers::default, |buffers, (left, right)| {
            buffers.compare((&a.files()[left.file], left), (&b.files()[right.file], right))
        })
        .collect();
    found.values = differences?.into_iter().flatten().collect();
    Ok(found)
}

#[derive(Default)]
struct Buffers {
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Buffers {
    fn compare(
        &mut self,
        (a_file, a): (&CheckpointFile, &CheckpointTensor),
        (b_file, b): (&CheckpointFile, &CheckpointTensor),
    ) -> Result<Option<ValueDifference>, CheckpointError> {
        let failed = |file: &CheckpointFile, error| CheckpointError::Io { path: file.path.clone(), error };
        let packing = a.dtype.packing();
        let unit = packing.bytes as usize;
        // Whole elements, so that none is cut by the end of a buffer.
        let step = BUFFER_BYTES / unit * unit;
        self.a.resize(step, 0);
        self.b.resize(step, 0);
        let open = |file: &CheckpointFile| File::open(&file.path).map_err(|e| failed(file, e));
        let (from_a, from_b) = (open(a_file)?, open(b_file)?);
        let mut difference: Option<ValueDifference> = None;
        let mut at = 0;
        while at < a.length {
            let n = (a.length - at).min(step as u64) as usize;
            let (left, right) = (&mut self.a[..n], &mut self.b[..n]);
            from_a.read_exact_at(left, a.addr + at).map_err(|e| failed(a_file, e))?;
            from_b.read_exact_at(right, b.addr + at).map_err(|e| failed(b_file, e))?;
            if left != right {
                let units = left.chunks_exact(unit).zip(right.chunks_exact(unit)).enumerate();
                for (i, (x, y)) in units.filter(|(_, (x, y))| x != y) {
                    let difference = difference.get_or_insert_with(|| {
                        let first = (at / packing.bytes + i as u64) * packing.elements;
                        ValueDifference {
                            name: a.source(),
                            dtype: a.dtype,
                            first,
                            index: unravel(first, &a.shape),
                            a: x.to_vec(),
                            b: y.to_vec(),
                            differing: 0,
                            of: a.length / packing.bytes,
                            differing_bytes: 0,
                        }
                    });
                    difference.differing += 1;
                    difference.differing_bytes += x.iter().zip(y).filter(|(x, y)| x != y).count() as u64;
                }
            }
            at += n as u64;
        }
        Ok(difference)
    }
}

/// The index of a row-major position.
fn unravel(mut position: u64, shape: &[i64]) -> Vec<i64> {
    let mut index = vec![0; shape.len()];
    for (place, &size) in index.iter_mut().zip(shape).rev() {
        // A tensor with a byte in it has no size of zero.
        let size = size.max(1) as u64;
        *place = (position % size) as i64;
        position /= size;
    }
    index
}

/// An element in words, where the dtype has an obvious one.
fn decoded(dtype: Dtype, bytes: &[u8]) -> Option<String> {
    macro_rules! number {
        ($type:ty) => {
            bytes.try_into().ok().map(|b| format!("{:?}", <$type>::from_le_bytes(b)))
        };
    }
    match dtype {
        Dtype::F64 => number!(f64),
        Dtype::F32 => number!(f32),
        Dtype::F16 => bytes.try_into().ok().map(|b| format!("{:?}", f16::from_le_bytes(b).to_f32())),
        Dtype::BF16 => bytes.try_into().ok().map(|b| format!("{:?}", half::bf16::from_le_bytes(b).to_f32())),
        Dtype::I64 => number!(i64),
        Dtype::I32 => number!(i32),
        Dtype::I16 => number!(i16),
        Dtype::I8 => number!(i8),
        Dtype::U64 => number!(u64),
        Dtype::U32 => number!(u32),
        Dtype::U16 => number!(u16),
        Dtype::U8 | Dtype::Bool => number!(u8),
        _ => None,
    }
}

impl ValueDifference {
    /// The first differing element of the first checkpoint in words: a number of its dtype, if it has such.
    pub fn a_decoded(&self) -> Option<String> {
        decoded(self.dtype, &self.a)
    }

    /// The same of the second checkpoint.
    pub fn b_decoded(&self) -> Option<String> {
        decoded(self.dtype, &self.b)
    }
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

impl fmt::Display for TensorDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} and {}", self.name, self.a, self.b)
    }
}

impl fmt::Display for ValueDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.dtype.is_packed() { "blocks" } else { "elements" };
        let value = |bytes: &[u8], decoded: Option<String>| {
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            decoded.map_or(hex.clone(), |text| format!("{text} ({hex})"))
        };
        write!(
            f,
            "{:?} ({}): {} of {} {unit} differ, first at {:?}: {} and {}",
            self.name,
            self.dtype,
            self.differing,
            self.of,
            self.index,
            value(&self.a, self.a_decoded()),
            value(&self.b, self.b_decoded()),
        )
    }
}

impl fmt::Display for Comparison {
    /// One line for each difference.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in &self.only_a {
            writeln!(f, "{name:?}: only in the first")?;
        }
        for name in &self.only_b {
            writeln!(f, "{name:?}: only in the second")?;
        }
        for difference in &self.described {
            writeln!(f, "{difference}")?;
        }
        for difference in &self.values {
            writeln!(f, "{difference}")?;
        }
        Ok(())
    }
}
