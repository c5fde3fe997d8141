//! Random shapes and chains. What proptest draws and shrinks are plain numbers; which operation they stand for
//! depends on the tensor at that point, so that most are legal, and so that a chain stays one when a part of it is
//! taken away. A number of 0 always stands for the simplest choice.

use proptest::collection::vec;
use proptest::prelude::*;
use restage_geometry::{Index, Op, SplitAt};

use super::tensor::Tensor;

/// Most operations of a chain.
pub const CHAIN: usize = 10;

/// Numbers that an operation may use; 0 past them.
const NUMBERS: usize = 12;

/// Most elements of a source: 6 dimensions of 7 would be 117,649, and nearly all chains would be about those.
const SOURCE_ELEMENTS: i64 = 2_000;

/// What is drawn for one case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Shape of the source.
    pub shape: Vec<i64>,
    /// Numbers of each operation.
    pub chain: Vec<Vec<u16>>,
    /// Where the chain is cut in two.
    pub cut: u8,
}

/// All cases.
pub fn cases() -> impl Strategy<Value = Case> {
    // Sizes of 0 are rarer than the others, or nearly every tensor of six dimensions would be empty.
    let size = prop_oneof![1 => Just(0i64), 6 => Just(1i64), 30 => 1i64..=7];
    let shape = vec(size, 0..=6).prop_filter("too many elements", |shape| {
        shape.iter().filter(|&&n| n > 0).product::<i64>() <= SOURCE_ELEMENTS
    });
    let chain = vec(vec(any::<u16>(), NUMBERS), 0..=CHAIN);
    (shape, chain, any::<u8>()).prop_map(|(shape, chain, cut)| Case { shape, chain, cut })
}

/// Numbers, one after the other.
struct Numbers<'a>(std::slice::Iter<'a, u16>);

/// Where arithmetic on sizes and positions breaks, if it does.
const EXTREMES: [i64; 8] = [i64::MIN, i64::MAX, -1, 8, -8, i64::MIN + 1, 1 << 32, -(1 << 31)];

impl Numbers<'_> {
    fn next(&mut self) -> i64 {
        self.0.next().map_or(0, |&n| i64::from(n))
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n.max(1)
    }

    /// One of `low ..= high`; `low` where there is none.
    fn within(&mut self, low: i64, high: i64) -> i64 {
        low + self.next() % (high - low + 1).max(1)
    }

    /// True in so many of 100 cases.
    fn rarely(&mut self, percent: i64) -> bool {
        self.next() % 100 > 99 - percent
    }

    /// Nearly always one of `low ..= high`, else anything.
    fn mostly(&mut self, low: i64, high: i64) -> i64 {
        match self.next() {
            n if n % 64 == 63 => EXTREMES[(n as usize / 64) % EXTREMES.len()],
            n if n % 64 == 62 => high + 1,
            n if n % 64 == 61 => low - 1,
            n => low + (n / 64) % (high - low + 1).max(1),
        }
    }

    /// As [`mostly`](Self::mostly) from 1 on; now and then 0, of which nothing interesting can follow.
    fn sometimes_none(&mut self, high: i64) -> i64 {
        if self.rarely(5) { 0 } else { self.mostly(high.min(1), high) }
    }

    /// A dimension, counted from either end.
    fn dim(&mut self, ndim: usize) -> i64 {
        let n = ndim.max(1) as i64;
        let dim = self.mostly(0, 2 * n - 1);
        if (n..2 * n).contains(&dim) { dim - 2 * n } else { dim }
    }

    /// Different dimensions in any order.
    fn dims(&mut self, ndim: usize, count: usize) -> Vec<i64> {
        let mut left: Vec<i64> = (0..ndim.max(1) as i64).collect();
        let mut out = Vec::new();
        while out.len() < count && !left.is_empty() {
            let d = left.remove(self.below(left.len()));
            out.push(if self.rarely(25) { d - ndim.max(1) as i64 } else { d });
        }
        if self.rarely(3) {
            out.push(self.dim(ndim));
        }
        out
    }

    /// Sizes that make `n` elements, mostly.
    fn sizes(&mut self, n: i64) -> Vec<i64> {
        let mut out = Vec::new();
        let mut left = n;
        while left > 1 && out.len() < 4 {
            let divisors: Vec<i64> = (2..=left).filter(|d| left % d == 0).collect();
            let d = divisors[divisors.len() - 1 - self.below(divisors.len())];
            out.push(d);
            left /= d;
        }
        if left != 1 || self.rarely(20) {
            out.insert(self.below(out.len() + 1), left);
        }
        if self.rarely(15) {
            out.insert(self.below(out.len() + 1), 1);
        }
        if !out.is_empty() && self.rarely(30) {
            let at = self.below(out.len());
            out[at] = -1;
        }
        if self.rarely(4) {
            out.push(self.mostly(-1, 3));
        }
        out
    }

    fn indices(&mut self, low: i64, size: i64, most: usize) -> Vec<i64> {
        if size == 0 && !self.rarely(5) {
            return Vec::new();
        }
        // A progression and a few others, so that lists are both regular and not.
        let (start, step) = (self.next(), self.next());
        let span = (size - low).max(1);
        let mut out: Vec<i64> =
            (0..self.below(most) as i64).map(|i| low + (start + i * step) % span).collect();
        if self.rarely(50) {
            out.push(self.mostly(low, size - 1));
            out.insert(0, low + self.next() % span);
        }
        out
    }

    fn split_at(&mut self, size: i64, even: bool) -> (SplitAt, i64) {
        if self.rarely(50) {
            let list: Vec<i64> = (0..self.below(4)).map(|_| self.mostly(-size - 2, size + 2)).collect();
            let parts = list.len() as i64 + 1;
            return (SplitAt::Indices(list), self.mostly(-parts, parts - 1));
        }
        let sections = if even && !self.rarely(10) {
            let divisors: Vec<i64> = (1..=size.max(1)).filter(|d| size % d == 0).collect();
            divisors[self.below(divisors.len())]
        } else {
            self.mostly(1, 5)
        };
        let parts = sections.clamp(1, 8);
        (SplitAt::Sections(sections), self.mostly(-parts, parts - 1))
    }

    fn subscript(&mut self, t: &Tensor) -> Vec<Index> {
        let mut items = Vec::new();
        let mut d = 0;
        let mut ellipsis = false;
        for _ in 0..self.within(0, t.ndim() as i64 + 1) {
            let size = t.shape.get(d).copied().unwrap_or(1);
            match self.below(16) {
                0..=3 if d < t.ndim() => {
                    items.push(Index::Int(self.mostly(-size, size - 1)));
                    d += 1;
                }
                4..=11 if d < t.ndim() || self.rarely(5) => {
                    let numbers = self.next();
                    let bound = |bit: i64, n: i64| (numbers >> bit & 1 == 1).then_some(n);
                    let (start, stop) = (self.mostly(-size - 1, size), self.mostly(-size - 1, size + 2));
                    let step = self.mostly(1, 3);
                    items.push(Index::Slice(bound(0, start), bound(1, stop), bound(2, step)));
                    d += 1;
                }
                12 | 13 if !ellipsis || self.rarely(10) => {
                    items.push(Index::Ellipsis);
                    ellipsis = true;
                }
                14 => items.push(Index::NewAxis),
                _ => {}
            }
        }
        items
    }
}

