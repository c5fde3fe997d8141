//! Which session each tile is read from.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::need::Need;
use crate::source::Shard;

/// Where a tile is read: the session's number and the shard.
pub(crate) type Place<'a> = (usize, &'a Shard);

/// Every session that is published by, numbered in the order of their names.
pub(crate) struct Sessions<'a> {
    pub names: Vec<&'a Arc<str>>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Sessions<'a> {
    pub fn new(needs: &'a [Need<'_>]) -> Self {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut names: Vec<&Arc<str>> = Vec::new();
        for shard in needs.iter().flat_map(|n| &n.source.shards) {
            numbers.entry(&shard.session).or_insert_with(|| {
                names.push(&shard.session);
                0
            });
        }
        names.sort();
        for (at, name) in names.iter().enumerate() {
            numbers.insert(name, at);
        }
        Sessions { names, numbers }
    }

    pub fn number(&self, name: &str) -> usize {
        // Every session of the needs was numbered.
        self.numbers[name]
    }
}

/// Chooses a replica for every tile: the largest need first, each to the session that has least so far.
pub(crate) fn spread<'a>(needs: &[Need<'a>], sessions: &Sessions<'_>) -> Vec<Vec<Place<'a>>> {
    let mut load = vec![0u128; sessions.names.len()];
    let mut open = Vec::new();
    let mut chosen: Vec<Vec<Place<'a>>> = Vec::with_capacity(needs.len());
    for (n, need) in needs.iter().enumerate() {
        let packing = need.source.dtype.packing();
        let mut places = Vec::with_capacity(need.load.len());
        for (t, &elements) in need.load.iter().enumerate() {
            let bytes = elements as u128 * packing.bytes as u128 / packing.elements as u128;
            let replicas = need.tiles.replicas(t);
            let first = (sessions.number(&replicas[0].session), replicas[0]);
            if replicas.len() == 1 {
                load[first.0] += bytes;
            } else if bytes > 0 {
                open.push((Reverse(bytes), n, t));
            }
            places.push(first);
        }
        chosen.push(places);
    }
    open.sort_unstable();
    for (Reverse(bytes), n, t) in open {
        let places = needs[n].tiles.replicas(t).iter().map(|&s| (sessions.number(&s.session), s));
        if let Some(least) = places.min_by_key(|&(session, shard)| (load[session], session, shard.addr)) {
            load[least.0] += bytes;
            chosen[n][t] = least;
        }
    }
    chosen
}
