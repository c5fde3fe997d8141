//! Sources and their shards: what is published, and where.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use restage_geometry::{Dtype, Region, RegionError};
use thiserror::Error;

/// A box of a source in one session's memory or file: a row-major contiguous block at `addr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The box of the source that it holds, in elements.
    pub region: Region,
    /// The session that holds it.
    pub session: Arc<str>,
    /// Where it starts in the session's address space, in bytes.
    pub addr: u64,
    /// What the session says of its bytes, if anything: equal strings mean equal bytes, different ones
    /// different bytes.
    pub digest: Option<Arc<str>>,
}

/// A full (global) tensor, published as one or more shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Global shape, in elements.
    pub shape: Vec<i64>,
    /// Its shards, in any order; they need not cover it, and may overlap.
    pub shards: Vec<Shard>,
}

/// Every source that is published, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    sources: BTreeMap<String, Source>,
}

/// A source that contradicts itself or the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("source {source_name:?}: {problem}")]
pub struct CatalogError {
    /// The source.
    pub source_name: String,
    /// What is wrong with it.
    pub problem: CatalogProblem,
}

/// What can be wrong with a source.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CatalogProblem {
    /// The name is taken.
    #[error("is published twice")]
    Duplicate,
    /// The global shape or a shard's box is malformed.
    #[error("{0}")]
    Region(#[from] RegionError),
    /// A shard reaches outside of the global shape.
    #[error("shard {region} on session {session:?} lies outside of shape {shape:?}")]
    Outside {
        /// The shard's box.
        region: Region,
        /// Its session.
        session: Arc<str>,
        /// The global shape, in elements.
        shape: Vec<i64>,
    },
    /// The global shape or a shard has more bytes than 64 bits can address, or ends past 2^64.
    #[error("shard {region} on session {session:?} at address {addr} does not fit in 64 bits")]
    Address {
        /// The shard's box.
        region: Region,
        /// Its session.
        session: Arc<str>,
        /// Its address, in bytes.
        addr: u64,
    },
    /// A shard's size is no whole number of blocks of a packed dtype.
    #[error("shape {shape:?} cuts a block of {dtype}")]
    CutBlock {
        /// The shape, in elements.
        shape: Vec<i64>,
        /// The packed dtype.
        dtype: Dtype,
    },
}

impl Catalog {
    /// A catalog of nothing.
    pub fn new() -> Self {
        Catalog::default()
    }

    /// Adds a source after checking that it can be true.
    ///
    /// # Errors
    /// [`CatalogError`] with the source's name: a duplicate, a shard outside of the shape, an address past
    /// 2^64, a cut block.
    pub fn insert(&mut self, name: impl Into<String>, source: Source) -> Result<(), CatalogError> {
        let name = name.into();
        let checked = check(&source).and_then(|()| match self.sources.contains_key(&name) {
            true => Err(CatalogProblem::Duplicate),
            false => Ok(()),
        });
        match checked {
            Ok(()) => {
                self.sources.insert(name, source);
                Ok(())
            }
            Err(problem) => Err(CatalogError { source_name: name, problem }),
        }
    }

    /// A source by name.
    pub fn get(&self, name: &str) -> Option<&Source> {
        self.sources.get(name)
    }

    /// All sources, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Source)> {
        self.sources.iter().map(|(name, source)| (name.as_str(), source))
    }

    /// Sessions that publish other sources and nothing of this one, sorted.
    pub(crate) fn sessions_without(&self, name: &str) -> Vec<Arc<str>> {
        let sessions = |s: &Source| s.shards.iter().map(|s| s.session.clone()).collect::<Vec<_>>();
        let own: BTreeSet<Arc<str>> = self.get(name).map(sessions).into_iter().flatten().collect();
        let all: BTreeSet<Arc<str>> = self.sources.values().flat_map(sessions).collect();
        all.difference(&own).cloned().collect()
    }

    /// Number of sources.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// True when nothing is published.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
}

fn check(source: &Source) -> Result<(), CatalogProblem> {
    let whole = Region::whole(&source.shape)?;
    let bytes = |region: &Region| region.numel().and_then(|n| source.dtype.bytes(n as u64));
    for shard in &source.shards {
        if shard.region.ndim() != whole.ndim() || !whole.contains(&shard.region) {
            return Err(CatalogProblem::Outside {
                region: shard.region.clone(),
                session: shard.session.clone(),
                shape: source.shape.clone(),
            });
        }
        let row = shard.region.shape().last().copied().unwrap_or(1);
        if !(row as u64).is_multiple_of(source.dtype.packing().elements) {
            return Err(CatalogProblem::CutBlock { shape: shard.region.shape(), dtype: source.dtype });
        }
        if bytes(&shard.region).and_then(|n| shard.addr.checked_add(n)).is_none() {
            return Err(CatalogProblem::Address {
                region: shard.region.clone(),
                session: shard.session.clone(),
                addr: shard.addr,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(shape: &[i64], dtype: Dtype, shards: &[(&[i64], &[i64], u64)]) -> Source {
        let shards = shards
            .iter()
            .map(|(offset, shape, addr)| Shard {
                region: Region::new(offset, shape).unwrap(),
                session: "s".into(),
                addr: *addr,
                digest: None,
            })
            .collect();
        Source { dtype, shape: shape.to_vec(), shards }
    }

    #[test]
    fn contradictions_are_refused_with_the_name() {
        let mut catalog = Catalog::new();
        let ok = source(&[4, 2], Dtype::F32, &[(&[0, 0], &[4, 2], 0)]);
        catalog.insert("w", ok.clone()).unwrap();
        let twice = catalog.insert("w", ok).unwrap_err();
        assert_eq!((twice.source_name.as_str(), &twice.problem), ("w", &CatalogProblem::Duplicate));
        // The catalog says shards of (4, 2); the publisher holds all eight rows.
        let outside = source(&[4, 2], Dtype::F32, &[(&[0, 0], &[8, 2], 0)]);
        assert!(matches!(catalog.insert("a", outside).unwrap_err().problem, CatalogProblem::Outside { .. }));
        let high = source(&[2], Dtype::F32, &[(&[0], &[2], u64::MAX - 3)]);
        assert!(matches!(catalog.insert("b", high).unwrap_err().problem, CatalogProblem::Address { .. }));
        let cut = source(&[2, 48], Dtype::Q4_1, &[(&[0, 0], &[2, 48], 0)]);
        assert!(matches!(catalog.insert("c", cut).unwrap_err().problem, CatalogProblem::CutBlock { .. }));
        assert_eq!(catalog.len(), 1);
    }
}
