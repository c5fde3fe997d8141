//! The keys and values of one sequence, for the blocks of one stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;

/// Positions by which a cache grows.
const PAGE: usize = 256;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvDtype {
    /// Half precision, rounded to nearest even.
    #[default]
    F16,
    /// As they are computed.
    F32,
}

impl KvDtype {
    fn bytes(self) -> u64 {
        match self {
            KvDtype::F16 => 2,
            KvDtype::F32 => 4,
        }
    }
}

/// Memory that all caches of a stage may take together, and what they take.
#[derive(Debug, Clone)]
pub struct Budget {
    most: u64,
    used: Arc<AtomicU64>,
}

impl Budget {
    /// A budget of this many bytes.
    pub fn new(most: u64) -> Self {
        Budget { most, used: Arc::new(AtomicU64::new(0)) }
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.most.saturating_sub(self.used.load(Ordering::Relaxed))
    }
}

/// Rows of one kind, position by position.
#[derive(Debug)]
enum Rows {
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl Rows {
    fn new(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F16 => Rows::F16(Vec::new()),
            KvDtype::F32 => Rows::F32(Vec::new()),
        }
    }

    fn reserve(&mut self, elements: usize) {
        match self {
            Rows::F16(v) => v.reserve_exact(elements - v.len()),
            Rows::F32(v) => v.reserve_exact(elements - v.len()),
        }
    }

    fn push(&mut self, row: &[f32]) {
        match self {
            Rows::F16(v) => v.extend(row.iter().map(|&x| f16::from_f32(x))),
            Rows::F32(v) => v.extend_from_slice(row),
        }
    }

    fn truncate(&mut self, elements: usize) {
        match self {
            Rows::F16(v) => v.truncate(elements),
            Rows::F32(v) => v.truncate(elements),
        }
    }

    fn read(&self, at: usize, out: &mut [f32]) {
        match self {
            Rows::F16(v) => out.iter_mut().zip(&v[at..]).for_each(|(out, x)| *out = x.to_f32()),
            Rows::F32(v) => out.copy_from_slice(&v[at..][..out.len()]),
        }
    }
}

/// The cache of one sequence. It gives its memory back to the budget when it is dropped.
#[derive(Debug)]
pub struct Cache {
    dtype: KvDtype,
    /// Elements of a position: all heads of keys, or of values.
    width: usize,
    /// Keys and values of each block.
    blocks: Vec<[Rows; 2]>,
    length: usize,
    /// Positions that there is room for.
    room: usize,
    budget: Budget,
}

/// A cache that would take more than is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that it needs besides what it has.
    pub wanted: u64,
    /// Bytes that are left.
    pub left: u64,
}

impl Cache {
    /// An empty cache for so many blocks, with `width` elements a position each for keys and for values.
    pub fn new(blocks: usize, width: usize, dtype: KvDtype, budget: &Budget) -> Self {
        let blocks = (0..blocks).map(|_| [Rows::new(dtype), Rows::new(dtype)]).collect();
        Cache { dtype, width, blocks, length: 0, room: 0, budget: budget.clone() }
    }

    /// Positions that it holds.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Bytes that it holds, in use or not.
    pub fn bytes(&self) -> u64 {
        self.bytes_of(self.room)
    }

    fn bytes_of(&self, positions: usize) -> u64 {
        2 * (self.blocks.len() * self.width * positions) as u64 * self.dtype.bytes()
    }

    /// Makes room for so many more positions.
    ///
    /// # Errors
    /// [`NoRoom`]; the cache is as it was.
    pub fn grow(&mut self, positions: usize) -> Result<(), NoRoom> {
        let needed = (self.length + positions).next_multiple_of(PAGE);
        if needed <= self.room {
            return Ok(());
        }
        let wanted = self.bytes_of(needed) - self.bytes();
        let left = self.budget.left();
        if wanted > left {
            return Err(NoRoom { wanted, left });
        }
        self.budget.used.fetch_add(wanted, Ordering::Relaxed);
        self.room = needed;
        for rows in self.blocks.iter_mut().flatten() {
            rows.reserve(needed * self.width);
        }
        Ok(())
    }

    /// Adds the keys and values of positions to a block, `width` elements each.
    pub fn push(&mut self, block: usize, keys: &[f32], values: &[f32]) {
        let [k, v] = &mut self.blocks[block];
        k.push(keys);
        v.push(values);
    }

    /// Takes what was pushed to every block for good.
    pub fn commit(&mut self, positions: usize) {
        self.length += positions;
    }

    /// Forgets everything from a position on, and whatever was pushed and not committed.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
        let elements = self.length * self.width;
        self.blocks.iter_mut().flatten().for_each(|rows| rows.truncate(elements));
    }

    /// One head's part of the keys of a position.
    pub fn key(&self, block: usize, position: usize, from: usize, out: &mut [f32]) {
        self.blocks[block][0].read(position * self.width + from, out);
    }

    /// One head's part of the values of a position.
    pub fn value(&self, block: usize, position: usize, from: usize, out: &mut [f32]) {
        self.blocks[block][1].read(position * self.width + from, out);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_grows_in_pages_and_gives_them_back() {
        let page = 2 * 3 * 4 * PAGE as u64 * 2;
        let budget = Budget::new(2 * page);
        let mut cache = Cache::new(3, 4, KvDtype::F16, &budget);
        cache.grow(1).unwrap();
        assert_eq!((cache.bytes(), budget.left()), (page, page));
        let mut other = Cache::new(3, 4, KvDtype::F16, &budget);
        assert_eq!(other.grow(PAGE + 1), Err(NoRoom { wanted: 2 * page, left: page }));
        other.grow(PAGE).unwrap();
        assert_eq!(budget.left(), 0);
        drop(cache);
        assert_eq!(budget.left(), page);
    }

    #[test]
    fn what_was_not_committed_is_forgotten() {
        let mut cache = Cache::new(1, 2, KvDtype::F32, &Budget::new(1 << 20));
        cache.grow(2).unwrap();
        cache.push(0, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]);
        cache.commit(2);
        cache.push(0, &[9.0, 9.0], &[9.0, 9.0]);
        cache.truncate(9);
        assert_eq!(cache.length(), 2);
        cache.push(0, &[0.5, 0.25], &[0.0, 0.0]);
        cache.commit(1);
        let mut read = [0.0];
        cache.key(0, 2, 1, &mut read);
        assert_eq!(read, [0.25]);
        cache.value(0, 1, 0, &mut read);
        assert_eq!(read, [7.0]);
        cache.truncate(1);
        assert_eq!(cache.length(), 1);
    }
}
