//! The shards of a source as disjoint tiles.
//!
//! Shards of equal regions are replicas of one tile. Shards that overlap otherwise are cut apart, the earlier
//! one (by region, then session) keeping the common part, so that every element lies in at most one tile.

use std::sync::Arc;

use restage_geometry::Region;

use crate::source::Source;

/// A box of a source that is read from one of several places.
#[derive(Debug, Clone)]
pub(crate) struct Tile {
    /// The box, in elements.
    pub region: Region,
    /// First index of the shard that the box lies in.
    pub base: Vec<i64>,
    /// Row-major strides of that shard, in elements.
    pub strides: Vec<i64>,
    /// Sessions that hold it, with the shard's address in bytes; sorted, at least one.
    pub replicas: Vec<(Arc<str>, u64)>,
}

/// Disjoint tiles in the order of their regions. Shards that hold no element are left out.
pub(crate) fn tiles(source: &Source) -> Vec<Tile> {
    let mut shards: Vec<_> = source.shards.iter().filter(|s| !s.region.is_empty()).collect();
    shards.sort_by(|a, b| (&a.region, &a.session, a.addr).cmp(&(&b.region, &b.session, b.addr)));
    let mut tiles: Vec<Tile> = Vec::with_capacity(shards.len());
    for group in shards.chunk_by(|a, b| a.region == b.region) {
        let region = &group[0].region;
        let mut rest = vec![region.clone()];
        for earlier in &tiles {
            if earlier.region.intersect(region).is_some() {
                rest = rest.iter().flat_map(|r| r.subtract(&earlier.region)).collect();
            }
        }
        let mut strides = vec![1; region.ndim()];
        let shape = region.shape();
        for d in (0..shape.len().saturating_sub(1)).rev() {
            strides[d] = strides[d + 1] * shape[d + 1];
        }
        let replicas: Vec<_> = group.iter().map(|s| (s.session.clone(), s.addr)).collect();
        tiles.extend(rest.into_iter().map(|part| Tile {
            region: part,
            base: region.start().to_vec(),
            strides: strides.clone(),
            replicas: replicas.clone(),
        }));
    }
    tiles.sort_by(|a, b| a.region.cmp(&b.region));
    tiles
}

/// True when the tiles are cut along the first dimension only and cover the source without a hole, so that
/// reading each as a whole stages the source in row-major order.
pub(crate) fn are_row_blocks(tiles: &[Tile], shape: &[i64]) -> bool {
    let mut next = 0;
    for tile in tiles {
        let (start, end) = (tile.region.start(), tile.region.end());
        let whole = (1..shape.len()).all(|d| start[d] == 0 && end[d] == shape[d]);
        if !whole || start.first().is_some_and(|&s| s != next) {
            return false;
        }
        next = end.first().copied().unwrap_or(1);
    }
    next == shape.first().copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Shard;
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
        let t = tiles(&s);
        let regions: Vec<String> = t.iter().map(|t| t.region.to_string()).collect();
        assert_eq!(regions, ["[0..5, 0..4]", "[5..8, 0..4]"]);
        assert_eq!(t[0].replicas.len(), 2);
        assert_eq!(t[1].base, [3, 0]);
        assert!(are_row_blocks(&t, &[8, 4]));
    }

    #[test]
    fn row_blocks_are_gapless_and_whole() {
        let rows =
            |shards: &[(&[i64], &[i64], &str)]| are_row_blocks(&tiles(&source(&[4, 4], shards)), &[4, 4]);
        assert!(rows(&[(&[2, 0], &[2, 4], "b"), (&[0, 0], &[2, 4], "a"), (&[0, 0], &[0, 4], "e")]));
        assert!(!rows(&[(&[0, 0], &[2, 4], "a")]));
        assert!(!rows(&[(&[0, 0], &[4, 2], "a"), (&[0, 2], &[4, 2], "b")]));
        let scalar = source(&[], &[(&[], &[], "a"), (&[], &[], "b")]);
        assert!(are_row_blocks(&tiles(&scalar), &[]));
    }
}
