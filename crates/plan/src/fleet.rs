//! All ranks of a job together: what each session sends to each rank.
//!
//! A [`Fleet`] holds the plans themselves. Where those are too large to keep, a [`Column`] is what the view needs of one
//! plan, and [`Traffic::from_columns`] puts columns together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::plan::Plan;

/// One rank of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name, as in `tp0 pp1 ep0`; unique in its fleet.
    pub name: String,
    /// What it reads.
    pub plan: Plan,
}

/// Every rank of a job, in the order of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fleet {
    /// The ranks.
    pub members: Vec<Member>,
}

/// What one rank reads from each session: a column of [`Traffic`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    /// Name of the rank.
    pub rank: String,
    /// Sessions that it reads from, with the bytes and the descriptors of each.
    pub sessions: Vec<(Arc<str>, u64, u64)>,
}

/// What each session sends to each rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Every session that some rank reads from, sorted.
    pub sessions: Vec<Arc<str>>,
    /// Names of the ranks, in the order of the fleet.
    pub ranks: Vec<String>,
    /// Bytes, by session and then by rank.
    pub bytes: Vec<Vec<u64>>,
    /// Descriptors, by session and then by rank: flat runs, or strided segments where the transport takes them whole.
    pub descriptors: Vec<Vec<u64>>,
}

impl Fleet {
    /// The traffic matrix.
    pub fn traffic(&self) -> Traffic {
        Traffic::from_columns(self.members.iter().map(|m| Column::new(m.name.clone(), &m.plan)))
    }
}

impl Column {
    /// The column of one rank; the sums are [`Plan::session_counters`].
    pub fn new(rank: impl Into<String>, plan: &Plan) -> Self {
        let counters = plan.session_counters();
        let sessions = plan.sessions.iter().zip(counters).map(|(s, (bytes, runs))| (s.clone(), bytes, runs));
        Column { rank: rank.into(), sessions: sessions.collect() }
    }
}

/// Sum of counters; no real job comes near the largest number, where it stays.
fn sum(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0, u64::saturating_add)
}

impl Traffic {
    /// The matrix of these columns, in their order.
    pub fn from_columns(columns: impl IntoIterator<Item = Column>) -> Self {
        let columns: Vec<Column> = columns.into_iter().collect();
        let mut rows: BTreeMap<Arc<str>, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
        for (at, column) in columns.iter().enumerate() {
            for (session, bytes, descriptors) in &column.sessions {
                let empty = || (vec![0; columns.len()], vec![0; columns.len()]);
                let row = rows.entry(session.clone()).or_insert_with(empty);
                row.0[at] = row.0[at].saturating_add(*bytes);
                row.1[at] = row.1[at].saturating_add(*descriptors);
            }
        }
        let mut traffic =
            Traffic { ranks: columns.into_iter().map(|c| c.rank).collect(), ..Traffic::default() };
        for (session, (bytes, descriptors)) in rows {
            traffic.sessions.push(session);
            traffic.bytes.push(bytes);
            traffic.descriptors.push(descriptors);
        }
        traffic
    }

    /// Bytes that each session sends, in the order of [`Traffic::sessions`].
    pub fn session_bytes(&self) -> Vec<u64> {
        self.bytes.iter().map(|row| sum(row.iter().copied())).collect()
    }

    /// Bytes that each rank reads, in the order of [`Traffic::ranks`].
    pub fn rank_bytes(&self) -> Vec<u64> {
        (0..self.ranks.len()).map(|rank| sum(self.bytes.iter().map(|row| row[rank]))).collect()
    }

    /// Bytes that all ranks read.
    pub fn total(&self) -> u64 {
        sum(self.session_bytes())
    }

    /// Descriptors of all ranks.
    pub fn total_descriptors(&self) -> u64 {
        sum(self.descriptors.iter().flatten().copied())
    }

    /// The session that sends most, by index, and its bytes: the first of several, none where nothing is read.
    pub fn hottest_session(&self) -> Option<(usize, u64)> {
        first_largest(self.session_bytes().into_iter().enumerate())
    }

    /// The link (session, rank) that carries most, by indices, and its bytes: the first of several, none where nothing
    /// is read.
    pub fn largest_link(&self) -> Option<((usize, usize), u64)> {
        let rows = self.bytes.iter().enumerate();
        first_largest(rows.flat_map(|(s, row)| row.iter().enumerate().map(move |(r, &b)| ((s, r), b))))
    }

    /// Bytes of the hottest session over the mean of all sessions that are read from: 1 where all send the same, and
    /// where nothing is read.
    pub fn imbalance(&self) -> f64 {
        let sent: Vec<u64> = self.session_bytes().into_iter().filter(|&b| b > 0).collect();
        let total: u128 = sent.iter().map(|&b| b as u128).sum();
        match sent.iter().max() {
            Some(&most) => most as f64 * sent.len() as f64 / total as f64,
            None => 1.0,
        }
    }