/// How many kinds of operation [`operation`] knows.
pub const KINDS: usize = 39;

/// The operation on this tensor that the numbers stand for.
pub fn operation(t: &Tensor, numbers: &[u16]) -> Op {
    let mut n = Numbers(numbers.iter());
    let kind = n.below(KINDS);
    let ndim = t.ndim();
    // A dimension that many operations are about, and its size.
    let mut dim = || {
        let dim = n.dim(ndim);
        let d = if dim < 0 { dim.saturating_add(ndim as i64) } else { dim };
        (dim, usize::try_from(d).ok().and_then(|d| t.shape.get(d)).copied().unwrap_or(1))
    };
    match kind {
        0 => Op::Contiguous,
        1 => Op::T,
        2 => {
            let (dim, size) = dim();
            let start = n.mostly(-size, size);
            let room = size.saturating_sub(if start < 0 { start.saturating_add(size) } else { start });
            Op::Narrow { dim, start, length: n.sometimes_none(room.clamp(0, size)) }
        }
        3 => {
            let (dim, size) = dim();
            Op::Select { dim, index: n.mostly(-size, size - 1) }
        }
        4 | 5 => Op::GetItem(n.subscript(t)),
        6 | 7 | 36..=38 => Op::View(view_shape(&mut n, t)),
        8 | 9 => Op::Reshape(n.sizes(t.numel())),
        10 => Op::Unsqueeze(n.dim(ndim + 1)),
        11 => match n.below(3) {
            0 => Op::Squeeze(None),
            count => Op::Squeeze(Some(n.dims(ndim, count))),
        },
        12 => Op::Transpose(n.dim(ndim), n.dim(ndim)),
        13 => Op::SwapAxes(n.dim(ndim), n.dim(ndim)),
        14 => Op::SwapDims(n.dim(ndim), n.dim(ndim)),
        15 => Op::Permute(if ndim == 0 { vec![] } else { n.dims(ndim, ndim) }),
        16 => {
            let (mut start_dim, mut end_dim) = (n.dim(ndim), n.dim(ndim));
            let at = |d: i64| if d < 0 { d.saturating_add(ndim as i64) } else { d };
            if at(start_dim) > at(end_dim) && !n.rarely(5) {
                (start_dim, end_dim) = (end_dim, start_dim);
            }
            Op::Flatten { start_dim, end_dim }
        }
        17 => {
            let (dim, size) = dim();
            Op::Unflatten { dim, sizes: n.sizes(size) }
        }
        18 => {
            let (dim, size) = dim();
            let chunks = n.mostly(1, 5);
            let parts = if size == 0 { chunks.clamp(1, 8) } else { chunks.clamp(1, size) };
            Op::Chunk { chunks, dim, index: n.mostly(-parts, parts - 1) }
        }
        19 => {
            let (dim, size) = dim();
            let part = n.mostly(1, size.max(1));
            let parts = if size == 0 || part <= 0 { 1 } else { (size - 1) / part + 1 };
            Op::Split { size: part, dim, index: n.mostly(-parts, parts - 1) }
        }
        20 => {
            let (dim, size) = dim();
            let mut sizes = Vec::new();
            let mut left = size;
            while left > 0 && sizes.len() < 3 {
                sizes.push(n.within(0, left));
                left -= sizes[sizes.len() - 1];
            }
            sizes.push(left);
            if n.rarely(4) {
                sizes.push(n.mostly(-1, 1));
            }
            let parts = sizes.len() as i64;
            Op::SplitSizes { sizes, dim, index: n.mostly(-parts, parts - 1) }
        }
        21 => {
            let (dim, size) = dim();
            Op::Unbind { dim, index: n.mostly(-size, size - 1) }
        }
        22 => Op::Expand(expanded(&mut n, t)),
        23 => Op::BroadcastTo(expanded(&mut n, t)),
        24 => {
            let count = n.within(0, 3) as usize;
            let source = n.dims(ndim, count);
            Op::MoveDim { destination: n.dims(ndim, count), source }
        }
        25 => {
            let count = n.within(0, 3) as usize;
            Op::Flip(n.dims(ndim, count))
        }
        26 => {
            let count = n.within(0, 2) as usize;
            let dims: Vec<i64> = (0..count).map(|_| n.dim(ndim)).collect();
            let shifts = count.max(1) + usize::from(n.rarely(3));
            Op::Roll { shifts: (0..shifts).map(|_| n.within(-9, 9)).collect(), dims }
        }
        27 => {
            let missing = usize::from(n.rarely(4));
            let more = usize::from(n.rarely(25));
            Op::Repeat(times(&mut n, (ndim + more).saturating_sub(missing)))
        }
        28 => {
            let count = n.below(ndim + 2);
            Op::Tile(times(&mut n, count))
        }
        29 => {
            let repeats = n.sometimes_none(3);
            let dim = (!n.rarely(25)).then(|| n.dim(ndim));
            Op::RepeatInterleave { repeats, dim }
        }
        30 => {
            let (dim, size) = dim();
            let (at, index) = n.split_at(size, false);
            Op::TensorSplit { at, dim, index }
        }
        31 => {
            let size = |d: usize| t.shape.get(d).copied().unwrap_or(1);
            match n.below(3) {
                0 => {
                    let (at, index) = n.split_at(size(usize::from(ndim != 1)), true);
                    Op::HSplit { at, index }
                }
                1 => {
                    let (at, index) = n.split_at(size(0), true);
                    Op::VSplit { at, index }
                }
                _ => {
                    let (at, index) = n.split_at(size(2), true);
                    Op::DSplit { at, index }
                }
            }
        }
        32 => {
            let dims = n.dims(ndim, 2);
            let (dim1, dim2) = (dims[0], dims.get(1).copied().unwrap_or(0));
            Op::Diagonal { offset: n.mostly(-4, 4), dim1, dim2 }
        }
        33 => {
            let (dimension, size) = dim();
            Op::Unfold { dimension, size: n.sometimes_none(size), step: n.mostly(1, 3) }
        }
        34 => {
            let (dim, size) = dim();
            Op::IndexSelect { dim, index: n.indices(0, size, 9) }
        }
        _ => Op::Take(n.indices(-t.numel(), t.numel(), 40)),
    }
}

