//! Sources with their shards, and the copies that a loader makes of them.

use std::sync::Arc;

use restage_geometry::{Copy, Dest, Dtype, Fill, Op, Param, Region, RegionError, UnknownDtype};
use restage_plan::{Shard, Source};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::element::{Digest, ElementBytes, HexError};
use crate::ops::OpForm;

/// A table that is well formed as JSON and still says nothing possible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TableError {
    /// A dtype that is not known.
    #[error(transparent)]
    Dtype(#[from] UnknownDtype),
    /// A shard's box is malformed.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Bytes that are not written as they should be.
    #[error(transparent)]
    Hex(#[from] HexError),
    /// An element size that is not that of the dtype.
    #[error("{dtype} has elements of {expected} bytes, and this says {found}")]
    ElementSize {
        /// The dtype.
        dtype: Dtype,
        /// Bytes of one of its elements.
        expected: u64,
        /// Bytes by the file.
        found: u64,
    },
    /// A constant whose bytes are not one element, or one for a dtype whose elements share blocks.
    #[error("a constant of {found} bytes for {dtype}, which has {elements} elements in {bytes} bytes")]
    Constant {
        /// The parameter's dtype.
        dtype: Dtype,
        /// Elements of one block of it.
        elements: u64,
        /// Bytes of one block of it.
        bytes: u64,
        /// Bytes given; 0 where none were.
        found: usize,
    },
}

/// A source: its dtype by safetensors name (any case), its global shape, and its shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceForm {
    /// Type of the elements.
    pub dtype: String,
    /// Global shape, in elements.
    pub shape: Vec<i64>,
    /// Bytes of one element; the dtype decides, and this must agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsize: Option<u64>,
    /// Its shards.
    pub shards: Vec<ShardForm>,
}

/// A row-major contiguous block of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardForm {
    /// First index in each dimension, in elements.
    pub offset: Vec<i64>,
    /// Size in each dimension, in elements.
    pub shape: Vec<i64>,
    /// Session that holds it.
    pub session: String,
    /// Address in that session, in bytes.
    pub addr: u64,
    /// Digest of its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
}

/// A parameter of the consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamForm {
    /// Type of the elements.
    pub dtype: String,
    /// Shape, in elements.
    pub shape: Vec<i64>,
}

/// One copy: a chain on a source, and a strided view of a parameter in elements of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyForm {
    /// Name of the source.
    pub source: String,
    /// Operations, first to last.
    pub ops: Vec<OpForm>,
    /// Name of the parameter.
    pub param: String,
    /// Position of the first element.
    pub dest_offset: i64,
    /// Sizes.
    pub dest_shape: Vec<i64>,
    /// Elements between neighbours.
    pub dest_stride: Vec<i64>,
    /// Type of the destination's elements; another than the source's makes the copy a conversion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dest_dtype: Option<String>,
}

/// A part of a parameter that is constant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillForm {
    /// Name of the parameter.
    pub param: String,
    /// Position of the first element.
    pub dest_offset: i64,
    /// Sizes.
    pub dest_shape: Vec<i64>,
    /// Elements between neighbours.
    pub dest_stride: Vec<i64>,
    /// Bytes of one element; zeros where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub element: Option<ElementBytes>,
    /// How many of the copies were made before it; none where it is missing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub after: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl SourceForm {
    /// The source that it describes.
    ///
    /// # Errors
    /// [`TableError`] for an unknown dtype, another element size, or a malformed box.
    pub fn source(&self) -> Result<Source, TableError> {
        let dtype = self.checked_dtype()?;
        let shards = self.shards.iter().map(ShardForm::shard).collect::<Result<_, _>>()?;
        Ok(Source { dtype, shape: self.shape.clone(), shards })
    }

    /// The dtype, which the element size must agree with. Of a packed dtype an element has no whole bytes.
    fn checked_dtype(&self) -> Result<Dtype, TableError> {
        let dtype: Dtype = self.dtype.parse()?;
        let expected = dtype.packing().bytes;
        match self.elsize {
            Some(found) if !dtype.is_packed() && found != expected => {
                Err(TableError::ElementSize { dtype, expected, found })
            }
            _ => Ok(dtype),
        }
    }
}

impl ShardForm {
    /// The shard that it describes.
    ///
    /// # Errors
    /// [`TableError::Region`] for a malformed box.
    pub fn shard(&self) -> Result<Shard, TableError> {
        let region = Region::new(&self.offset, &self.shape)?;
        let digest = self.digest.as_ref().map(|digest| Arc::from(digest.to_string()));
        Ok(Shard { region, session: self.session.as_str().into(), addr: self.addr, digest })
    }
}

impl ParamForm {
    /// The parameter that it describes.
    ///
    /// # Errors
    /// [`TableError`] for an unknown dtype.
    pub fn param(&self, name: &str) -> Result<Param, TableError> {
        Ok(Param { name: name.to_owned(), dtype: self.dtype.parse()?, shape: self.shape.clone() })
    }
}

impl CopyForm {
    /// Parameter, offset, shape and strides of the destination.
    pub(crate) fn parts(&self) -> (&str, i64, &[i64], &[i64]) {
        (&self.param, self.dest_offset, &self.dest_shape, &self.dest_stride)
    }

    /// The copy, into the parameter of this index.
    pub fn copy(&self, param: usize) -> Copy {
        Copy {
            source: Arc::from(self.source.as_str()),
            ops: self.ops.iter().cloned().map(Op::from).collect(),
            param,
            dest: Dest {
                offset: self.dest_offset,
                shape: self.dest_shape.clone(),
                strides: self.dest_stride.clone(),
            },
        }
    }
}

impl FillForm {
    /// Parameter, offset, shape and strides of the destination.
    pub(crate) fn parts(&self) -> (&str, i64, &[i64], &[i64]) {
        (&self.param, self.dest_offset, &self.dest_shape, &self.dest_stride)
    }

    /// The fill, of the parameter of this index and type.
    ///
    /// # Errors
    /// [`TableError::Constant`] when the bytes given are not one element.
    pub fn fill(&self, param: usize, dtype: Dtype) -> Result<Fill, TableError> {
        let (packing, given) = (dtype.packing(), self.element.as_ref().map(|e| &e.0));
        let fits = given.is_none_or(|bytes| bytes.len() as u64 == packing.bytes);
        if packing.elements != 1 || !fits {
            return Err(TableError::Constant {
                dtype,
                elements: packing.elements,
                bytes: packing.bytes,
                found: given.map_or(0, Vec::len),
            });
        }
        Ok(Fill {
            param,
            dest: Dest {
                offset: self.dest_offset,
                shape: self.dest_shape.clone(),
                strides: self.dest_stride.clone(),
            },
            element: given.cloned().unwrap_or_else(|| vec![0; packing.bytes as usize]),
            after: self.after,
        })
    }
}
