//! The shards of a source as disjoint tiles.
//!
//! Shards of equal regions are replicas of one tile. Shards that overlap otherwise are cut apart, the earlier
//! one (by region, then session) keeping the common part, so that every element lies in at most one tile.

use std::borrow::Cow;
use std::ops::Range;

use restage_geometry::{GridNest, MAX_DIMS, Region};
use restage_nest::Nest;

use crate::source::{Shard, Source};

/// The tiles of one source.
#[derive(Debug, Clone)]
pub(crate) struct Tiles<'a> {
    /// In the order of their regions.
    pub tiles: Vec<Tile<'a>>,
    /// All shards that hold an element, replicas side by side, each group by session and address.
    shards: Vec<&'a Shard>,
}

/// A box of a source that is read from one of several places.
#[derive(Debug, Clone)]
pub(crate) struct Tile<'a> {
    /// The box, in elements: a shard's, or a part of it.
    pub region: Cow<'a, Region>,
    replicas: Range<usize>,
}

impl<'a> Tiles<'a> {
    /// Disjoint tiles in the order of their regions. Shards that hold no element are left out.
    pub fn new(source: &'a Source) -> Self {
        let mut shards: Vec<&Shard> = source.shards.iter().filter(|s| !s.region.is_empty()).collect();
        shards.sort_by(|a, b| (&a.region, &a.session, a.addr).cmp(&(&b.region, &b.session, b.addr)));
        let mut tiles: Vec<Tile<'a>> = Vec::with_capacity(shards.len());
        let mut from = 0;
        for group in shards.chunk_by(|a, b| a.region == b.region) {
            let region = &group[0].region;
            let replicas = from..from + group.len();
            from = replicas.end;
            if !tiles.iter().any(|t| t.region.overlaps(region)) {
                tiles.push(Tile { region: Cow::Borrowed(region), replicas });
                continue;
            }
            let rest = tiles
                .iter()
                .filter(|t| t.region.overlaps(region))
                .fold(vec![region.clone()], |rest, earlier| {
                    rest.iter().flat_map(|r| r.subtract(&earlier.region)).collect()
                });
            let part = |region| Tile { region: Cow::Owned(region), replicas: replicas.clone() };
            tiles.extend(rest.into_iter().map(part));
        }
        tiles.sort_by(|a, b| a.region.cmp(&b.region));
        Tiles { tiles, shards }
    }

    /// The shards that hold a tile, by session and address.
    pub fn replicas(&self, tile: usize) -> &[&'a Shard] {
        &self.shards[self.tiles[tile].replicas.clone()]
    }

    /// A piece of a tile as a nest over the shard that holds it, in elements from the shard's first.
    pub fn lower(&self, tile: usize, piece: &GridNest) -> Nest {
        let region = &self.replicas(tile)[0].region;
        let ndim = region.ndim();
        // A source whose chain was replayed has at most MAX_DIMS dimensions.
        let mut strides = [1i64; MAX_DIMS];
        for d in (0..ndim.saturating_sub(1)).rev() {
            strides[d] = strides[d + 1] * (region.end()[d + 1] - region.start()[d + 1]);
        }
        piece.lower(region.start(), &strides[..ndim])
    }

    /// True when the tiles are cut along the first dimension only and cover the source without a hole, so
    /// that reading each as a whole stages the source in row-major order.
    pub fn are_row_blocks(&self, shape: &[i64]) -> bool {
        let mut next = 0;
        for tile in &self.tiles {
            let (start, end) = (tile.region.start(), tile.region.end());
            let whole = (1..shape.len()).all(|d| start[d] == 0 && end[d] == shape[d]);
            if !whole || start.first().is_some_and(|&s| s != next) {
                return false;
            }
            next = end.first().copied().unwrap_or(1);
        }
        next == shape.first().copied().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restage_geometry::Dtype;

    fn source(shape: &[i64], shards: &[(&[i64], &[i64], &str)]) -> Source {
        let shards = shards
            .iter()
            .map(|(offset, shape, session)| Shard {
                region: Region::new(offset, shape).unwrap(),
                session: (*session).into(),
                addr: 0,
            })
            .collect();
        Source { dtype: Dtype::U8, shape: shape.to_vec(), shards }
    }

    #[test]
    fn equal_regions_are_replicas_and_others_are_cut_apart() {
        let s = source(&[8, 4], &[(&[3, 0], &[5, 4], "b"), (&[0, 0], &[5, 4], "a"), (&[0, 0], &[5, 4], "c")]);
        let t = Tiles::new(&s);
        let regions: Vec<String> = t.tiles.iter().map(|t| t.region.to_string()).collect();
        assert_eq!(regions, ["[0..5, 0..4]", "[5..8, 0..4]"]);
        assert_eq!((t.replicas(0).len(), t.replicas(1).len()), (2, 1));
        assert_eq!(t.replicas(1)[0].region.start(), [3, 0]);
        assert!(t.are_row_blocks(&[8, 4]));
    }

    #[test]
    fn row_blocks_are_gapless_and_whole() {
        let rows = |shards: &[(&[i64], &[i64], &str)]| {
            let s = source(&[4, 4], shards);
            Tiles::new(&s).are_row_blocks(&[4, 4])
        };
        assert!(rows(&[(&[2, 0], &[2, 4], "b"), (&[0, 0], &[2, 4], "a"), (&[0, 0], &[0, 4], "e")]));
        assert!(!rows(&[(&[0, 0], &[2, 4], "a")]));
        assert!(!rows(&[(&[0, 0], &[4, 2], "a"), (&[0, 2], &[4, 2], "b")]));
        let scalar = source(&[], &[(&[], &[], "a"), (&[], &[], "b")]);
        assert!(Tiles::new(&scalar).are_row_blocks(&[]));
    }
}
