//! Sources with their shards, and the copies that a loader makes of them.

use std::sync::Arc;

use restage_geometry::{Copy, Dest, Dtype, Fill, Op, Param, Region, RegionError, UnknownDtype};
use restage_plan::{Shard, Source};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::OpForm;

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
}

/// A source: its dtype by safetensors name (any case), its global shape, and its shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceForm {
    /// Type of the elements.
    pub dtype: String,
    /// Global shape, in elements.
    pub shape: Vec<i64>,
    /// Bytes of one element; informative, the dtype decides.
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

/// A part of a parameter that is zero.
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
}

impl SourceForm {
    /// The source that it describes.
    ///
    /// # Errors
    /// [`TableError`] for an unknown dtype or a malformed box.
    pub fn source(&self) -> Result<Source, TableError> {
        let shards = self.shards.iter().map(|s| {
            let region = Region::new(&s.offset, &s.shape)?;
            Ok(Shard { region, session: s.session.as_str().into(), addr: s.addr })
        });
        Ok(Source {
            dtype: self.dtype.parse()?,
            shape: self.shape.clone(),
            shards: shards.collect::<Result<_, TableError>>()?,
        })
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
    /// The fill, of the parameter of this index and type.
    pub fn fill(&self, param: usize, dtype: Dtype) -> Fill {
        Fill {
            param,
            dest: Dest {
                offset: self.dest_offset,
                shape: self.dest_shape.clone(),
                strides: self.dest_stride.clone(),
            },
            element: vec![0; dtype.packing().bytes as usize],
        }
    }
}
