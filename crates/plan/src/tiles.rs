//! The shards of a source as disjoint tiles.
//!
//! Shards of equal regions are replicas of one tile. Shards that overlap otherwise are cut apart, the earlier
//! one (by region, then session) keeping the common part, so that every element lies in exactly one tile or in
//! none. A tile can then be read from every shard that holds all of it.

use std::borrow::Cow;
use std::ops::Range;

use restage_geometry::{GridNest, MAX_DIMS, Region};
use restage_nest::Nest;

use crate::plan::Reason;
use crate::source::{Shard, Source};

/// The tiles of one source.
#[derive(Debug, Clone)]
pub(crate) struct Tiles<'a> {
    /// In the order of their regions.
    pub tiles: Vec<Tile<'a>>,
    /// All shards that hold an element, those of a tile side by side, by region, session and address.
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
    ///
    /// # Errors
    /// [`Reason::Digests`] when replicas say that their bytes differ.
    pub fn new(source: &'a Source) -> Result<Self, Reason> {
        let mut shards: Vec<&Shard> = source.shards.iter().filter(|s| !s.region.is_empty()).collect();
        let order =
            |a: &&Shard, b: &&Shard| (&a.region, &a.session, a.addr).cmp(&(&b.region, &b.session, b.addr));
        if !shards.is_sorted_by(|a, b| order(a, b).is_le()) {
            shards.sort_by(order);
        }
        let mut tiles: Vec<Tile<'a>> = Vec::with_capacity(shards.len());
        let mut from = 0;
        // One past the highest first index so far: what starts there overlaps nothing.
        let mut reach = None;
        let mut cut = false;
        for group in shards.chunk_by(|a, b| a.region == b.region) {
            same_digests(group)?;
            let region = &group[0].region;
            let replicas = from..from + group.len();
            from = replicas.end;
            let ends = (region.start().first().copied(), region.end().first().copied());
            let clear = reach.is_none_or(|reach| ends.0.is_some_and(|start| start >= reach));
            reach = reach.max(ends.1.or(Some(i64::MAX)));
            if clear || !tiles.iter().any(|t| t.region.overlaps(region)) {
                tiles.push(Tile { region: Cow::Borrowed(region), replicas });
                continue;
            }
            cut = true;
            let rest = tiles
                .iter()
                .filter(|t| t.region.overlaps(region))
                .fold(vec![region.clone()], |rest, earlier| {
                    rest.iter().flat_map(|r| r.subtract(&earlier.region)).collect()
                });
            let part = |region| Tile { region: Cow::Owned(region), replicas: replicas.clone() };
            tiles.extend(rest.into_iter().map(part));
        }
        if cut {
            tiles.sort_by(|a, b| a.region.cmp(&b.region));
        }
        let mut tiles = Tiles { tiles, shards };
        if cut {
            tiles.widen();
        }
        Ok(tiles)
    }

    /// Gives every tile all shards that hold it as replicas.
    fn widen(&mut self) {
        let all = std::mem::take(&mut self.shards);
        for tile in &mut self.tiles {
            let from = self.shards.len();
            self.shards.extend(all.iter().filter(|s| s.region.contains(&tile.region)));
            tile.replicas = from..self.shards.len();
        }
    }

    /// True when a tile can be read from several places.
    pub fn have_replicas(&self) -> bool {
        self.tiles.iter().any(|t| t.replicas.len() > 1)
    }

    /// The shards that hold a tile.
    pub fn replicas(&self, tile: usize) -> &[&'a Shard] {
        &self.shards[self.tiles[tile].replicas.clone()]
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

/// A piece of a tile as a nest over a shard that holds it, in elements from the shard's first.
pub(crate) fn over_shard(piece: &GridNest, region: &Region) -> Nest {
    let ndim = region.ndim();
    // A source whose chain was replayed has at most MAX_DIMS dimensions.
    let mut strides = [1i64; MAX_DIMS];
    for d in (0..ndim.saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * (region.end()[d + 1] - region.start()[d + 1]);
    }
    piece.lower(region.start(), &strides[..ndim])
}

fn same_digests(replicas: &[&Shard]) -> Result<(), Reason> {
    let mut said = replicas.iter().filter_map(|s| Some((s, s.digest.as_ref()?)));
    let Some((first, digest)) = said.next() else { return Ok(()) };
    match said.find(|(_, other)| *other != digest) {
        None => Ok(()),
        Some((second, other)) => Err(Reason::Digests {
            region: first.region.clone(),
            sessions: [first.session.clone(), second.session.clone()],
            digests: [digest.clone(), other.clone()],
        }),
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
                digest: None,
            })
            .collect();
        Source { dtype: Dtype::U8, shape: shape.to_vec(), shards }
    }

    #[test]
    fn equal_regions_are_replicas_and_others_are_cut_apart() {
        let s = source(&[8, 4], &[(&[3, 0], &[5, 4], "b"), (&[0, 0], &[5, 4], "a"), (&[0, 0], &[5, 4], "c")]);
        let t = Tiles::new(&s).unwrap();
        let regions: Vec<String> = t.tiles.iter().map(|t| t.region.to_string()).collect();
        assert_eq!(regions, ["[0..5, 0..4]", "[5..8, 0..4]"]);
        assert_eq!((t.replicas(0).len(), t.replicas(1).len()), (2, 1));
        assert_eq!(t.replicas(1)[0].region.start(), [3, 0]);
        assert!(t.are_row_blocks(&[8, 4]));
    }

    #[test]
    fn parts_are_replicas_too() {
        // One session has all of it, two have halves: either half can be read from two places.
        let s = source(&[8, 4], &[(&[0, 0], &[8, 4], "a"), (&[0, 0], &[4, 4], "b"), (&[4, 0], &[4, 4], "c")]);
        let t = Tiles::new(&s).unwrap();
        let held: Vec<(String, Vec<&str>)> = (0..t.tiles.len())
            .map(|i| (t.tiles[i].region.to_string(), t.replicas(i).iter().map(|s| &*s.session).collect()))
            .collect();
        let expect = [("[0..4, 0..4]", vec!["b", "a"]), ("[4..8, 0..4]", vec!["a", "c"])];
        assert_eq!(held, expect.map(|(r, s)| (r.to_owned(), s)));
    }

    #[test]
    fn replicas_of_different_digests_are_refused() {
        let mut s =
            source(&[2, 2], &[(&[0, 0], &[2, 2], "a"), (&[0, 0], &[2, 2], "b"), (&[0, 0], &[2, 2], "c")]);
        (s.shards[0].digest, s.shards[2].digest) = (Some("x".into()), Some("x".into()));
        assert!(Tiles::new(&s).is_ok());
        s.shards[2].digest = Some("y".into());
        let error = Tiles::new(&s).unwrap_err().to_string();
        assert_eq!(error, "replicas of [0..2, 0..2] differ: a has digest x, c has y");
    }

    #[test]
    fn row_blocks_are_gapless_and_whole() {
        let rows = |shards: &[(&[i64], &[i64], &str)]| {
            let s = source(&[4, 4], shards);
            Tiles::new(&s).unwrap().are_row_blocks(&[4, 4])
        };
        assert!(rows(&[(&[2, 0], &[2, 4], "b"), (&[0, 0], &[2, 4], "a"), (&[0, 0], &[0, 4], "e")]));
        assert!(!rows(&[(&[0, 0], &[2, 4], "a")]));
        assert!(!rows(&[(&[0, 0], &[4, 2], "a"), (&[0, 2], &[4, 2], "b")]));
        let scalar = source(&[], &[(&[], &[], "a"), (&[], &[], "b")]);
        assert!(Tiles::new(&scalar).unwrap().are_row_blocks(&[]));
    }
}
