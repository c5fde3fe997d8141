//! Products with quantised blocks in whole numbers: eight rows of weights side by side, activations of 8 bits.
//!
//! Packed weights have the bytes that they had, in another order. For each 32 columns of 8 rows: the 8 scales, for Q4_1 the 8
//! minima, then the quants, 4 bytes of each row after the other. So a register of 32 bytes has 4 columns of 8 rows (8 columns
//! where a byte has two quants), which meet the same 4 activations, and each row's sum stays in a lane of its own.
//!
//! Activations are quantised by 32: `x = q d` with `d` the largest magnitude over 127. With `s` the sum of `q d` over the
//! block, a block's share of a sum is `w d q x + m s`; Q4_0 has `m = -8 d`.
//!
//! The law: every element is summed in one order, block by block, each rounded twice; with vector instructions, on tiles or
//! alone, it has the same bits as [`portable`].

#[cfg(target_arch = "x86_64")]
mod avx2;

use half::f16;
use rayon::prelude::*;
use restage_geometry::Dtype;

/// Rows side by side.
pub(crate) const ROWS: usize = 8;
/// Columns of a block.
const BLOCK: usize = 32;
/// Activation rows that share one pass over the weights.
const TILE: usize = 4;

/// What a block is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A scale and 16 bytes of two quants each.
    Q4_0,
    /// The same with a minimum.
    Q4_1,
    /// A scale and 32 signed quants.
    Q8_0,
}

impl Kind {
    fn of(dtype: Dtype) -> Option<Kind> {
        match dtype {
            Dtype::Q4_0 => Some(Kind::Q4_0),
            Dtype::Q4_1 => Some(Kind::Q4_1),
            Dtype::Q8_0 => Some(Kind::Q8_0),
            _ => None,
        }
    }

    /// Bytes of a block's scale and minimum.
    const fn head(self) -> usize {
        if matches!(self, Kind::Q4_1) { 4 } else { 2 }
    }

    /// Bytes of a block.
    const fn bytes(self) -> usize {
        self.head() + if matches!(self, Kind::Q8_0) { 32 } else { 16 }
    }
}

/// Weights, packed.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    kind: Kind,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

impl Packed {
    /// Packs rows of whole blocks; `None` where their type is not computed with in whole numbers.
    pub fn new(dtype: Dtype, rows: usize, columns: usize, stored: &[u8]) -> Option<Packed> {
        let kind = Kind::of(dtype)?;
        let (size, blocks) = (kind.bytes(), columns / BLOCK);
        let mut bytes = vec![0; rows.div_ceil(ROWS) * ROWS * blocks * size];
        let groups = bytes.par_chunks_mut((ROWS * blocks * size).max(1));
        groups.zip(stored.par_chunks((ROWS * blocks * size).max(1))).for_each(|(group, stored)| {
            for (lane, row) in stored.chunks_exact(blocks * size).enumerate() {
                for (to, from) in group.chunks_exact_mut(ROWS * size).zip(row.chunks_exact(size)) {
                    exchange(kind, lane, |packed, at| {
                        to[packed..packed + 2].copy_from_slice(&from[at..at + 2])
                    });
                }
            }
        });
        Some(Packed { kind, rows, columns, bytes })
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Writes a row as it was stored.
    pub fn row(&self, at: usize, out: &mut Vec<u8>) {
        let size = self.kind.bytes();
        out.resize(self.columns / BLOCK * size, 0);
        let group = self.group(at / ROWS);
        for (from, to) in group.chunks_exact(ROWS * size).zip(out.chunks_exact_mut(size)) {
            exchange(self.kind, at % ROWS, |packed, at| {
                to[at..at + 2].copy_from_slice(&from[packed..packed + 2])
            });
        }
    }

    fn group(&self, at: usize) -> &[u8] {
        let size = self.columns / BLOCK * self.kind.bytes() * ROWS;
        &self.bytes[at * size..][..size]
    }

    /// `turned[r][t]` becomes row `r` times activation row `t`; rows are a multiple of [`ROWS`], those past the last are 0.
    pub fn multiply(&self, activations: &Quantised, turned: &mut [f32]) {
        let count = activations.rows();
        let product = kernel();
        let groups = self.rows.div_ceil(ROWS);
        let least = groups.div_ceil(4 * rayon::current_num_threads()).max(1);
        turned.par_chunks_mut(ROWS * count).with_min_len(least).enumerate().for_each(|(group, out)| {
            let weights = self.group(group);
            let mut t = 0;
            while t < count {
                let taken = (count - t).min(TILE);
                let sums = product(self.kind, weights, activations, t, taken);
                for (i, sums) in sums[..taken].iter().enumerate() {
                    for (lane, sum) in sums.iter().enumerate() {
                        out[lane * count + t + i] = *sum;
                    }
                }
                t += taken;
            }
        });
    }
}

/// Tells, for every two bytes of a stored block, where they are in the packed one.
fn exchange(kind: Kind, lane: usize, mut both: impl FnMut(usize, usize)) {
    let head = kind.head();
    for i in (0..head).step_by(2) {
        both(i * ROWS + 2 * lane, i);
    }
    for i in (0..kind.bytes() - head).step_by(2) {
        both(head * ROWS + i / 4 * 4 * ROWS + 4 * lane + i % 4, head + i);
    }
}

/// Activations of 8 bits.
#[derive(Debug)]
pub(crate) struct Quantised {
    blocks: usize,
    quants: Vec<i8>,
    /// Of each block.
    scales: Vec<f32>,
    /// Of each block: its quants' sum times its scale.
    sums: Vec<f32>,
}

impl Quantised {
    /// Rows of this many columns, which are whole blocks. What is not finite makes its block NaN.
    pub fn new(activations: &[f32], columns: usize) -> Self {
        let mut quants = vec![0; activations.len()];
        let (mut scales, mut sums) = (Vec::new(), Vec::new());
        let (blocks, _) = activations.as_chunks::<BLOCK>();
        for (block, quants) in blocks.iter().zip(quants.chunks_exact_mut(BLOCK)) {
            let most = block.iter().fold(0f32, |most, x| most.max(x.abs()));
            let all_finite: f32 = block.iter().map(|x| x * 0.0).sum();
            let scale = most / 127.0 + all_finite;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let mut sum = 0;
            for (q, x) in quants.iter_mut().zip(block) {
                *q = (x * inverse).round_ties_even() as i8;
                sum += i32::from(*q);
            }
            scales.push(scale);
            sums.push(scale * sum as f32);
        }
        Quantised { blocks: columns / BLOCK, quants, scales, sums }
    }