    /// An estimate of the time of the transfer, in seconds: the bytes of the busiest endpoint, session or rank, over the
    /// rate of a link, in bytes per second. It takes every endpoint for one link that is used without pause in one
    /// direction, and everything between them for free, so that a real transfer takes longer.
    pub fn seconds_at(&self, link_bytes_per_second: f64) -> f64 {
        match self.session_bytes().into_iter().chain(self.rank_bytes()).max() {
            None | Some(0) => 0.0,
            Some(busiest) => busiest as f64 / link_bytes_per_second,
        }
    }
}

/// The first of the largest values, unless that is 0.
fn first_largest<T>(values: impl Iterator<Item = (T, u64)>) -> Option<(T, u64)> {
    values.filter(|&(_, b)| b > 0).reduce(|most, next| if next.1 > most.1 { next } else { most })
}

#[cfg(test)]
mod tests {
    use restage_geometry::{Capture, Dtype, Region};

    use super::*;
    use crate::{Catalog, Limits, Shard, Source, plan};

    /// A rank that takes `len` rows from `start` of a matrix of 12 rows of 4 f32, cut by rows over these sessions.
    fn member(name: &str, sessions: &[&str], start: i64, len: i64) -> Member {
        let rows = 12 / sessions.len() as i64;
        let shard = |(i, session): (usize, &&str)| Shard {
            region: Region::new(&[i as i64 * rows, 0], &[rows, 4]).unwrap(),
            session: (*session).into(),
            addr: 64,
            digest: None,
        };
        let shards = sessions.iter().enumerate().map(shard).collect();
        let mut catalog = Catalog::new();
        catalog.insert("w", Source { dtype: Dtype::F32, shape: vec![12, 4], shards }).unwrap();
        let capture = Capture::new();
        let w = capture.source("w", Dtype::F32, &[12, 4]).unwrap();
        let p = capture.param("p", Dtype::F32, &[len, 4]).unwrap();
        p.copy_from(&w.narrow(0, start, len).unwrap()).unwrap();
        let plan = plan(&capture.finish(), &catalog, &Limits::default()).unwrap();
        Member { name: name.to_owned(), plan }
    }

    fn names(traffic: &Traffic) -> Vec<&str> {
        traffic.sessions.iter().map(|s| &**s).collect()
    }

    #[test]
    fn the_sums_are_those_of_the_plans() {
        let sessions = ["c", "a", "b"];
        for cut in 1..12 {
            let members = vec![member("r0", &sessions, 0, cut), member("r1", &sessions, cut, 12 - cut)];
            let fleet = Fleet { members };
            let traffic = fleet.traffic();
            assert_eq!(traffic, fleet.clone().traffic());
            assert_eq!(names(&traffic), ["a", "b", "c"]);
            for (r, m) in fleet.members.iter().enumerate() {
                let mut found = vec![(0, 0); traffic.sessions.len()];
                for (session, counters) in m.plan.sessions.iter().zip(m.plan.session_counters()) {
                    found[traffic.sessions.binary_search(session).unwrap()] = counters;
                }
                let column = traffic.bytes.iter().zip(&traffic.descriptors).map(|(b, d)| (b[r], d[r]));
                assert_eq!(column.collect::<Vec<_>>(), found);
                assert_eq!(traffic.rank_bytes()[r], m.plan.counters().bytes);
            }
            assert_eq!(traffic.session_bytes(), [64, 64, 64]);
            assert_eq!(traffic.total(), 192);
            assert_eq!((traffic.hottest_session(), traffic.imbalance()), (Some((0, 64)), 1.0));
        }
    }

    #[test]
    fn ranks_need_not_share_sessions() {
        let members = vec![member("r0", &["x", "y"], 0, 6), member("r1", &["u", "v", "w"], 0, 9)];
        let traffic = Fleet { members }.traffic();
        // v sends its four rows; u likewise; w one of them; x all of its six.
        assert_eq!(names(&traffic), ["u", "v", "w", "x"]);
        assert_eq!(traffic.ranks, ["r0", "r1"]);
        assert_eq!(traffic.bytes, [[0, 64], [0, 64], [0, 16], [96, 0]]);
        assert_eq!(traffic.descriptors, [[0, 1], [0, 1], [0, 1], [1, 0]]);
        assert_eq!((traffic.rank_bytes(), traffic.total()), (vec![96, 144], 240));
        assert_eq!(traffic.hottest_session(), Some((3, 96)));
        assert_eq!(traffic.largest_link(), Some(((3, 0), 96)));
        assert_eq!(traffic.imbalance(), 96.0 / 60.0);
        // The busiest endpoint is the second rank.
        assert_eq!(traffic.seconds_at(36.0), 4.0);
        assert_eq!(traffic.total_descriptors(), 4);
    }

    #[test]
    fn nothing_read_is_even_and_takes_no_time() {
        let traffic = Fleet::default().traffic();
        assert_eq!((traffic.total(), traffic.hottest_session(), traffic.largest_link()), (0, None, None));
        assert_eq!((traffic.imbalance(), traffic.seconds_at(1.0)), (1.0, 0.0));
    }
}