/// Sizes for a view: some that regroup neighbours only, which are views of more tensors.
fn view_shape(n: &mut Numbers, t: &Tensor) -> Vec<i64> {
    if t.ndim() == 0 || n.rarely(40) {
        return n.sizes(t.numel());
    }
    let d = n.below(t.ndim());
    let mut shape = t.shape.clone();
    if n.rarely(50) && d + 1 < shape.len() {
        let inner = shape.remove(d + 1);
        shape[d] *= inner;
    } else {
        let sizes = n.sizes(shape[d]);
        shape.splice(d..=d, sizes);
    }
    shape
}

fn expanded(n: &mut Numbers, t: &Tensor) -> Vec<i64> {
    let keep = |n: &mut Numbers, size: i64| match size {
        1 => n.mostly(1, 3),
        _ if n.rarely(30) => -1,
        _ if n.rarely(2) => size + 1,
        _ => size,
    };
    let lead = usize::from(n.rarely(30)) + usize::from(n.rarely(10));
    let mut out: Vec<i64> = (0..lead).map(|_| n.within(1, 3)).collect();
    out.extend(t.shape.iter().map(|&size| keep(n, size)));
    out
}

fn times(n: &mut Numbers, count: usize) -> Vec<i64> {
    (0..count).map(|_| if n.rarely(30) { n.sometimes_none(3) } else { 1 }).collect()
}