    fn rows(&self) -> usize {
        self.scales.len() / self.blocks.max(1)
    }

    /// The quants, scales and sums of a row.
    fn row(&self, t: usize) -> (&[i8], &[f32], &[f32]) {
        let of = t * self.blocks..(t + 1) * self.blocks;
        (&self.quants[of.start * BLOCK..of.end * BLOCK], &self.scales[of.clone()], &self.sums[of])
    }
}

/// Sums of 8 rows for up to [`TILE`] activation rows from one on.
type Product = fn(Kind, &[u8], &Quantised, usize, usize) -> [[f32; ROWS]; TILE];

/// The fastest that this processor has.
fn kernel() -> Product {
    #[cfg(target_arch = "x86_64")]
    if let Some(product) = avx2::kernel() {
        return product;
    }
    portable
}

/// The definition, in plain code.
fn portable(
    kind: Kind,
    weights: &[u8],
    activations: &Quantised,
    first: usize,
    taken: usize,
) -> [[f32; ROWS]; TILE] {
    let mut out = [[0f32; ROWS]; TILE];
    for (t, out) in out[..taken].iter_mut().enumerate() {
        let (quants, scales, sums) = activations.row(first + t);
        for (b, block) in weights.chunks_exact(ROWS * kind.bytes()).enumerate() {
            let x = &quants[b * BLOCK..][..BLOCK];
            for (lane, out) in out.iter_mut().enumerate() {
                let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
                let d = half(2 * lane);
                let byte = |i: usize| block[kind.head() * ROWS + i / 4 * 4 * ROWS + 4 * lane + i % 4];
                let sum: i32 = match kind {
                    Kind::Q8_0 => (0..32).map(|i| i32::from(byte(i) as i8) * i32::from(x[i])).sum(),
                    _ => (0..16)
                        .map(|i| {
                            i32::from(byte(i) & 15) * i32::from(x[i])
                                + i32::from(byte(i) >> 4) * i32::from(x[i + 16])
                        })
                        .sum(),
                };
                *out += d * scales[b] * sum as f32;
                match kind {
                    Kind::Q4_0 => *out += d * -8.0 * sums[b],
                    Kind::Q4_1 => *out += half(2 * ROWS + 2 * lane) * sums[b],
                    Kind::Q8_0 => {}
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::row_to_f32;
    use proptest::prelude::*;

    const ALL: [Dtype; 3] = [Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0];

    /// Rows of random quants with scales of about 1.
    fn stored(dtype: Dtype, rows: usize, columns: usize, seed: u32) -> Vec<u8> {
        let kind = Kind::of(dtype).unwrap();
        let mut state = seed;
        let mut byte = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut bytes = Vec::new();
        for _ in 0..rows * columns / BLOCK {
            for _ in 0..kind.head() / 2 {
                bytes.extend(f16::from_f32(f32::from(byte()) / 128.0 - 1.0).to_le_bytes());
            }
            bytes.extend((0..kind.bytes() - kind.head()).map(|_| byte()));
        }
        bytes
    }

    proptest! {
        #[test]
        fn products_are_those_of_the_rounded_activations(
            which in 0usize..3, rows in 1usize..20, blocks in 1usize..6, count in 1usize..10, seed in any::<u32>(),
        ) {
            let (dtype, columns) = (ALL[which], blocks * BLOCK);
            let bytes = stored(dtype, rows, columns, seed);
            let packed = Packed::new(dtype, rows, columns, &bytes).unwrap();
            let x: Vec<f32> = (0..count * columns).map(|i| ((i as f32 + seed as f32 / 1e6) * 0.7).sin()).collect();
            let quantised = Quantised::new(&x, columns);
            let padded = rows.div_ceil(ROWS) * ROWS;
            let mut turned = vec![f32::NAN; padded * count];
            packed.multiply(&quantised, &mut turned);
            let (size, mut row) = (bytes.len() / rows, Vec::new());
            let mut weights = vec![0.0; columns];
            for r in 0..rows {
                packed.row(r, &mut row);
                prop_assert_eq!(&row[..], &bytes[r * size..][..size]);
                row_to_f32(dtype, &row, &mut weights);
                for t in 0..count {
                    let (quants, scales, _) = quantised.row(t);
                    let of = |i: usize| f64::from(quants[i]) * f64::from(scales[i / BLOCK]);
                    let exact: f64 = weights.iter().enumerate().map(|(i, w)| f64::from(*w) * of(i)).sum();
                    let size: f64 = weights.iter().enumerate().map(|(i, w)| (f64::from(*w) * of(i)).abs()).sum();
                    let found = f64::from(turned[r * count + t]);
                    prop_assert!((found - exact).abs() <= 1e-5 * size + 1e-6, "{} {}", found, exact);
                }
            }
            // Rows of padding are zeros.
            prop_assert!(turned[rows * count..].iter().all(|x| *x == 0.0));
        }

        #[test]
        fn vectors_and_tiles_change_no_bit(
            which in 0usize..3, blocks in 1usize..6, count in 1usize..5, seed in any::<u32>(),
        ) {
            let (dtype, columns) = (ALL[which], blocks * BLOCK);
            let packed = Packed::new(dtype, ROWS, columns, &stored(dtype, ROWS, columns, seed)).unwrap();
            let x: Vec<f32> = (0..count * columns).map(|i| (i as f32 * 1.3).cos() * 9.0).collect();
            let quantised = Quantised::new(&x, columns);
            let bits = |sums: [[f32; ROWS]; TILE]| sums.map(|s| s.map(f32::to_bits));
            let expected = bits(portable(packed.kind, packed.group(0), &quantised, 0, count));
            let found = bits(kernel()(packed.kind, packed.group(0), &quantised, 0, count));
            prop_assert_eq!(&found[..count], &expected[..count]);
            for (t, expected) in expected.iter().enumerate().take(count) {
                let alone = bits(kernel()(packed.kind, packed.group(0), &quantised, t, 1));
                prop_assert_eq!(alone[0], *expected);
            }
        }
    }

    #[test]
    fn the_largest_quants_do_not_overflow() {
        for (dtype, quant) in
            [(Dtype::Q4_0, 255u8), (Dtype::Q4_1, 255), (Dtype::Q8_0, 128), (Dtype::Q8_0, 127)]
        {
            let kind = Kind::of(dtype).unwrap();
            let mut block = vec![quant; kind.bytes()];
            block[..kind.head()].fill(0);
            block[..2].copy_from_slice(&f16::ONE.to_le_bytes());
            let packed = Packed::new(dtype, 1, BLOCK, &block).unwrap();
            for sign in [1.0, -1.0] {
                let x = Quantised::new(&[sign; BLOCK], BLOCK);
                let [found, ..] = kernel()(kind, packed.group(0), &x, 0, 1);
                assert_eq!(found, portable(kind, packed.group(0), &x, 0, 1)[0], "{dtype}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let packed = Packed::new(Dtype::Q8_0, 1, BLOCK, &stored(Dtype::Q8_0, 1, BLOCK, 1)).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; BLOCK];
            x[7] = bad;
            let mut turned = [0.0; ROWS];
            packed.multiply(&Quantised::new(&x, BLOCK), &mut turned);
            assert!(turned[0].is_nan());
        }
    }
}
