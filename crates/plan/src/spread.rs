//! Which session each tile is read from.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::need::Need;
use crate::source::{Shard, Source};

/// Where a tile is read: the session's number and the shard.
pub(crate) type Place<'a> = (usize, &'a Shard);

/// Every session that is published by, numbered in the order of their names.
pub(crate) struct Sessions<'a> {
    pub names: Vec<&'a Arc<str>>,
    numbers: HashMap<&'a str, usize>,
    /// Numbers by where a name lies in memory: a catalog holds each name once, or few times.
    known: ByPlace,
}

impl<'a> Sessions<'a> {
    /// The sessions of these sources.
    pub fn new(sources: impl Iterator<Item = &'a Source>) -> Self {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut known = ByPlace::default();
        let mut names: Vec<&Arc<str>> = Vec::new();
        let mut places: Vec<&Arc<str>> = Vec::new();
        for shard in sources.flat_map(|s| &s.shards) {
            known.entry(shard.session.as_ptr()).or_insert_with(|| {
                numbers.entry(&shard.session).or_insert_with(|| {
                    names.push(&shard.session);
                    0
                });
                places.push(&shard.session);
                0
            });
        }
        names.sort();
        for (at, name) in names.iter().enumerate() {
            numbers.insert(name, at);
        }
        for name in places {
            known.insert(name.as_ptr(), numbers[&**name]);
        }
        Sessions { names, numbers, known }
    }

    pub fn number(&self, name: &Arc<str>) -> usize {
        // Every session of the sources was numbered.
        self.known.get(&name.as_ptr()).copied().unwrap_or_else(|| self.numbers[&**name])
    }
}

/// Numbers of names by where they lie in memory.
pub(crate) type ByPlace = HashMap<*const u8, usize, BuildHasherDefault<ByAddress>>;

/// Mixes the bits of an address, which a table by address needs no more than.
#[derive(Default)]
pub(crate) struct ByAddress(u64);

impl Hasher for ByAddress {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_u64(&mut self, n: u64) {
        // A multiplication by an odd constant near 2^64 / phi, folded.
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Load by session, and the tiles that can be read from several.
pub(crate) struct Spread<'s, 'a> {
    sessions: &'s Sessions<'a>,
    load: Vec<u128>,
}

impl<'s, 'a> Spread<'s, 'a> {
    pub fn new(sessions: &'s Sessions<'a>) -> Self {
        Spread { sessions, load: vec![0; sessions.names.len()] }
    }

    /// The only place, or else the first, of each tile. What has no choice is counted as load.
    pub fn first<'b>(&mut self, need: &Need<'b>) -> Vec<Place<'b>> {
        let place = |t: usize| {
            let replicas = need.tiles.replicas(t);
            let first = (self.sessions.number(&replicas[0].session), replicas[0]);
            if replicas.len() == 1 {
                self.load[first.0] += bytes(need, t);
            }
            first
        };
        (0..need.tiles.tiles.len()).map(place).collect()
    }

    /// Chooses a replica for every tile that has several: the largest need first, each to the session that has
    /// least so far.
    pub fn choose<'b>(mut self, needs: &[Need<'b>], chosen: &mut [Vec<Place<'b>>]) {
        let mut open = Vec::new();
        for (n, need) in needs.iter().enumerate() {
            let several = (0..need.tiles.tiles.len()).filter(|&t| need.tiles.replicas(t).len() > 1);
            open.extend(several.filter(|&t| need.load[t] > 0).map(|t| (Reverse(bytes(need, t)), n, t)));
        }
        open.sort_unstable();
        for (Reverse(bytes), n, t) in open {
            let replicas = needs[n].tiles.replicas(t).iter();
            let places = replicas.map(|&s| (self.sessions.number(&s.session), s));
            let least = places.min_by_key(|&(session, shard)| (self.load[session], session, shard.addr));
            if let Some(least) = least {
                self.load[least.0] += bytes;
                chosen[n][t] = least;
            }
        }
    }
}

/// Bytes needed of a tile.
fn bytes(need: &Need<'_>, tile: usize) -> u128 {
    let packing = need.source.dtype.packing();
    u128::from(need.load[tile]) * u128::from(packing.bytes) / u128::from(packing.elements)
}
